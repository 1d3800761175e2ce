"""What is worth an alert, when it is told, told again and over: lines go in, messages come out, nothing else."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Collection
from typing import Any, Literal

import pytest

from holdfast.alerts import declare, rules
from holdfast.alerts.messages import BODY_MAX, JOBS_MAX, Message, one_line
from holdfast.alerts.rules import FALSE_WINDOWS, KINDS, Incidents, Line, Thresholds, find
from holdfast.core.text import hide_secrets
from holdfast.errors import UsageError

NOW = 1_700_000_000.0
_numbers = itertools.count(1)


def line(kind: str, at: float = NOW, **given: Any) -> Line:
    number = next(_numbers)
    named: dict[str, Any] = {"job_id": f"job-{number}", "fence": 1, "task": "t", "reason": "it broke"}
    if kind == "late":
        named["job_id"] = ""
    named |= {"death": f"w-{number}", "worker": f"box/{number}", "host": "h"} | given
    return Line(seq=number, at=at, kind=kind, **{"worker_id": named["death"]} | named)


def told(messages: list[Message]) -> list[tuple[str, str, int]]:
    return [(message.kind, message.status, message.jobs_concerned) for message in messages]


class Rows:
    """Jobs that are held, asking or dead until somebody has `settled` them."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.settled: set[str] = set()

    def is_held(self, task: str) -> bool:
        return self.held(task) > 0

    def held(self, task: str) -> int:
        waits = {each.job_id for each in self.lines if each.kind in ("held", "asked") and each.task == task}
        return len(waits - self.settled)

    def still(self, kind: Literal["held", "dead"], ids: Collection[str]) -> set[str]:
        return set(ids) - self.settled


class Watched(Rows):
    """Incidents on a growing journal."""

    def __init__(self, *on: Any, **limits: Any) -> None:
        super().__init__()
        self.incidents = Incidents(on or KINDS, Thresholds(**limits))

    def look(self, at: float, *lines: Line) -> list[Message]:
        self.lines = sorted([*self.lines, *lines], key=lambda each: each.at)
        return self.incidents.update(self.lines, NOW + at, self)


# ------------------------------------------------------------------------------------ more than is counted


@pytest.mark.parametrize("kind", ["dead", "crashes", "zombie_rate"])
def test_a_number_that_is_cut_is_told_as_the_least_that_it_may_be(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "LINES_MAX", 30)
    storm = [line("dead" if kind == "dead" else "zombie", NOW - 1, crashes=2) for _ in range(30)]
    [all_of_them] = Watched(kind).look(0, *storm[1:])
    assert all_of_them.text.startswith("29 ")
    assert "at_least" not in all_of_them.numbers
    [whole_window] = Watched(kind).look(0, line("zombie", NOW - 600), *storm[1:])
    assert whole_window.text.startswith("29 "), "what is not counted is older than the window"
    [cut] = Watched(kind).look(0, *storm)
    assert (cut.text[:12], cut.numbers["at_least"]) == ("at least 30 ", True)


def test_a_single_job_among_more_lines_than_are_counted_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "LINES_MAX", 2)
    [message] = Watched("dead").look(0, line("zombie"), line("dead", job_id="order-1"))
    assert message.text == "job order-1 (t) is dead: it broke"


def test_what_is_counted_by_rows_is_never_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "LINES_MAX", 2)
    [message] = Watched("held").look(0, *(line("held") for _ in range(3)))
    assert message.text.startswith("3 jobs of t are held")


# ----------------------------------------------------------------------------------------- late schedules


def test_schedules_of_one_task_that_are_late_are_one_incident() -> None:
    watched = Watched("late_schedules")
    nightly, hourly = (line("late", task="report", schedule=key, instants=3) for key in ("nightly", "hourly"))
    [first] = watched.look(0, nightly)
    assert (first.status, first.task, first.jobs_concerned) == ("new", "report", 0)
    [more] = watched.look(300, hourly)
    assert (more.status, more.numbers) == ("more", {"late": 2, "schedules": {"nightly": 3, "hourly": 3}})
    assert watched.look(5000) == [], "a line is there as long as its schedule is late"
    watched.lines.remove(nightly)
    assert watched.look(5001) == []
    watched.lines.clear()
    [over] = watched.look(5002)
    assert (over.status, over.text) == ("over", "over: no schedule of report is late any more")


def test_a_message_of_very_many_late_schedules_stays_small() -> None:
    lines = [line("late", schedule=f"{number}" * 150, instants=1) for number in range(500)]
    [message] = Watched("late_schedules").look(0, *lines)
    assert (message.numbers["late"], len(message.numbers["schedules"])) == (500, JOBS_MAX)
    assert len(message.body("memory://")) <= BODY_MAX


def test_a_late_schedule_is_named_with_its_reason_and_several_are_counted() -> None:
    late = [
        line("late", task="report", schedule=key, instants=1, reason=f"{key} is due") for key in ("daily", "hourly")
    ]
    [one] = Watched("late_schedules").look(0, late[0])
    assert one.text == "schedule daily (report) is late: daily is due"
    [both] = Watched("late_schedules").look(0, *late)
    assert both.text == "2 schedules of report are late; schedule hourly (report) is late: hourly is due"


# ------------------------------------------------------------------------------- held, dead and crashes


def test_a_dead_job_is_told_at_once_more_of_it_later_and_its_end() -> None:
    watched = Watched("dead")
    [first] = watched.look(0, line("dead", reason="crashed 3 times"))
    assert (first.status, first.task, first.jobs_concerned) == ("new", "t", 1)
    assert "is dead: crashed 3 times" in first.text
    assert watched.look(5, line("dead", NOW + 5), line("dead", NOW + 5)) == []  # five minutes have not passed
    [more] = watched.look(300)
    assert (more.status, more.jobs_concerned, len(more.jobs)) == ("more", 3, 2)
    assert more.text.startswith("3 jobs of t are dead")
    assert watched.look(604) == []
    [over] = watched.look(605)
    assert (over.status, over.since, over.numbers) == ("over", first.since, {"told": 3})
    assert watched.look(610) == []


def test_tasks_are_separate_incidents() -> None:
    messages = Watched("dead").look(0, line("dead", task="a"), line("dead", task="b"), line("dead", task="a"))
    assert sorted((message.task, message.jobs_concerned) for message in messages) == [("a", 2), ("b", 1)]


def test_every_job_is_told_exactly_once_however_they_come() -> None:
    lots = random.Random(5)
    for _ in range(50):
        watched, arrivals = Watched("held", "dead"), sorted(lots.uniform(0, 4000) for _ in range(lots.randint(1, 40)))
        lines = [line(lots.choice(["held", "dead"]), NOW + at, task=lots.choice("ab")) for at in arrivals]
        messages: list[Message] = []
        for at in range(0, 6000, 5):
            new = [each for each in lines if NOW + at - 5 < each.at <= NOW + at]
            messages += watched.look(at, *new)
        ids = [job["id"] for message in messages for job in message.jobs]
        assert sorted(ids) == sorted(each.job_id for each in lines)


def test_more_is_told_at_most_every_again_s() -> None:
    watched = Watched("dead")
    messages = [watched.look(at, line("dead", NOW + at)) for at in range(0, 3600, 5)]
    assert sum(map(len, messages)) == 12  # one every five minutes, whatever happens


def test_a_held_job_is_over_when_nobody_waits_for_an_answer_and_not_before() -> None:
    watched = Watched("held")
    assert told(watched.look(0, line("held", job_id="j"))) == [("held", "new", 1)]
    assert watched.look(5000) == []  # far outside the window, and still held
    watched.settled.add("j")
    [over] = watched.look(5005)
    assert over.text == "over: no job of t is held or asks a person any more"


def test_an_answered_one_is_not_told_again_while_its_line_is_recent() -> None:
    watched = Watched("held")
    watched.look(0, line("held", job_id="j"))
    watched.settled.add("j")
    assert told(watched.look(5)) == [("held", "over", 0)]
    assert watched.look(10) == []
    assert told(watched.look(15, line("held", NOW + 15))) == [("held", "new", 1)]


@pytest.mark.parametrize("kind", ["held", "asked", "dead"])
def test_a_job_that_was_answered_or_revived_before_its_turn_is_not_told(kind: str) -> None:
    on = "dead" if kind == "dead" else "held"
    watched = Watched(on)
    watched.settled = {"j1", "j3"}
    assert watched.look(0, line(kind, job_id="j1")) == []
    assert told(watched.look(5, line(kind, NOW + 5, job_id="j2"))) == [(on, "new", 1)]
    assert watched.look(10, line(kind, NOW + 10, job_id="j3"), line(kind, NOW + 10, job_id="j4")) == []
    [more] = watched.look(305)
    assert (more.jobs_concerned, [job["id"] for job in more.jobs]) == (2, ["j4"])
    watched.settled |= {"j2", "j4"}
    assert told(watched.look(310)) == ([] if kind == "dead" else [("held", "over", 0)])


def test_more_of_it_says_how_many_there_are_now() -> None:
    watched = Watched("held")
    watched.look(0, line("held", job_id="j1"))
    watched.look(1, line("held", NOW + 1, job_id="j2"), line("held", NOW + 2, job_id="j3", reason="why 3"))
    [more] = watched.look(300)
    assert (more.jobs_concerned, [job["id"] for job in more.jobs]) == (3, ["j3", "j2"])
    assert more.text == f"3 jobs of t are {HELD}; the last one: why 3"
    watched.settled.add("j1")
    [more] = watched.look(901, line("held", NOW + 900, job_id="j4", reason="why 4"))
    assert more.jobs_concerned == 3, "two of them from before the window"
    assert more.text == "3 jobs of t wait for a person's answer; the last one: why 4"


def test_a_question_of_a_workflow_that_ran_for_a_moment_is_told_when_it_waits_again() -> None:
    watched = Watched("held")
    watched.settled = {"j"}
    assert watched.look(0, line("asked", job_id="j")) == []
    watched.settled = set()
    assert told(watched.look(5)) == [("held", "new", 1)]


def test_the_held_and_the_dead_of_one_task_are_counted_apart() -> None:
    messages = Watched().look(0, line("held"), line("held"), line("dead"))
    assert sorted(told(messages)) == [("dead", "new", 1), ("held", "new", 2)]


def test_a_job_that_was_answered_during_the_look_is_still_counted() -> None:
    class Answered(Watched):
        def held(self, task: str) -> int:
            return 0

    message, over = Answered("held").look(0, line("held", job_id="j", reason="why"))
    assert (message.jobs_concerned, message.text) == (1, f"job j (t) is {HELD}: why")
    assert over.status == "over"


HELD = "held, and a person must decide"


@pytest.mark.parametrize(
    ("kinds", "text"),
    [
        (["held"], f"job job-1 (t) is {HELD}: why 1"),
        (["asked"], "workflow job-1 (t) asks a person: why 1"),
        (["held", "held"], f"2 jobs of t are {HELD}; the last one: why 2"),
        (["held", "asked"], "2 jobs of t wait for a person's answer; the last one: why 2"),
        (["asked", "held"], "2 jobs of t wait for a person's answer; the last one: why 2"),
    ],
)
def test_a_held_job_and_a_question_are_told_in_their_own_words(kinds: list[str], text: str) -> None:
    lines = [line(kind, job_id=f"job-{n}", reason=f"why {n}") for n, kind in enumerate(kinds, 1)]
    assert find(lines, NOW, ["held"], Thresholds())["held", "t"].text(lines, len(lines)) == text


def test_several_jobs_that_crash_or_die_are_counted_and_the_worst_or_the_last_is_named() -> None:
    crashed = [line("zombie", job_id=f"j{n}", crashes=n, reason=f"why {n}") for n in (2, 4, 3)]
    [message] = Watched("crashes").look(0, *crashed)
    worst = "job j4 (t) has crashed 4 times, and is perhaps what kills its workers: why 4"
    assert message.text == f"3 jobs of t crash again and again; {worst}"
    [message] = Watched("crashes").look(0, crashed[1])
    assert message.text == worst
    [message] = Watched("dead").look(0, line("dead", job_id="j1"), line("dead", job_id="j2", reason="why"))
    assert message.text == "2 jobs of t are dead; the last one: why"


def test_only_a_crash_is_told_as_one_whatever_else_becomes_of_the_job() -> None:
    others = [line(kind, crashes=5) for kind in ("held", "dead", "asked", "stale_report")]
    assert Watched("crashes").look(0, *others) == []


def test_a_job_that_crashes_too_often_is_told_and_one_crash_is_not() -> None:
    watched = Watched("crashes")
    assert watched.look(0, line("zombie", job_id="j", crashes=1)) == []
    [message] = watched.look(5, line("zombie", NOW + 5, job_id="j", fence=3, crashes=2))
    assert "job j (t) has crashed 2 times, and is perhaps what kills its workers" in message.text


@pytest.mark.parametrize(("on", "kinds"), [(KINDS, ["dead"]), (("crashes",), ["crashes"])])
def test_the_crash_that_buried_a_job_is_told_once(on: Any, kinds: list[str]) -> None:
    lines = [line("zombie", job_id="j", fence=5, crashes=3), line("dead", job_id="j", fence=5)]
    assert [message.kind for message in Watched(*on).look(0, *lines)] == kinds


def test_only_what_is_asked_for_is_told() -> None:
    assert Watched("held").look(0, line("dead"), *(line("zombie", crashes=9) for _ in range(99))) == []


# ---------------------------------------------------------------------------------------------- rates


def rate(*lines: Line, **limits: Any) -> Message:
    [message] = Watched("zombie_rate", **limits).look(0, *lines)
    return message


def test_many_zombies_all_over_the_fleet_are_a_problem_of_the_fleet() -> None:
    message = rate(*(line("zombie", task=f"task-{n % 4}", host=f"h{n % 3}") for n in range(21)))
    assert message.numbers == {
        "zombies": 21,
        "zombies_max": 20,
        "window_s": 600.0,
        "jobs": 21,
        "tasks": 4,
        "workers": 21,
        "hosts": 3,
        "concerns": "fleet",
    }
    assert "21 attempts lost their worker in 10 min (21 jobs, 4 tasks, 21 workers, 3 hosts)" in message.text
    assert "no single job, task or worker" in message.text
    assert message.task is None, "it concerns no task in particular"


def test_a_poison_job_with_many_neighbours_is_told_as_that_job() -> None:
    deaths = range(3)
    lines = [line("zombie", job_id=f"n{d}-{n}", task=f"t{n % 3}", death=f"w{d}") for d in deaths for n in range(9)]
    lines += [line("zombie", job_id="poison", task="bad", death=f"w{d}", fence=d) for d in deaths]
    message = rate(*lines)
    assert message.numbers["concerns"] == "job"
    assert "job poison (bad) was there each time; a single bad job, not the fleet" in message.text


def test_one_job_that_is_lost_again_and_again_in_one_worker_is_told_as_that_job() -> None:
    """As an isolated one is: its own process dies, and the worker lives on."""
    message = rate(*(line("zombie", job_id="poison", death="poison", worker_id="w", fence=n) for n in range(30)))
    assert message.numbers["concerns"] == "job"


def test_one_worker_and_one_task_are_told_apart_from_the_fleet() -> None:
    one_worker = [line("zombie", death="w", worker="box/1", task=f"t{n}") for n in range(30)]
    assert rate(*one_worker).numbers["concerns"] == "worker"
    assert "all of them of box/1" in rate(*one_worker).text
    assert rate(*(line("zombie", task="bad") for _ in range(30))).numbers["concerns"] == "task"
    assert rate(*(line("zombie", task="bad", death="w") for _ in range(30))).numbers["concerns"] == "worker"


def test_deaths_of_their_own_in_one_worker_are_told_as_the_task_and_as_the_worker_if_there_are_several() -> None:
    """As isolated ones are: the process of each died, and the worker lives on."""
    same = rate(*(line("zombie", task="bad", worker_id="w") for _ in range(21)))
    assert (same.numbers["concerns"], same.numbers["workers"]) == ("task", 1)
    several = rate(*(line("zombie", task=f"t{n % 2}", worker_id="w", worker="box/1") for n in range(21)))
    assert (several.numbers["concerns"], several.numbers["workers"]) == ("worker", 1)
    assert "all of them of box/1" in several.text


def test_as_many_as_the_limit_are_not_too_many_and_old_ones_do_not_count() -> None:
    old = [line("zombie", NOW - 600) for _ in range(50)]
    assert Watched("zombie_rate").look(0, *old, *(line("zombie") for _ in range(20))) == []
    assert len(Watched("zombie_rate").look(0, *old, *(line("zombie") for _ in range(21)))) == 1


def test_a_rate_is_over_only_when_it_is_clearly_over() -> None:
    watched = Watched("zombie_rate")
    assert len(watched.look(0, *(line("zombie", NOW - 599 + n) for n in range(21)))) == 1
    assert watched.look(9) == []  # 13 are left, below the limit
    [over] = watched.look(12)
    assert over.text == "over: at most 10 attempts lost their worker in 10 min"


@pytest.mark.parametrize(("late", "zombies", "alarm"), [(1, 1, True), (1, 20, False), (2, 20, True), (0, 9, False)])
def test_more_than_five_percent_of_false_positives_are_told(late: int, zombies: int, alarm: bool) -> None:
    lines = [line("zombie", job_id=f"j{n}") for n in range(zombies)]
    lines += [line("stale_report", job_id=f"j{n}") for n in range(late)]
    found = find(lines, NOW, ["false_positives"], Thresholds())
    assert bool(found) is alarm
    if alarm:
        numbers = found["false_positives", ""].numbers
        assert (numbers["false_positives"], numbers["zombies"]) == (late, zombies)


def test_a_late_report_of_another_attempt_makes_no_zombie_false() -> None:
    lines = [line("zombie", job_id="j", fence=1), line("stale_report", job_id="j", fence=3)]
    assert find(lines, NOW, ["false_positives"], Thresholds()) == {}


def test_a_report_that_comes_long_after_its_zombie_still_counts() -> None:
    lines = [line("zombie", NOW - 3000, job_id="j"), line("stale_report", job_id="j")]
    watched = Watched("false_positives")
    [message] = watched.look(0, *lines)
    assert "1 of 1 zombie (100%) in 1 h were false alarms" in message.text
    [over] = watched.look(601)
    assert over.text == "over: false positives are at most 5% again"
    assert Thresholds().longest_s == FALSE_WINDOWS * 600


def test_a_zombie_older_than_the_longest_window_does_not_count_as_false() -> None:
    at = NOW - Thresholds().longest_s
    for since, counts in ((at, False), (at + 1, True)):
        lines = [line("zombie", since, job_id="j"), line("stale_report", since, job_id="j")]
        assert bool(find(lines, NOW, ["false_positives"], Thresholds())) is counts


# ------------------------------------------------------------------------------------------- a change


def test_a_successor_goes_on_from_what_was_told() -> None:
    lines = [line("dead"), line("dead")]
    first, second = (Incidents(["dead"], Thresholds()) for _ in range(2))
    [message] = first.update(lines, NOW, Rows())
    second.resume(first.reported())
    assert second.update(lines, NOW + 300, Rows()) == []
    [over] = second.update(lines, NOW + 600, Rows())
    assert (over.since, over.numbers) == (message.since, {"told": 2})


# --------------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize(
    "limits",
    [
        {"crashes": 0},
        {"zombies_max": -1},
        {"false_max": 1.0},
        {"window_s": 0.5, "again_s": 0.0},
        {"window_s": 86_401},
        {"again_s": 301},
        {"again_s": -1},
    ],
)
def test_limits_that_make_no_sense_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(limits))):
        Thresholds(**limits)


@pytest.mark.parametrize(
    "limits",
    [
        {"crashes": 1},
        {"zombies_max": 0},
        {"false_max": 0.0},
        {"window_s": 1.0, "again_s": 0.5},
        {"window_s": 86_400.0},
        {"again_s": 0.0},
        {"again_s": 300.0},
    ],
)
def test_limits_may_be_as_strict_and_as_lax_as_they_make_sense(limits: dict[str, Any]) -> None:
    assert Thresholds(**limits)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "needs a channel"),
        ({"log": True, "on": ["party"]}, "no alert on 'party'"),
        ({"log": True, "on": []}, "needs a condition"),
        ({"log": True, "limits": {"zombies": 3}}, "no limit 'zombies'"),
        ({"command": "notify --now"}, "a list of words"),
        ({"log": True, "secret": "0123456789"}, "for a webhook"),
        ({"log": True, "private": True}, "for a webhook"),
        ({"webhook": "http://example.org/"}, "begins with https://"),
        ({"webhook": "ftp://example.org/", "private": True}, "begins with https://"),
        ({"webhook": "https:///path"}, "names no host"),
        ({"webhook": "https://exa mple.org/"}, "not a URL"),
        ({"webhook": "https://example.org:port/"}, "not a URL"),
        ({"webhook": "https://example.org/", "secret": "short"}, "too short"),
    ],
)
def test_an_alert_that_can_never_work_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        declare(**given)


# ------------------------------------------------------------------------------------------- messages


def message_of(make: Callable[[int], str], jobs: int = 99) -> Message:
    [message] = Watched("dead").look(0, *(line("dead", reason=make(n), task=make(n)) for n in [1] * jobs))
    return message


@pytest.mark.parametrize("char", ["x", "\x01", "\N{GRINNING FACE}", '"', "\n", "\ud800"])
def test_a_message_is_bounded_whatever_a_job_says(char: str) -> None:
    message = message_of(lambda _: char * 100_000)
    body = message.body("sqlite:///jobs.db")
    assert len(body) <= BODY_MAX
    assert message.jobs_concerned == 99
    assert len(message.jobs) == JOBS_MAX


SECRETS = [
    "could not connect to postgresql://app:hunter2@db/jobs",
    "POST https://x:hunter2@example.org/a failed",
    "password=hunter2&x=1",
    "{'api_key': 'hunter2'}",
    'headers: {"Authorization": "Bearer hunter2"}',
    "Authorization: Basic hunter2",
    "AWS_SECRET_ACCESS_KEY=hunter2",
    "token = hunter2",
]


@pytest.mark.parametrize("reason", SECRETS)
def test_secrets_in_a_reason_are_hidden(reason: str) -> None:
    body = message_of(lambda _: reason, jobs=1).body("postgresql://app:hunter2@db/jobs")
    assert b"hunter2" not in body
    assert b"***" in body


def test_what_is_no_secret_is_shown() -> None:
    text = "worker box/1 was lost: its process was killed by SIGKILL; crashed 3 times (crashes_max=3)"
    assert hide_secrets(text) == text


def test_a_line_of_the_log_is_one_line() -> None:
    assert one_line("a\nb\r\n\x1b[31mc\u2028d", 80) == "a b [31mc d"
    assert one_line("x" * 100, 10) == "x" * 9 + "…"


# ------------------------------------------------------------------------------------------------- flow


def stands(kind: str, at: float, **given: Any) -> Line:
    """A line of what stands; the same seq for the same thing."""
    subject = f"{kind} {given.get('task')} {given.get('queue')} {given.get('worker')}"
    named: dict[str, Any] = {"job_id": "", "fence": 0, "task": ""} | given
    return Line(seq=-1 - sum(map(ord, subject)), at=at, kind=kind, **named)


def zombies(number: int, decision: str, **given: Any) -> list[Line]:
    return [line("zombie", decision=decision, **given) for _ in range(number)]


def test_attempts_that_do_not_run_again_are_told_below_a_share_and_by_what_became_of_them() -> None:
    ten = [*zombies(8, "retry"), *zombies(1, "hold"), *zombies(1, "bury")]
    [low] = Watched("recovery_rate").look(0, *ten)
    assert low.text == "only 80% of 10 attempts that lost their worker in 1 h run again: 1 held, 1 dead"
    assert low.numbers == {"zombies": 10, "recovered": 8, "rate": 0.8, "rate_min": 0.9, "window_s": 3600.0}
    assert low.jobs_concerned == 2, "those that do not run again"
    assert Watched("recovery_rate").look(0, *ten[1:]) == [], "nine are too few for a share"
    assert Watched("recovery_rate", recovered_min=0.8).look(0, *ten) == [], "just enough run again"
    found = [*zombies(9, "retry"), line("dead"), stands("overdue", NOW - 9, job_id="j")]
    assert Watched("recovery_rate").look(0, *found) == [], "nine of ten"
    [left] = Watched("recovery_rate", recovered_min=0.91).look(0, *found)
    assert left.text.endswith("1 with a lease that ran out and that nobody has settled")
    assert Watched("recovery_rate").look(3601, *ten) == [], "long ago"
    assert Watched("recovery_rate").look(0, *zombies(5, "undo"), *zombies(5, "cancel")) == []


def test_a_late_detection_is_told_with_the_worst_and_is_over_after_a_window() -> None:
    watched = Watched("slow_detection")
    late = [line("zombie", silent_s=seconds) for seconds in (61.0, 600.0, 90.0)]
    assert watched.look(0, line("zombie", silent_s=60.0), line("zombie", silent_s=None)) == []
    [told_of] = watched.look(1, *late)
    worst = late[1]
    assert told_of.text == (
        "3 of 5 lost attempts in 10 min had been silent for more than 1 min when it was found, the worst for 10 min "
        f"(t on {worst.worker}); is a reaper alive, and are leases that long?"
    )
    assert told_of.numbers == {"slow": 3, "zombies": 5, "worst_s": 600.0, "detection_s": 60.0, "window_s": 600.0}
    assert [message.status for message in watched.look(601)] == ["over"]
    nobody = Watched("slow_detection").look(0, line("zombie", silent_s=61.0, worker=""))
    assert "on an unknown worker" in nobody[0].text


def test_a_backlog_is_told_above_its_limit_and_over_below_half_of_it() -> None:
    watched = Watched("backlog")
    assert watched.look(0, stands("backlog", NOW - 600, queue="mail", amount=1)) == []
    [new] = watched.look(1)
    assert new.text == "queue mail is behind: its oldest job has been due for 10 min, and 1 job or more are due"
    assert (new.task, new.queue, new.jobs_concerned) == (None, "mail", 0)
    assert new.numbers == {"waited_s": 601.0, "backlog_s": 600.0, "due": 1}
    watched.lines[:] = [stands("backlog", NOW - 300, queue="mail", amount=2)]
    assert watched.look(1) == [], "301 s"
    assert told(watched.look(0)) == [("backlog", "over", 0)], "300 s"
    watched.lines[:] = [stands("backlog", NOW - 600, queue="mail")]
    assert told(watched.look(1)) == [("backlog", "new", 0)]


@pytest.mark.parametrize(
    ("kind", "given", "text"),
    [
        ("no_worker", {"queue": "mail", "amount": 3}, "no worker serves queue mail, and 3 jobs or more are due there"),
        (
            "unknown_task",
            {"queue": "mail", "task": "shop.old", "amount": 3},
            "no living worker has task shop.old, and 3 jobs or more of it are due in queue mail",
        ),
    ],
)
def test_jobs_that_nobody_would_claim_are_told_above_a_limit_until_somebody_would(
    kind: Any, given: dict[str, Any], text: str
) -> None:
    watched = Watched(kind)
    assert watched.look(120, stands(kind, NOW, **given)) == []
    [new] = watched.look(121)
    assert (new.text, new.numbers["due"], new.numbers["unserved_s"]) == (text, 3, 120.0)
    watched.lines[:] = [stands(kind, NOW + 121, **given)]
    assert watched.look(121) == [], "a successor has only just seen it, and it still stands"
    watched.lines.clear()
    assert told(watched.look(122)) == [(kind, "over", 0)]


def test_a_task_that_is_unknown_in_several_queues_is_one_incident() -> None:
    lines = [stands("unknown_task", NOW - 200, task="old", queue=queue, amount=2) for queue in "abcd"]
    [new] = Watched("unknown_task").look(0, *lines)
    assert new.text == "no living worker has task old, and 8 jobs or more of it are due in queues a, b, c and 1 more"
    assert new.numbers["queues"] == list("abcd")


def test_silent_workers_are_told_after_a_while_and_further_ones_later() -> None:
    watched = Watched("silent_worker")
    said = {"host": "h", "reason": "its last beat was long ago"}
    assert watched.look(30, stands("silent_worker", NOW, worker="a", **said)) == []
    [new] = watched.look(31)
    assert new.text.startswith("worker a on h is silent: its last beat was long ago; it hangs")
    assert (new.task, new.numbers) == (None, {"workers": 1, "names": ["a"]})
    assert watched.look(32, stands("silent_worker", NOW + 32, worker="b", **said)) == []
    [more] = watched.look(331)
    assert (more.status, more.text) == (
        "more",
        "2 workers are silent (a, b); worker b on h is silent: its last beat was long ago",
    )
    watched.lines.clear()
    assert told(watched.look(332)) == [("silent_worker", "over", 0)]


def test_an_error_rate_is_told_above_its_limit_and_over_at_half_of_it() -> None:
    def rate(failed: int, attempts: int) -> Line:
        return stands("error_rate", NOW, task="pay", amount=failed, out_of=attempts, reason="as counted")

    watched = Watched("error_rate")
    for failed, attempts in ((20, 40), (19, 19)):
        watched.lines.clear()
        assert watched.look(0, rate(failed, attempts)) == []
    watched.lines.clear()
    assert len(Watched("error_rate").look(0, rate(20, 39))) == 1
    [new] = watched.look(0, rate(21, 40))
    assert (new.text, new.task) == ("52% of the attempts of pay failed: as counted", "pay")
    assert new.numbers == {"failed": 21, "attempts": 40, "rate": 0.525, "rate_max": 0.5}
    watched.lines[:] = [rate(26, 100)]
    assert watched.look(0) == []
    watched.lines[:] = [rate(25, 100)]
    assert told(watched.look(0)) == [("error_rate", "over", 0)]


@pytest.mark.parametrize("kind", ["backlog", "no_worker"])
def test_the_end_of_one_incident_forgets_no_other(kind: Any) -> None:
    watched = Watched("backlog", "no_worker", "silent_worker", "error_rate")
    lines = [stands(kind, NOW - 900, queue=queue, amount=1) for queue in ("a", "b")]
    assert sorted(str(message.queue) for message in watched.look(0, *lines)) == ["a", "b"]
    watched.lines.remove(lines[0])
    assert told(watched.look(1)) == [(kind, "over", 0)]
    assert watched.look(2) == [], "b was told, and still stands"
