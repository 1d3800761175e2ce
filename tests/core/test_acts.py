"""What a person may do: every act in every state; an illegal one raises."""

from collections.abc import Callable

import msgspec
import pytest

from holdfast.core import acts
from holdfast.core.machine import LIVE, MOVES, State, Transition
from holdfast.core.records import Job
from holdfast.core.verdict import Verdict
from holdfast.errors import IllegalMove
from tests.factory import a_job

NOW = 1_700_000_000.0
Act = Callable[[Job], Verdict]

ACTS: dict[str, Act] = {
    "cancel": lambda job: acts.cancel(job, actor="ann"),
    "revive": lambda job: acts.revive(job, NOW, actor="ann"),
    "answer retry": lambda job: acts.resolve(job, "retry", NOW, actor="ann"),
    "answer done": lambda job: acts.resolve(job, "done", NOW, actor="ann"),
    "answer fail": lambda job: acts.resolve(job, "fail", NOW, actor="ann"),
    "hold": lambda job: acts.hold(job, actor="ann"),
    "reschedule": lambda job: acts.reschedule(job, actor="ann", priority=5),
}

# What each act makes of a job in each state; what is not here must raise.
LEADS_TO = {
    ("cancel", "ready"): "cancelled",
    ("cancel", "running"): "running",  # asked to stop
    ("cancel", "waiting"): "cancelled",
    ("cancel", "held"): "cancelled",
    ("revive", "held"): "ready",
    ("revive", "dead"): "ready",
    ("revive", "cancelled"): "ready",
    ("answer retry", "held"): "ready",
    ("answer done", "held"): "done",
    ("answer fail", "held"): "dead",
    ("hold", "ready"): "held",
    ("hold", "waiting"): "held",
    ("reschedule", "ready"): "ready",
}
STAYS = {("cancel", "running"), ("reschedule", "ready")}
PAIRS = [(name, state) for name in ACTS for state in State]


@pytest.mark.parametrize(("name", "state"), PAIRS)
def test_every_act_in_every_state_leads_where_it_should_or_raises(name: str, state: State) -> None:
    job = a_job(state)
    if (name, state.value) in LEADS_TO:
        assert ACTS[name](job).state == LEADS_TO[name, state.value]
    else:
        with pytest.raises(IllegalMove, match=state.value):
            ACTS[name](job)


@pytest.mark.parametrize(("name", "state"), [pair for pair in LEADS_TO if pair not in STAYS])
def test_an_act_that_changes_the_state_is_a_move_of_the_machine_and_raises_the_fence(name: str, state: str) -> None:
    verdict = ACTS[name](a_job(State(state)))
    assert MOVES[State(state)][verdict.move] is verdict.state
    assert verdict.raises_fence


@pytest.mark.parametrize(("name", "state"), sorted(STAYS))
def test_an_act_that_leaves_the_state_leaves_the_attempt_its_fence(name: str, state: str) -> None:
    assert not ACTS[name](a_job(State(state))).raises_fence


@pytest.mark.parametrize(("name", "state"), LEADS_TO)
def test_every_act_is_written_down_with_its_actor_and_costs_nothing(name: str, state: str) -> None:
    verdict = ACTS[name](a_job(State(state)))
    assert verdict.events
    assert {note.actor for note in verdict.events} == {"ann"}
    assert (verdict.failures, verdict.crashes, verdict.zombies) == (0, 0, 0)


KINDS = {
    "cancel": ["cancelled"],
    "revive": ["revived"],
    "answer retry": ["revived"],
    "answer done": ["resolved"],
    "answer fail": ["resolved", "dead"],
    "hold": ["held"],
    "reschedule": ["moved"],
}


@pytest.mark.parametrize(("name", "state"), [pair for pair in LEADS_TO if pair != ("cancel", "running")])
def test_what_is_written_down(name: str, state: str) -> None:
    assert [note.kind for note in ACTS[name](a_job(State(state))).events] == KINDS[name]


def test_a_running_job_is_only_asked_to_stop() -> None:
    verdict = acts.cancel(a_job(State.RUNNING), actor="ann", reason="wrong order")
    assert (verdict.state, verdict.cancel_requested, verdict.error) == (State.RUNNING, True, None)
    [note] = verdict.events
    assert (note.kind, note.detail["note"]) == ("moved", "wrong order")


@pytest.mark.parametrize("state", sorted(LIVE - {State.RUNNING}))
def test_a_cancelled_job_keeps_the_reason(state: State) -> None:
    assert acts.cancel(a_job(state), actor="ann", reason="wrong order").error == "wrong order"
    assert acts.cancel(a_job(state), actor="ann").error == "cancelled by ann"


@pytest.mark.parametrize("state", [State.HELD, State.DEAD, State.CANCELLED])
def test_a_revived_job_starts_with_fresh_budgets_now_and_is_no_longer_asked_to_stop(state: State) -> None:
    job = a_job(state, failures=9, crashes=9, cancel_requested=True)
    verdict = acts.revive(job, NOW, actor="ann", reason="fixed")
    assert (verdict.move, verdict.run_at, verdict.fresh_budgets) == (Transition.REVIVE, NOW, True)
    assert verdict.cancel_requested is False
    assert verdict.error is None
    assert verdict.events[0].detail == {"from": state.value, "note": "fixed"}


def test_the_three_answers_to_a_held_job() -> None:
    held = a_job(State.HELD)
    assert acts.resolve(held, "retry", NOW, actor="ann") == acts.revive(held, NOW, actor="ann")
    done = acts.resolve(held, "done", NOW, actor="ann", reason="saw it", result='"paid"')
    assert (done.state, done.result, done.error) == (State.DONE, '"paid"', None)
    assert done.events[0].detail == {"answer": "done", "note": "saw it"}
    fail = acts.resolve(held, "fail", NOW, actor="ann")
    assert (fail.state, fail.error, fail.result) == (State.DEAD, "given up by ann", None)
    assert acts.resolve(held, "fail", NOW, actor="ann", reason="lost cause").error == "lost cause"
    for reason, said in ((None, "given up by ann"), ("lost cause", "lost cause")):
        buried = acts.resolve(held, "fail", NOW, actor="ann", reason=reason)
        assert (buried.error, buried.events[-1].detail) == (said, {"reason": said})


@pytest.mark.parametrize("state", sorted(set(State) - {State.HELD}))
def test_only_a_held_job_waits_for_an_answer(state: State) -> None:
    with pytest.raises(IllegalMove, match="only a held job"):
        acts.resolve(a_job(state), "done", NOW, actor="ann")


def test_a_held_job_keeps_the_reason() -> None:
    assert acts.hold(a_job(State.READY), actor="ann").error == "held by ann"
    assert acts.hold(a_job(State.READY), actor="ann", reason="look first").error == "look first"


def test_a_ready_job_is_moved_by_what_is_given_and_nothing_else() -> None:
    job = a_job(State.READY)
    both = acts.reschedule(job, actor="ann", priority=0, run_at=0.0)
    assert (both.priority, both.run_at) == (0, 0.0)
    assert both.events[0].detail == {"priority": 0, "run_at": 0.0}
    one = acts.reschedule(job, actor="ann", priority=-3)
    assert (one.priority, one.run_at) == (-3, None)
    assert one.events[0].detail == {"priority": -3}


def test_a_cancel_of_a_running_job_is_journalled_once_with_actor_and_note() -> None:
    job = a_job(State.RUNNING)
    [note] = acts.cancel(job, actor="ann", reason="a typo").events
    assert (note.kind, note.actor, note.detail) == ("moved", "ann", {"cancel_requested": True, "note": "a typo"})
    again = acts.cancel(msgspec.structs.replace(job, cancel_requested=True), actor="ann")
    assert (again.events, again.cancel_requested) == ((), True)
