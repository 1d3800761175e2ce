"""Arguments for each verb of the store that travels over HTTP, about the things of one test."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.batches import Batch
from holdfast.core.continuity import Doubt
from holdfast.core.limits import Setting
from holdfast.core.machine import State
from holdfast.core.records import Duty, Filter, Lease, NewEvent, Pulse, Record, Signal
from holdfast.core.settlement import settlement
from holdfast.core.verdict import Succeeded, judge
from holdfast.stores.protocol import Store
from holdfast.stores.remote.verbs import codec
from tests.factory import a_worker, make_job, row

DUTY = Duty("chore", "me", 1, 5.0)


def arguments(store: Store, verb: str, worker: str, job: str, running: str) -> Any:
    """Return the body of a request that this verb accepts, about these things in the queue mail."""
    stale = Lease(running, 9, "c")
    ended = settlement(row(store, running), judge(Succeeded(), row(store, running), 5.0, chance=0.5))
    given: dict[str, tuple[Any, ...]] = {
        "enroll": (a_worker(queues=["mail"]),),
        "claim": (worker, "c", ["mail"], ["none"], 1),
        "beat": (worker, [Pulse(stale)]),
        "settle": ([msgspec.structs.replace(ended, lease=stale)],),
        "record": ([Record(lease=stale)],),
        "retire": (worker, "it leaves"),
        "steps": (running,),
        "inbox": (running,),
        "find": (Filter(states=(State.RUNNING,), worker=worker),),
        "get": (running,),
        "due": (["mail"], ["none"]),
        "standing": (worker, [], None),
        "add": ([make_job(queue="mail")],),
        "locked": ([],),
        "ghosts": ([],),
        "errors": (0.0,),
        "journals": ([], 1),
        "recent": ([],),
        "places": ("mail",),
        "unserved": (["mail"], ["t"]),
        "signal": (Signal(id="s", job_id=job, name="go"),),
        "fork": (make_job(queue="mail"), job, 0, 1, NewEvent("moved")),
        "acquire": ("chore", "me", 5.0),
        "resign": (DUTY,),
        "move": ([],),
        "pause": ("mail", False),
        "limit": ("mail", Setting()),
        "order": ("w", None),
        "purge": ([], 0.0),
        "delete": ([],),
        "declare": ([],),
        "schedule": ([],),
        "fire": ([], DUTY),
        "pause_schedule": ("none", True),
        "forget_schedule": ("none",),
        "publish": ([],),
        "forget_task": ("none",),
        "doubt": (99, Doubt("rewound", "beats", "2", "1")),
        "note_act": (NewEvent("moved", {}, "me"),),
        "accept": (99, "me", None),
        "figures.flow": (0.0,),
        "figures.lost": (0.0,),
        "figures.rollups": (60, 0.0),
        "figures.fold": ({"mail": 1},),
        "batches.open": (Batch(id="nightly"),),
        "batches.add": ("none", []),
        "batches.close": ("none", True),
        "batches.get": ([],),
        "batches.counts": ("none",),
        "batches.jobs": ("none", [], 1),
        "batches.end": ("none", {}, None),
        "batches.purge": (0.0, 1),
    }
    return msgspec.json.decode(codec(verb).write(given.get(verb, ()), {}))
