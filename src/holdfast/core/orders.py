"""Orders: what a person asks of all workers of a name, and which of them is in force for a worker. Pure.

`drain`: claim nothing more. `stop`: the same, and leave when what runs has ended. Both stand until they are taken back:
a worker that is started again meanwhile claims nothing either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from holdfast.core.records import NewEvent, Order, OrderAct, Worker


def parent_name(name: str) -> str | None:
    """Return the name of the supervisor of a child: `box` for `box/2`. None: it is not the name of a child."""
    parent, slash, number = name.rpartition("/")
    return parent if slash and number.isascii() and number.isdigit() else None


def applies(order: Order, worker: Worker) -> bool:
    """Say whether an order is for this worker: it has that name, or its supervisor has."""
    if order.name == worker.name:
        return True
    return worker.supervisor is not None and order.name == parent_name(worker.name)


def in_force(orders: Iterable[Order], worker: Worker) -> Order | None:
    """Return the order that a worker obeys: a stop before a drain, then the shorter name."""
    mine = [order for order in orders if applies(order, worker)]
    return min(mine, key=lambda order: (order.act != "stop", order.name), default=None)


def given(orders: Sequence[Order], name: str, order: Order | None) -> tuple[list[Order], bool]:
    """Return the orders after a person has given one to a name, or taken it back; and whether that changed anything.

    To take back the order of a supervisor takes back those of its children too. Giving the same order again keeps the
    first one.
    """
    if order is not None:
        same = any((each.name, each.act) == (name, order.act) for each in orders)
        kept = [each for each in orders if each.name != name]
        return (list(orders), False) if same else ([*kept, order], True)
    kept = [each for each in orders if name not in (each.name, parent_name(each.name))]
    return kept, len(kept) < len(orders)


def in_words(order: Order) -> str:
    """Say who asked whom for what: "ann asked box to drain: maintenance"."""
    note = f": {order.note}" if order.note else ""
    return f"{order.actor or 'a person'} asked {order.name} to {order.act}{note}"


def events(name: str, act: OrderAct | None, actor: str | None, note: str | None) -> Iterator[NewEvent]:
    """Return the line of the journal for an order, or for its end."""
    detail: dict[str, Any] = {"worker": name, "order": act or "resume"}
    yield NewEvent("ordered", detail | ({"note": note} if note else {}), actor)
