"""What people do with jobs, queues and the store itself."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import click
import click.testing
import pytest

from holdfast.acts import store as store_acts
from holdfast.clock import SystemClock
from holdfast.core import acts
from holdfast.core.acts import Move
from holdfast.core.continuity import Doubt
from holdfast.core.machine import State
from holdfast.core.records import Filter, Job
from holdfast.core.verdict import Failed
from holdfast.stores.protocol import Reply, Store
from holdfast.stores.sql import parse_migration
from holdfast.stores.sqlite import store as sqlite
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing import FakeClock
from tests.cli.conftest import PAST_S, Run, lose
from tests.factory import EXPIRED, add, again, enrol, job_in, park, row, settle, start, start_flow

NEW = "CREATE TABLE holdfast_new (x);"


@pytest.mark.parametrize("state", [State.HELD, State.DEAD, State.CANCELLED])
def test_retry(run: Run, store: Store, state: State) -> None:
    job = job_in(store, state)
    result = run("jobs", "retry", job.id, "--by", "ann", "--note", "disk is back")
    assert result.stdout == f"{job.id}  ready\n"
    event = store.journal(job.id)[-1]
    assert (event.kind, event.actor, event.detail["note"]) == ("revived", "ann", "disk is back")
    assert row(store, job.id).crashes == row(store, job.id).failures == 0


def test_cancel(run: Run, store: Store) -> None:
    ready, running = add(store), start(store)
    result = run("jobs", "cancel", ready.id, running.id, "--note", "ordered twice")
    assert result.stdout == f"{ready.id}  cancelled\n{running.id}  running (asked to stop)\n"
    assert row(store, running.id).cancel_requested
    assert row(store, ready.id).error == "ordered twice"


@pytest.mark.parametrize(
    ("answer", "asks"), [("approve", False), ("done", False), ("fail", False), ("approve", True), ("fail", True)]
)
def test_an_answer_opens_the_store_once_and_reads_the_job_once_before_and_once_after(
    run: Run, store: Store, monkeypatch: pytest.MonkeyPatch, answer: str, asks: bool
) -> None:
    held = job_in(store, State.HELD)
    job = park(store, start_flow(store), "signal:approve:1", question="Ship it?") if asks else held
    opened: list[str] = []
    read: list[str] = []
    real_open, real_get = SqliteStore.__init__, SqliteStore.get
    monkeypatch.setattr(SqliteStore, "__init__", lambda *a, **kw: (opened.append(a[1]), real_open(*a, **kw))[1])
    monkeypatch.setattr(SqliteStore, "get", lambda self, id: (read.append(id), real_get(self, id))[1])
    run("held", answer, job.id)
    assert (len(opened), read) == (1, [job.id, job.id])


@pytest.mark.parametrize(("act", "word"), [("approve", "yes"), ("fail", "no")])
def test_an_answer_names_the_question_that_it_went_to(run: Run, store: Store, act: str, word: str) -> None:
    job = park(store, start_flow(store), "signal:approve:1", question="Ship order 42?")
    assert run("held", act, job.id).stdout == f'{job.id}  ready  {word} to "Ship order 42?"\n'


def test_the_actor_is_the_user_unless_by_names_another(run: Run, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = add(store), add(store), add(store)
    monkeypatch.setenv("LOGNAME", "ann")
    run("jobs", "cancel", first.id)
    monkeypatch.setenv("HOLDFAST_BY", "deploy bot")
    run("jobs", "cancel", second.id)
    run("jobs", "cancel", third.id, "--by", "eve")
    actors = [str(store.journal(job.id)[-1].actor) for job in (first, second, third)]
    assert actors[0].startswith("ann@")
    assert actors[1:] == ["deploy bot", "eve"]


def test_delete(run: Run, store: Store) -> None:
    job = job_in(store, State.DEAD)
    assert run("jobs", "delete", "-y", job.id).stdout == f"{job.id}  deleted\n"
    assert store.get(job.id) is None
    assert store.journal(job.id) == []


def test_a_job_that_a_workflow_waits_for_is_deleted_only_when_the_workflow_knows(run: Run, store: Store) -> None:
    parent = start_flow(store)
    child = add(store, parent=parent.id)
    park(store, parent, f"job:{child.id}")
    refused = run("jobs", "delete", "-y", child.id, code=6)
    assert f"workflow {parent.id} waits for job {child.id} and would wait for ever" in " ".join(refused.stderr.split())
    assert store.get(child.id) is not None
    run("jobs", "cancel", child.id)
    assert row(store, parent.id).state is State.READY, "it is told"
    run("jobs", "delete", "-y", child.id)
    assert store.get(child.id) is None


def test_acts_print_the_jobs_as_json(run: Run, store: Store) -> None:
    job = job_in(store, State.DEAD)
    [shown] = run.json("jobs", "retry", job.id)
    assert (shown["id"], shown["state"]) == (job.id, "ready")
    result = run("jobs", "cancel", "--json", "nobody", code=5)
    assert json.loads(result.stdout) == []


def test_held_answers(run: Run, store: Store) -> None:
    again, happened, gone = (job_in(store, State.HELD) for _ in range(3))
    assert [line.split()[0] for line in run("held", "list").stdout.splitlines()[1:]] == [gone.id, happened.id, again.id]
    run("held", "approve", again.id)
    run("held", "done", happened.id, "--result", '{"receipt": 7}', "--note", "seen on the card")
    run("held", "fail", gone.id, "--note", "withdrawn")
    assert [row(store, job.id).state for job in (again, happened, gone)] == [State.READY, State.DONE, State.DEAD]
    assert row(store, happened.id).result == '{"receipt":7}'
    assert row(store, gone.id).error == "withdrawn"
    assert run("held", "list").stdout == ""
    resolved = store.journal(happened.id)[-1]
    assert (resolved.kind, resolved.detail["note"]) == ("resolved", "seen on the card")


def test_a_result_that_is_no_json_changes_nothing(run: Run, store: Store) -> None:
    job = job_in(store, State.HELD)
    said = run("held", "done", job.id, "--result", "{oops", code=2).stderr
    assert "not valid JSON" in said
    assert """'"receipt 7"'""" in said  # an example, with the quotes that a shell needs
    assert row(store, job.id).state is State.HELD


def test_dead_list_and_revive(run: Run, store: Store) -> None:
    one, two = job_in(store, State.DEAD, queue="mail"), job_in(store, State.DEAD)
    assert "no luck" in run("dead", "list").stdout
    assert [job["id"] for job in run.json("dead", "list", "--queue", "mail")] == [one.id]
    run("dead", "revive", one.id)
    assert [row(store, job.id).state for job in (one, two)] == [State.READY, State.DEAD]


@pytest.fixture
def at_the_prompt(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """What others do while a person at a terminal reads the question; the answer is yes."""
    meanwhile: list[Callable[[], object]] = []
    monkeypatch.setattr(sys.stdin.__class__, "isatty", lambda stream: True, raising=False)
    monkeypatch.setattr(click.testing._NamedTextIOWrapper, "isatty", lambda stream: True, raising=False)
    monkeypatch.setattr(click, "confirm", lambda *args, **kwargs: [act() for act in meanwhile])
    return meanwhile


def crash_until_held(store: Store, job: Job) -> None:
    """Bring a dead job back; its next attempt may have paid, and a person is asked."""
    [reply] = store.move([Move(job.seen, acts.revive(job, 0.0, actor="bob"))])
    assert reply is Reply.ACCEPTED
    settle(store, again(store, row(store, job.id)), EXPIRED)
    assert row(store, job.id).state is State.HELD


def test_revive_all_starts_no_job_that_is_held_by_the_time_of_the_answer(
    run: Run, store: Store, at_the_prompt: list[Callable[[], object]]
) -> None:
    one, other = job_in(store, State.DEAD, on_crash="hold"), job_in(store, State.DEAD)
    at_the_prompt.append(lambda: crash_until_held(store, one))
    result = run("dead", "revive", "--all")
    assert result.stdout == "1 job revived\n"
    now = row(store, one.id)
    assert "Left alone, because they moved on: 1 job." in result.stderr
    assert f"job {one.id} was dead (fence {one.fence}) and is held (fence {now.fence}) by now" in result.stderr
    assert (now.state, row(store, other.id).state) == (State.HELD, State.READY)


def test_revive_all_starts_no_job_that_died_a_second_time_after_the_list(
    run: Run, store: Store, at_the_prompt: list[Callable[[], object]]
) -> None:
    job = job_in(store, State.DEAD)

    def die_again() -> None:
        store.move([Move(job.seen, acts.revive(job, 0.0, actor="bob"))])
        settle(store, again(store, row(store, job.id)), Failed("the account is closed", final=True))

    at_the_prompt.append(die_again)
    run("dead", "revive", "--all")
    assert (row(store, job.id).state, row(store, job.id).fence > job.fence) == (State.DEAD, True)


def test_delete_leaves_a_job_that_was_brought_back_at_the_prompt(
    run: Run, store: Store, at_the_prompt: list[Callable[[], object]]
) -> None:
    one, other = job_in(store, State.DEAD), job_in(store, State.DEAD)
    at_the_prompt.append(lambda: store.move([Move(one.seen, acts.revive(one, 0.0, actor="bob"))]))
    said = run("jobs", "delete", one.id, other.id, code=6)
    assert f"job {one.id} was dead" in said.stderr
    assert (row(store, one.id).state, store.get(other.id)) == (State.READY, None)


@pytest.mark.parametrize(
    ("state", "told"),
    [(State.HELD, "holdfast held approve"), (State.CANCELLED, "holdfast jobs retry"), (State.READY, "not dead")],
)
def test_dead_revive_refuses_a_job_that_is_not_dead(run: Run, store: Store, state: State, told: str) -> None:
    job = job_in(store, state)
    for fence in ((), ("--fence", str(job.fence))):
        said = run("dead", "revive", job.id, *fence, code=6).stderr
        assert f"is {state.value}, not dead" in said
        assert told in said
    assert row(store, job.id) == job


def test_revive_all_leaves_alone_what_it_must(run: Run, store: Store) -> None:
    mail = [job_in(store, State.DEAD, queue="mail") for _ in range(3)]
    other = job_in(store, State.DEAD)
    taken = job_in(store, State.DEAD, queue="mail", key="k")
    add(store, key="k")
    result = run("dead", "revive", "--all", "--queue", "mail", "-y")
    assert result.stdout == "3 jobs revived\n"
    assert "Left alone" in result.stderr
    assert {row(store, job.id).state for job in mail} == {State.READY}
    assert {row(store, job.id).state for job in (other, taken)} == {State.DEAD}
    done = run.json("dead", "revive", "--all", "-y")
    assert {name: done[name] for name in ("count", "done", "refused", "left_alone")} == {
        "count": 2,
        "done": 1,
        "refused": 1,
        "left_alone": 0,
    }
    assert run("dead", "revive", "--all", "--queue", "nothing").stdout == "0 jobs revived\n"


def test_purge_and_prune_take_what_is_old_enough(run: Run, store: Store, clock: FakeClock) -> None:
    old = {state: job_in(store, state) for state in State}
    clock.advance(PAST_S)
    new = job_in(store, State.DONE)
    assert run("dead", "purge", "-y", "--older-than", "1h").stdout == "0 deleted\n"
    assert run("db", "prune", "--older-than", "50s").stdout == "3 deleted\n"
    assert left(store) == {state.value for state in State} - {"cancelled", "rolled_back"}
    assert store.get(old[State.DONE].id) is None
    assert store.get(new.id) is not None
    assert run("dead", "purge", "-y", "--older-than", "50").stdout == "1 deleted\n"
    assert run.json("db", "prune", "--older-than", "0s", "--states", "done") == {"deleted": 1}
    assert left(store) == {"ready", "running", "waiting", "held"}


def test_prune_goes_on_page_by_page(run: Run, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_acts, "PURGE_PAGE", 3)
    for _ in range(7):
        job_in(store, State.DONE)
    assert run("db", "prune", "--older-than", "10s").stdout == "7 deleted\n"


def test_pause_and_resume(run: Run, store: Store) -> None:
    add(store, queue="mail")
    result = run("queues", "pause", "mail", "typo")
    assert result.stdout == "mail paused\ntypo paused\n"
    assert "typo yet" in result.stderr
    assert store.paused() == ["mail", "typo"]
    run("queues", "resume", "typo")
    assert store.paused() == ["mail"]


def test_pause_and_resume_print_what_is_so_now_as_json(run: Run, store: Store) -> None:
    paused = run("queues", "pause", "mail", "typo", "mail", "--json")
    assert json.loads(paused.stdout) == [{"queue": "mail", "paused": True}, {"queue": "typo", "paused": True}]
    assert "typo yet" in paused.stderr
    assert run.json("queues", "resume", "mail", "-q") == [{"queue": "mail", "paused": False}]
    assert store.paused() == ["typo"]


def test_scan_says_what_it_found_and_what_to_do(run: Run, store: Store) -> None:
    assert run("scan").stdout == "No zombies: every running job has a living worker.\n"
    job = lose(store, on_crash="hold")
    dry = run("scan")
    assert job.id in dry.stdout
    assert "Nothing was changed; to recover: holdfast scan --fix" in dry.stderr
    fixed = run("scan", "--fix")
    assert "1 of 1 job recovered, of these 1 held." in fixed.stderr
    assert "holdfast held list" in fixed.stderr
    assert row(store, job.id).state is State.HELD


def test_scan_shows_a_table_that_a_person_can_read_and_json_has_all(run: Run, store: Store) -> None:
    for _ in range(53):
        lose(store, on_crash="hold")
    dry = run("scan")
    assert len(run.json("scan")["zombies"]) == 53
    *table, more = dry.stdout.splitlines()
    assert len(table) == 1 + 50
    assert more == "… and 3 more; `--json` lists all"
    assert dry.stderr.startswith("53 jobs lost their worker.")
    fixed = run("scan", "--fix")
    assert fixed.stdout.endswith(f"{more}\n")
    assert fixed.stderr.startswith("53 of 53 jobs recovered, of these 53 held.")


def test_init_makes_a_store_and_may_be_repeated(run: Run, folder: Path, url: str) -> None:
    wanted = len(sqlite._MIGRATIONS)
    assert run("db", "init", "--db", url).stdout == f"{url} made (schema {wanted})\n"
    assert run("db", "init", "--db", url).stdout == f"{url} is up to date (schema {wanted})\n"
    assert run("db", "migrate", "--db", url).stdout == f"{url} is up to date (schema {wanted})\n"
    assert run("db", "check", "--db", url).stdout == "ok\n"
    assert run("jobs", "list", "--db", url).stdout == ""
    run("db", "init", "--db", f"sqlite:///{folder}/no/such/folder.db", code=3)


def test_migrate_brings_an_old_store_up_to_date(
    run: Run, store: Store, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = len(sqlite._MIGRATIONS)
    monkeypatch.setattr(sqlite, "_MIGRATIONS", [*sqlite._MIGRATIONS, parse_migration(old + 1, NEW)])
    status = run("db", "status", "--json", code=4)
    assert (json.loads(status.stdout)["schema"], json.loads(status.stdout)["schema_wanted"]) == (old, old + 1)
    assert run("db", "migrate").stdout == f"{url} migrated from schema {old} to {old + 1}\n"
    run("jobs", "list")


def test_init_and_migrate_print_the_schema_as_json(run: Run, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = len(sqlite._MIGRATIONS)
    assert run.json("db", "init", "--db", url) == {"url": url, "schema": wanted, "schema_before": 0}
    assert run.json("db", "init", "--db", url) == {"url": url, "schema": wanted, "schema_before": wanted}
    new = wanted + 1
    monkeypatch.setattr(sqlite, "_MIGRATIONS", [*sqlite._MIGRATIONS, parse_migration(new, NEW)])
    assert run.json("db", "migrate", "--db", url) == {"url": url, "schema": new, "schema_before": wanted}
    status = run.json("db", "status", "--db", url)
    assert status["schema"] == status["schema_wanted"] == new


def test_status_in_words(run: Run, store: Store) -> None:
    add(store)
    lines = run("db", "status").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["store", "schema", "jobs", "workers"]
    assert "1 ready" in lines[2]


def test_the_store_of_one_command_is_closed_after_it(run: Run, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[object] = []
    close = SqliteStore.close
    monkeypatch.setattr(SqliteStore, "close", lambda self: (closed.append(self), close(self))[1])
    run("jobs", "list")
    run("jobs", "show", "nobody", code=5)
    assert len(closed) == 2


def left(store: Store) -> set[str]:
    return {job.state.value for job in store.find(Filter(limit=1000))}


def test_a_store_in_doubt_is_unhealthy_until_a_person_accepts_it(run: Run, store: Store) -> None:
    assert (
        "there is nothing to accept: no worker has reported this store as changed"
        in run("db", "accept", "--note", "x", code=6).stderr
    )
    store.doubt(1, Doubt("rewound", "beats", "12", "11", "box/1"))
    assert "the store was rewound: its count of beats went back from 12 to 11" in run("db", "check", code=7).stderr
    assert run.json("db", "check", code=7)["ok"] is False
    [finding] = [
        each for each in run.json("doctor", code=7)["findings"] if "replaced, rewound or emptied" in each["title"]
    ]
    assert (finding["severity"], "holdfast db accept" in finding["fix"]) == ("problem", True)
    run("db", "accept", "--by", "ann", code=2)  # without a reason
    assert (
        run("db", "accept", "--by", "ann", "--note", "looked").stdout
        == "accepted; this is incarnation 2 of the store\n"
    )
    assert run("db", "check").stdout == "ok\n"


def test_a_table_that_is_missing_is_named(run: Run, store: Store, folder: Path) -> None:
    with sqlite3.connect(folder / "jobs.db") as db:
        db.execute("DROP TABLE holdfast_tally")
    db.close()
    assert "the table holdfast_tally is missing" in run("db", "check", code=7).stderr
    findings = run.json("doctor", code=7)["findings"]
    assert ("Tables are missing", "holdfast_tally") in [(each["title"], each["evidence"]) for each in findings]


def test_a_silent_worker_is_forgotten_with_its_jobs_recovered(run: Run, store: Store, url: str) -> None:
    now = SqliteStore(url)
    enrol(now, name="box/1", boot_id=SystemClock().boot_id)
    now.close()
    run("workers", "forget", "box/1", code=6)  # it beats
    run("workers", "forget", "box/2", code=5)
    job = start(store, enrol(store, name="old"))  # by the clock of this store it is long ago
    result = run("workers", "forget", "old", "--by", "ann")
    assert result.stdout == "old forgotten, 1 of its jobs recovered\n"
    assert row(store, job.id).state is State.READY
    assert [each.name for each in store.workers()] == ["box/1"]
    [zombie] = store.journal(job.id, ["zombie"])
    assert "forgotten by ann" in zombie.detail["cause"]


def test_limits_are_set_shown_and_taken_back(run: Run, store: Store) -> None:
    assert run("queues", "limit", "mail").stdout == "mail: no limits\n"
    shown = run(
        "queues", "limit", "mail", "20", "--group-limit", "2", "--rate", "100/60s", "--burst", "5", "--by", "ann"
    )
    assert shown.stdout == "mail: limit 20, 2 for each group, rate 100/60s, burst 5\n"
    assert run("queues", "limit", "mail", "--rate", "none").stdout == "mail: limit 20, 2 for each group\n"
    view = run.json("queues", "limit", "mail", "none")
    assert (view["limit"], view["group_limit"], view["rate"]) == (None, 2, None)
    assert run("queues", "limit", "mail", "--clear").stdout == "mail: no limits\n"
    assert {event.actor for event in store.journal(kinds=["limited"])} >= {"ann"}


def test_a_group_is_paused_until_an_instant(run: Run, store: Store) -> None:
    run("queues", "pause", "mail", "--group", "acme", "--until", "15m", "--by", "ann")
    [queue] = store.queues()
    assert list(queue.paused_groups) == ["acme"]
    assert (queue.paused_groups["acme"] or 0) - store.now().wall == pytest.approx(900 + PAST_S, abs=60)
    run("queues", "resume", "mail", "--group", "acme")
    assert store.queues()[0].paused_groups == {}
    run("queues", "pause", "mail", "--until", "2030-01-31T08:00Z")
    assert store.queues()[0].paused_until == 1896076800.0
    assert run("queues", "pause", "mail", "--until", "soon", code=2).exit_code == 2
    for late in ("9999-12-31T23:59:59.999999Z", "99999999d"):
        assert "between the years 1970 and 9999" in run("queues", "pause", "other", "--until", late, code=2).stderr
    assert [queue.name for queue in store.queues()] == ["mail"]
