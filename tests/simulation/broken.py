"""Cores that are broken on purpose. Each is a line or two of the real code, changed while it runs.

A net is trusted only after something was thrown into it: the simulation and the model check must find these, and
pass the real core. `world` is that (of worlds.py) in which the model check finds it; where it cannot, `why` says why.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

from holdfast.core import acts, recovery, settlement, transitions, verdict
from holdfast.stores.memory import store as memory
from holdfast.stores.sqlite import statements
from tests.simulation import model_actors, sim_actors

Edit = tuple[ModuleType, str, str, str]  # module, function, what stands there, what stands there instead


@dataclass(frozen=True, slots=True)
class Broken:
    """One broken core."""

    name: str
    edits: tuple[Edit, ...]
    world: str | None = "pauses only"
    why: str = ""
    simulated: bool = True  # the simulation finds it; it has no workflows
    sqlite: bool = False  # the change is in the SQLite store, so the simulation runs over that one
    first_seed: int = 0  # one run in a hundred shows some of these: begin where one is near

    @contextmanager
    def core(self) -> Iterator[None]:
        """Have the core broken for a while."""
        with pytest.MonkeyPatch.context() as patch:
            for module, name in dict.fromkeys(edit[:2] for edit in self.edits):
                _apply(patch, module, name, [edit[2:] for edit in self.edits if edit[:2] == (module, name)])
            yield


def _apply(patch: pytest.MonkeyPatch, module: ModuleType, name: str, changes: list[tuple[str, str]]) -> None:
    """Compile the function anew with the changes, among the names of its own module."""
    owner: Any = module
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    source = textwrap.dedent(inspect.getsource(getattr(owner, last)))
    for old, new in changes:
        assert source.count(old) == 1, f"{name}: {old!r} stands {source.count(old)} times; mend the broken core"
        source = source.replace(old, new)
    code = compile(source, f"<broken {name}>", "exec", annotations.compiler_flag)
    made: dict[str, Any] = {}
    exec(code, vars(module), made)
    real = getattr(owner, last)
    importers = [each for name, each in sys.modules.items() if name.startswith(("holdfast.", "tests.simulation."))]
    for place in (owner, *(each for each in importers if vars(each).get(last) is real)):
        patch.setattr(place, last, made[last])


SETTLE = "MemoryStore._settle_one"
OWNS = "return job.fence == lease.fence and job.claim_id == lease.claim_id"

BROKEN = [
    Broken(
        "settle asks for no lease",
        ((memory, SETTLE, "if job is None or not transitions.owns(job, settlement.lease):", "if job is None:"),),
    ),
    Broken("settle without the fence", ((transitions, "owns", OWNS, "return job.claim_id == lease.claim_id"),)),
    Broken("settle without the claim_id", ((transitions, "owns", OWNS, "return job.fence == lease.fence"),)),
    Broken(
        "settle in any state",
        ((memory, SETTLE, "if job.state is not State.RUNNING:", "if False:"),),
        world="answers are lost",
    ),
    Broken(
        "already is answered with accepted",
        ((memory, SETTLE, "if job.state is not State.RUNNING:\n        return Reply.ALREADY",
          "if job.state is not State.RUNNING:\n        return Reply.ACCEPTED"),),
    ),
    Broken(
        "a repeat is counted and journalled twice",
        ((statements, "_settle_one", "if own and state != State.RUNNING:\n",
          "if own and state != State.RUNNING:\n        _write_down(db, [settlement], wall)\n"),),
        world=None, why="the model check uses the memory store, which counts its rows", sqlite=True,
    ),
    Broken(
        "the reaper takes a lease that was renewed",
        ((memory, SETTLE, "if seen is not None and job.lease_until != seen:", "if False:"),),
    ),
    Broken(
        "the reaper does not say which lease it saw",
        ((settlement, "settlement", "job.lease_until if seen_lease else None", "None"),),
    ),
    Broken("a reaped lease keeps its fence", ((verdict, "_verdict", "raises_fence=lost", "raises_fence=False"),)),
    Broken(
        "a beat extends whatever runs",
        ((memory, "MemoryStore.beat", "if job is None or not transitions.owns(job, pulse.lease):", "if job is None:"),),
    ),
    Broken(
        "a beat brings a reaped attempt back",
        ((memory, "MemoryStore.beat", "if job is None or not transitions.owns(job, pulse.lease):", "if job is None:"),
         (memory, "MemoryStore.beat", "elif job.state is State.RUNNING:", "elif job.state is not State.DONE:"),
         (transitions, "apply_pulse", "    return replace(\n        job,",
          "    return replace(\n        job, state=State.RUNNING, worker='back', claim_id=pulse.lease.claim_id,")),
    ),
    Broken(
        "a beat shortens",
        ((transitions, "apply_pulse", "max(lease_end(job), now.lease + job.lease_s)", "now.lease + job.beat_s"),),
    ),
    Broken(
        "a beat extends a lease that has settled itself",
        ((memory, "MemoryStore.beat", "elif job.state is State.RUNNING:", "elif True:"),),
    ),
    Broken(
        "a claim does not raise the fence",
        ((transitions, "apply_claim", "fence=job.fence + 1", "fence=max(1, job.fence)"),),
    ),
    Broken(
        "a running job can be claimed",
        ((memory, "MemoryStore._ready", "job.state is State.READY", "job.state in (State.READY, State.RUNNING)"),),
    ),
    Broken(
        "a repeated claim takes more",
        ((memory, "MemoryStore.claim", "job.claim_id == claim_id]", "job.claim_id == claim_id and False]"),),
        world="answers are lost",
    ),
    Broken(
        "the gone may claim and beat",
        ((memory, "MemoryStore._lives", "worker.gone_at is None", "True"),),
        world="the last crash",
    ),
    Broken(
        "crashes_max is ignored",
        ((verdict, "_run_again", "if crashes and total_crashes", "if False and crashes"),),
        world="the last crash",
    ),
    Broken(
        "attempts_max is ignored",
        ((verdict, "_run_again", "elif (failures or crashes) and", "elif False and"),),
        world="the handler fails",
    ),
    Broken(
        "a crash costs nothing",
        ((verdict, "_cost", "0 if _is_forgiven(outcome, job) else 1", "0"),),
        world="the last crash",
    ),
    Broken(
        "hold is taken for retry",
        ((verdict, "_by_on_crash", "match job.on_crash:", "match job.on_crash.replace('hold', 'retry'):"),),
        world="hold, approved",
    ),
    Broken(
        "a started attempt that was to be held is released",
        ((verdict, "_judge", 'case Released(started=True) if job.on_crash != "retry":', "case Released() if False:"),),
        world="hold, approved",
    ),
    Broken(
        "hold and revive raise no fence, so an approval works twice",
        ((acts, "moved", "raises_fence=True", "raises_fence=False"),),
        world="hold, approved twice, held by hand",
    ),
    Broken(
        "an act does not look at the fence",
        ((memory, "MemoryStore._as_seen", "job.seen == seen", "job.seen[:2] == seen[:2]"),),
        world="cancelled",
    ),
    Broken(
        "a verdict made before the cancellation stands",
        ((settlement, "is_as_judged", "each.seen_cancel != bool(cancel_requested)", "False"),),
        world="cancelled",
    ),
    Broken(
        "a verdict made before a step was begun stands",
        ((settlement, "is_as_judged", 'each.seen_open_step != (open_step or "")', "False"),),
        world="such a step, and who was late", simulated=False,
    ),
    Broken(
        "trust is anchored at the answer",
        ((sim_actors, "SimWorker._keep", "run.window = trust(sent_at,", "run.window = trust(self.fleet.now(),"),
         (sim_actors, "SimWorker._claim", "trust(sent_at, job", "trust(self.fleet.now(), job"),
         (model_actors, "Worker.trusting", "trust(sent_at,", "trust(now,")),
        first_seed=150,
    ),
    Broken(
        "an add by a known id stores anew",
        ((memory, "MemoryStore._add", "self._jobs.get(new.id) or (", "None or ("),),
        world=None, why="in the model the jobs are there from the start",
    ),
    Broken(
        "a key may have two jobs",
        ((memory, "MemoryStore._add", "self._keys.live(new.key) if new.key is not None else None", "None"),),
        world=None, why="in the model the jobs are there from the start",
    ),
    Broken(
        "a free lock is believed at the first look",
        ((recovery, "Observations.confirmed_vanished", "left_s.get(each.worker.id, 0.0) <= 0", "True"),),
        world=None, why="the model has no locks",
    ),
    Broken(
        "an act under an old term counts",
        ((memory, "MemoryStore._check_duty", "if duty is not None and not", "if False and not"),),
        world=None, why="the model has no duties",
    ),
]  # fmt: skip
