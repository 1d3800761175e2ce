"""A Celery application whose tasks write down that they began and ended, and wait while a file says so.

It is run by real Celery workers; the environment says how.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from celery import Celery

from holdfast import App, Flow
from holdfast.clock import pause
from holdfast.integrations import celery as guarding
from holdfast.integrations.celery import Guard

FOLDER = Path(os.environ["SHOP_FOLDER"])

celery = Celery("shop", broker=os.environ["SHOP_BROKER"], backend=os.environ["SHOP_BROKER"])
celery.conf.update(
    task_acks_late=os.environ.get("SHOP_ACKS_LATE") == "1",
    task_reject_on_worker_lost=os.environ.get("SHOP_ACKS_LATE") == "1",
    broker_transport_options={"visibility_timeout": 5},
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
)
guarding.RESTART_S = 0.5  # tests wait for these
guarding.AWAY_S = 1
guard = Guard(celery, os.environ["SHOP_STORE"], republish_s=30, lease_s=float(os.environ.get("SHOP_LEASE_S", "30")))
app = App(os.environ["SHOP_STORE"])
guard.attach(app)


def say(what: str) -> None:
    with (FOLDER / "effects").open("a") as file:
        file.write(f"{what}\n")


def work(name: str) -> str:
    say(f"start {name} {os.getpid()}")
    while (FOLDER / f"wait-{name}").exists():
        pause(0.02)
    say(f"end {name}")
    return f"{name} is done"


@celery.task
@guard()
def retried(name: str) -> str:
    return work(name)


@celery.task
@guard(on_crash="hold")
def held(name: str) -> str:
    return work(name)


@celery.task
@guard(on_crash="fail")
def failed(name: str) -> str:
    return work(name)


@celery.task
def unguarded(name: str) -> str:
    return work(name)


@celery.task(bind=True, autoretry_for=(ConnectionError,), max_retries=3, default_retry_delay=0)
@guard()
def flaky(self: Any, name: str) -> str:
    work(name)
    if self.request.retries < 2:
        raise ConnectionError("the service is away")
    return f"{name} is done"


@celery.task(bind=True, max_retries=3)
@guard()
def changing(self: Any, name: str) -> str:
    """Ask for another run, with another argument."""
    say(f"run {name} {self.request.retries}")
    if self.request.retries == 0:
        raise self.retry(args=[f"{name}-again"], countdown=600 if name.startswith("later") else 0)
    return work(name)


@celery.task
@guard()
def wrong(name: str) -> None:
    work(name)
    raise ValueError("no such order")


@app.workflow(name="order")
def order(flow: Flow, name: str) -> str:
    answer: str = flow.result(flow.start(guard.task(app, retried), name=name))
    say(f"workflow {answer}")
    return answer
