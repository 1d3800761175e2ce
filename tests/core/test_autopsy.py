"""The autopsy: what is known of an attempt that was lost, in the same words whoever finds it."""

from holdfast.core.autopsy import LostProcess, autopsy, lines_of, of_worker
from holdfast.core.records import Moment
from tests.factory import a_job, a_worker

NOW = Moment(wall=1_700_000_000.0, lease=500.0)
NOBODY_KNOWS = {"worker": "w", "lease_until": "2023-11-14T22:13:20.000Z", "seconds_overdue": 0.0}


def test_everything_that_is_known_is_in_it() -> None:
    """The list of DESIGN, section 4; the verdict adds the detector, the cause and the decision."""
    worker = a_worker(name="ann", host="node-1", pid=4711, beat_at=NOW.wall - 8.0, rss_mb=12.34)
    job = a_job(
        lease_until=498.0, progress=0.5, note="half", log="one\ntwo", fence=7, attempt=3, claimed_at=NOW.wall - 30
    )
    facts = {"signal": "SIGKILL", "stack": "File x"}
    assert autopsy(job, of_worker(worker, job, NOW), NOW, facts) == {
        "worker": "ann",
        "host": "node-1",
        "pid": 4711,
        "last_beat": "2023-11-14T22:13:12.000Z",
        "lease_until": "2023-11-14T22:13:18.000Z",
        "seconds_since_beat": 8.0,
        "seconds_overdue": 2.0,
        "claimed_at": "2023-11-14T22:12:50.000Z",
        "attempt": 3,
        "started": True,
        "progress": 0.5,
        "note": "half",
        "rss_mb": 12.3,
        "fence_before": 7,
        "fence_after": 8,
        "log": ["one", "two"],
        "signal": "SIGKILL",
        "stack": "File x",
    }


def test_what_nobody_knows_is_left_out() -> None:
    job = a_job(claimed_at=None, started=False, fence=1, attempt=1)
    known = {"attempt": 1, "started": False, "fence_before": 1, "fence_after": 2}
    assert autopsy(job, LostProcess(worker="w"), NOW, {"stack": None}) == NOBODY_KNOWS | known


def test_a_worker_without_a_row_goes_by_its_id() -> None:
    job = a_job(worker="01-w", lease_until=510.0)
    lost_process = of_worker(None, job, NOW)
    assert lost_process == LostProcess(worker="01-w", lease_until=510.0)
    assert autopsy(job, lost_process, NOW, {})["lease_until"] == "2023-11-14T22:13:30.000Z"


def test_lines() -> None:
    assert (lines_of(None), lines_of(""), lines_of("a"), lines_of("a\nb")) == (None, None, ["a"], ["a", "b"])
