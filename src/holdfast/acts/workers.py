"""Ask workers to drain, to stop or to resume, wherever they run; declare a silent one dead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.acts.store import note_forgotten
from holdfast.core.orders import applies, parent_name
from holdfast.core.records import Order, OrderAct, Worker
from holdfast.core.text import check_storable
from holdfast.core.worker_exit import WorkerExit
from holdfast.errors import NotFound, Refused
from holdfast.stores.protocol import Store

if TYPE_CHECKING:
    from holdfast.upkeep.reaper import Reaper


def order_workers(store: Store, name: str, act: OrderAct, actor: str, note: str | None) -> list[Worker]:
    """Ask all workers of a name, and the children of a supervisor of that name, to drain or to stop.

    Returns the living ones that it reaches now. It stands for those that come later, until `resume_workers`. Raises
    `NotFound` for a name that no worker has or had lately: it is probably a mistake.
    """
    check_storable(name=name, by=actor, note=note)
    order = Order(name, act, actor, note, 0.0)
    named = [worker for worker in store.workers(gone=True) if applies(order, worker)]
    if not named:
        raise NotFound(f"there is no worker {name!r}, and none has gone lately; see `holdfast workers list --gone`")
    store.order(name, act, actor=actor, note=note)
    store.wake()
    return [worker for worker in named if worker.gone_at is None]


def resume_workers(store: Store, name: str, actor: str, note: str | None) -> list[str]:
    """Take back what workers of a name, and their children, were asked; return the names that the orders stood for.

    Raises `Refused` when the order stands for the supervisor of this child, `NotFound` when nothing was asked.
    """
    check_storable(name=name, by=actor, note=note)
    standing = store.orders()
    taken = [order.name for order in standing if name in (order.name, parent_name(order.name))]
    parent = parent_name(name)
    if not taken:
        if any(order.name == parent for order in standing):
            raise Refused(f"the order stands for all workers of {parent}: holdfast workers resume {parent}")
        raise NotFound(f"nothing was asked of workers named {name!r}; see `holdfast workers list`")
    store.order(name, None, actor=actor, note=note)
    store.wake()
    return taken


def forget_workers(store: Store, reaper: Reaper, silent: Sequence[Worker], actor: str, note: str | None) -> int:
    """Declare these workers dead and settle their jobs; return how many jobs. `insight.silent_workers` finds them."""
    check_storable(by=actor, note=note)
    recovered = 0
    for worker in silent:
        note_forgotten(store, worker, actor, note)
        recovered += reaper.recover_worker(worker, f"forgotten by {actor}", WorkerExit()).recovered
    return recovered
