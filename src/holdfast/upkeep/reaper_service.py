"""The reaper as a service: in every worker, and as a program of its own, `holdfast reaper`.

The program is for fleets whose workers run with `--no-reaper`, and for hosts that run no worker. Several replicas may
serve at once; one of them holds the duty and works, the others stand by.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from holdfast.clock import Clock
from holdfast.core.recovery import PROOF_S, RENEW_S, SECOND_LOOK_S
from holdfast.errors import FileReplaced
from holdfast.ids import new_id
from holdfast.runtime.duties import DutyHolder, Election
from holdfast.runtime.hooks import Hooks
from holdfast.runtime.service import Service
from holdfast.stores.protocol import Store
from holdfast.upkeep.reaper import Reaper

log = logging.getLogger("holdfast.reaper")

DUTY = "reaper"
MEANWHILE = "no zombies are looked for meanwhile"


def in_worker(
    reaper: Reaper, store: Store, clock: Clock, hooks: Hooks, stopping: threading.Event, grace_s: float
) -> Service:
    """Return the service of a worker: it looks for dead workers until `stopping` is set, or stands by."""

    def turn() -> float | None:
        standby = store.stands_by()
        if standby is not None and not reaper.is_called(standby):
            return None
        reaper.once()
        return until_next_look(reaper, store, grace_s)

    def failed(error: Exception) -> None:
        hooks.emit("error", {"error": str(error)})

    return Service(
        "holdfast-reaper", turn, clock, log, store.look_s, MEANWHILE, jitter=0.25, failed=failed, stopping=stopping
    )


def serve(
    store: Store,
    clock: Clock,
    stop: threading.Event,
    *,
    hooks: Hooks,
    name: str,
    grace_s: float = 0.0,
    interval_s: float = 0.5,
    election: Election | None = None,
    on_turn: Callable[[bool, int], object] = lambda active, settled: None,
) -> int:
    """Reap until `stop` is set; return how many jobs this replica settled.

    A replica takes over within the election's `ttl_s` and `retry_s` of the active one's death, by default three
    intervals (at least 3 s), and within `retry_s` when that one stops in good order. A store that fails is tried again.
    `on_turn` is told after each turn whether this replica is active, and how many it has settled.
    """
    election = election or Election.declare(interval_s, None, None, None)
    holder = f"{name}:{new_id()}"
    post = DutyHolder(store, clock, DUTY, holder, election.ttl_s, hooks, election.renewal_s)
    ask_at = float("-inf")  # when to ask for the duty again
    reaper = Reaper(store, clock, hooks=hooks, grace_s=grace_s, pace_s=interval_s)
    settled, failing, stands_by = 0, False, False

    def turn() -> float | None:
        nonlocal settled, failing, stands_by, ask_at
        now = clock.lease()
        duty = post.duty() if post.is_held or now >= ask_at else None
        if duty is None:
            if not stands_by:
                log.info("another replica has the duty; standing by")
            ask_at = now + election.retry_s if now >= ask_at else ask_at
            reaper.stand_by()
        else:
            settled += reaper.once(under=duty).recovered
        stands_by, failing = duty is None, False
        on_turn(duty is not None, settled)
        return ask_at - now if duty is None else until_next_look(reaper, store, grace_s)

    def failed(error: Exception) -> None:
        nonlocal failing
        if isinstance(error, FileReplaced):  # only a new process can use the store
            raise error
        if not failing:
            hooks.emit("error", {"error": str(error)})
        failing = True

    pause_s = min(interval_s, election.renewal_s)
    Service(
        *("holdfast-reaper", turn, clock, log, pause_s, MEANWHILE), lost=post.refused, failed=failed, stopping=stop
    ).run()
    post.resign()
    on_turn(False, settled)
    hooks.flush()
    return settled


def until_next_look(reaper: Reaper, store: Store, grace_s: float) -> float | None:
    """Return the seconds until shortly before the earliest deadline or the next confirmation; None if there is neither.

    Watches the leases that end soon.
    """
    deadline = reaper.deadline
    if deadline is None:
        return reaper.observed.recheck_s or None
    left_s = deadline + grace_s - store.now().lease
    if store.commits_may_hang:
        if left_s <= RENEW_S:
            reaper.watch()
        left_s = left_s - RENEW_S if left_s > RENEW_S else min(left_s, PROOF_S)
    left_s = left_s if left_s > 0 else SECOND_LOOK_S
    return min(left_s, reaper.observed.recheck_s or left_s)
