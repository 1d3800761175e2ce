"""The machine itself is tested: with one guard of the SQL dropped, the two stores must stop agreeing."""

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from holdfast.stores.sqlite.batch import Q
from tests.agreement.machine import Stores

QUICK = settings(
    max_examples=600,  # most are found by the first ten
    stateful_step_count=60,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],  # the first finding will do
    suppress_health_check=list(HealthCheck),
)
GUARDS = [
    ("claim", "state = 'ready' AND"),
    ("claim", "AND (:started = 1 OR on_crash = 'retry')"),
    ("claim_worker", "AND gone_at IS NULL"),
    ("beat", "AND job.fence = pulse.fence"),
    ("beat", "AND job.claim_id = pulse.claim_id"),
    ("beat", "AND job.state = 'running'"),
    ("settle", "AND job.fence = ending.fence"),
    ("settle", "AND job.claim_id = ending.claim_id"),
    ("settle", "AND job.state = 'running'"),
    ("settle", "AND (ending.seen_lease_until IS NULL OR job.lease_until <= ending.seen_lease_until + 0.000001)"),
    ("settle", "AND (ending.state = 'done' OR job.cancel_requested = ending.seen_cancel)"),
    ("settle_done", "AND job.fence = ending.fence"),
    ("settle_done", "AND job.claim_id = ending.claim_id"),
    ("move", "AND fence = :seen_fence"),
    ("move", "AND state = :seen_state"),
]


@pytest.mark.parametrize(("query", "guard"), GUARDS, ids=[f"{query} {guard}" for query, guard in GUARDS])
def test_the_machine_misses_it_when_it_is_gone(query: str, guard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Q[query].count(guard) == 1, "mend the guard"
    monkeypatch.setitem(Q, query, Q[query].replace(guard, ""))
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Stores, settings=QUICK)
