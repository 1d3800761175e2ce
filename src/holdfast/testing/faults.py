"""A store that fails as real ones do: before the call, after it, or late.

    FaultyStore(store, scripted([None, AFTER]))              the second call is carried out, and its answer is lost
    FaultyStore(store, seeded(Random(7), {"settle": {BEFORE: 0.1, AFTER: 0.1}}))

An error *before* means that nothing was done. An error *after* means that everything was done and nobody was told: the
caller cannot tell the two apart, so every verb must be safe to repeat. A plan is asked once per call and may be any
function from a verb's name to a fault. Any store is wrapped through the protocol's own names, without a twin per verb.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from holdfast.core.records import Lease
from holdfast.errors import StoreUnavailable
from holdfast.stores.protocol import Store

T = TypeVar("T")

VERBS = tuple(name for name, value in vars(Store).items() if callable(value) and not name.startswith("_"))


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of one call: it is late on its way, fails, or its answer is late or lost."""

    error: bool = False
    done: bool = False  # the call was carried out nevertheless
    before_s: float = 0.0  # passes before the store hears
    after_s: float = 0.0  # passes before the caller hears


BEFORE = Fault(error=True)
AFTER = Fault(error=True, done=True)

Plan = Callable[[str], Fault | None]


class Dice(Protocol):
    """A seeded source of chance, such as `random.Random`."""

    def random(self) -> float: ...


def scripted(faults: Iterable[Fault | None], verbs: Sequence[str] = VERBS) -> Plan:
    """Give these faults to the next calls of these verbs, in order; after the last one all is well."""
    left = iter(faults)
    return lambda verb: next(left, None) if verb in verbs else None


def seeded(dice: Dice, rates: Mapping[str, Mapping[Fault, float]]) -> Plan:
    """Draw a fault for each call: per verb, how likely each fault is."""

    def plan(verb: str) -> Fault | None:
        lot = dice.random() if verb in rates else 1.0
        for fault, rate in rates.get(verb, {}).items():
            if lot < rate:
                return fault
            lot -= rate
        return None

    return plan


class FaultyStore:
    """See the module's docstring. `wait` lets time pass: pass a fake clock's `advance`."""

    def __init__(self, store: Store, plan: Plan, wait: Callable[[float], None] = lambda seconds: None) -> None:
        self._store = store
        self._plan = plan
        self._wait = wait

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return partial(self._call, name, found) if name in VERBS else found

    @contextmanager
    def transaction(self, lease: Lease, max_s: float) -> Iterator[Any]:
        """Open one; its `settle` is planned for as the verb `transaction.settle`."""
        manager = self._call("transaction", self._store.transaction, lease, max_s)
        with manager as transaction:
            yield _FaultyTransaction(transaction, partial(self._call, "transaction.settle", transaction.settle))

    def _call(self, verb: str, act: Callable[..., T], *arguments: Any, **named: Any) -> T:
        fault = self._plan(verb)
        if fault is None:
            return act(*arguments, **named)
        if fault.before_s:
            self._wait(fault.before_s)
        if fault.error and not fault.done:
            raise StoreUnavailable(f"{verb}: the call did not reach the store (a fault on purpose)")
        answer = act(*arguments, **named)
        if fault.after_s:
            self._wait(fault.after_s)
        if fault.error:
            raise StoreUnavailable(f"{verb}: the answer was lost (a fault on purpose)")
        return answer


class _FaultyTransaction:
    def __init__(self, transaction: Any, settle: Callable[..., Any]) -> None:
        self._transaction = transaction
        self.settle = settle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transaction, name)
