"""Background jobs that survive kill -9.

from holdfast import App, Context, Retry

app = App("sqlite:///jobs.db")

@app.task(retry=Retry(attempts_max=3), on_crash="hold")
def charge(ctx: Context, order_id: int, cents: int) -> str:
    return f"charged {cents} for {order_id}"

job = charge.using(key="order-42").enqueue(42, cents=999)
job.result(timeout=10)
"""

import sys

if sys.argv[:1] == ["-m"] and ("-m", "holdfast") in zip(sys.orig_argv, sys.orig_argv[1:], strict=False):
    # `python -m holdfast`, whose imports take a moment
    from holdfast_start import be_quiet

    be_quiet()

from holdfast.app import App
from holdfast.core.payload import Codec, injected
from holdfast.core.policy import Retry
from holdfast.core.schedule import All
from holdfast.errors import (
    BadURL,
    Cancelled,
    GiveUp,
    HoldfastError,
    IllegalMove,
    Interrupted,
    JobCancelled,
    JobDead,
    JobEnded,
    JobRolledBack,
    KeyTaken,
    LeaseLost,
    NotFound,
    OutcomeUnknown,
    PayloadError,
    PolicyError,
    Refused,
    RetryLater,
    Rollback,
    SchemaMismatch,
    Snooze,
    StepFailed,
    StoreError,
    StoreLocked,
    StoreTimeout,
    StoreUnavailable,
    UnknownTask,
    UsageError,
    WorkerBroken,
)
from holdfast.jobs import Job
from holdfast.tasks import Task
from holdfast.version import __version__
from holdfast.worker.context import Context, current_job
from holdfast.workflow.flow import AsyncFlow, Flow

__all__ = [
    "All",
    "App",
    "AsyncFlow",
    "BadURL",
    "Cancelled",
    "Codec",
    "Context",
    "Flow",
    "GiveUp",
    "HoldfastError",
    "IllegalMove",
    "Interrupted",
    "Job",
    "JobCancelled",
    "JobDead",
    "JobEnded",
    "JobRolledBack",
    "KeyTaken",
    "LeaseLost",
    "NotFound",
    "OutcomeUnknown",
    "PayloadError",
    "PolicyError",
    "Refused",
    "Retry",
    "RetryLater",
    "Rollback",
    "SchemaMismatch",
    "Snooze",
    "StepFailed",
    "StoreError",
    "StoreLocked",
    "StoreTimeout",
    "StoreUnavailable",
    "Task",
    "UnknownTask",
    "UsageError",
    "WorkerBroken",
    "__version__",
    "current_job",
    "injected",
]
