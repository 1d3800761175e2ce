"""`holdfast errors`, and the errors of real attempts behind it."""

import pytest

from holdfast.core.settlement import settlement
from holdfast.core.verdict import Failed, Lost, Outcome, judge
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from tests.cli.conftest import Run
from tests.factory import start


def ends(store: Store, outcome: Outcome, release: str | None = None, task: str = "pay") -> str:
    job = start(store, task=task, attempts_max=1)
    store.settle([settlement(job, judge(outcome, job, store.now().wall, chance=0.5, release=release))])
    return job.id


@pytest.fixture
def mess(store: Store, clock: FakeClock) -> list[str]:
    ids = []
    for number, release in ((41, "1.0"), (42, "1.1"), (43, "1.1")):
        failed = Failed(f"ValueError: no order {number}", error_kind="ValueError", origin="shop.pay")
        ids.append(ends(store, failed, release))
        clock.advance(10)
    ids.append(ends(store, Lost("exit", "died", {"signal": "SIGKILL"}), task="ship"))
    return ids


def test_errors_are_grouped_with_their_releases_and_an_example(run: Run, mess: list[str]) -> None:
    first, second = run.json("errors")
    assert first["message"] == "ValueError: no order #"
    told = {name: first[name] for name in ("task", "kind", "origin", "attempts", "releases", "example")}
    assert told == {
        "task": "pay",
        "kind": "ValueError",
        "origin": "shop.pay",
        "attempts": 3,
        "releases": ["1.0", "1.1"],
        "example": mess[2],
    }
    assert first["first_seen"] < first["last_seen"]
    assert (second["task"], second["origin"], second["message"]) == ("ship", "exit", "killed by SIGKILL")
    assert run.json("jobs", "show", mess[0])["fingerprint"] == first["fingerprint"]


def test_people_read_them_in_words(run: Run, mess: list[str]) -> None:
    said = run("errors").stdout
    assert "ValueError: no order #, in shop.pay" in said
    assert "crash, found by exit: killed by SIGKILL" in said
    assert "1.0, 1.1" in said
    assert mess[2] in said


def test_errors_of_one_task_and_of_a_time_are_shown_alone(run: Run, mess: list[str]) -> None:
    assert [each["task"] for each in run.json("errors", "--task", "ship")] == ["ship"]
    assert [each["attempts"] for each in run.json("errors", "--limit", "1")] == [3]
    assert run.json("errors", "--since", "2999-01-01T00:00") == []
    assert run("errors", "--since", "2999-01-01T00:00").stdout == "No errors in that time.\n"


@pytest.mark.parametrize("since", ["soon", "25:00", "2026-13-01", "9999999999d", ""])
def test_what_is_no_instant_is_refused(run: Run, store: Store, since: str) -> None:
    assert "write 2h, 14:00, or" in run("errors", "--since", since, code=2).stderr
