"""The small worlds that are explored completely. Each is as large as the suite's time allows, and about one danger."""

from __future__ import annotations

from typing import Any

from holdfast.core.policy import OnCrash, Policy, Retry
from holdfast.core.records import NewJob
from tests.simulation.model_check import LEASE_S, World


def job(
    number: int = 1, *, on_crash: OnCrash = "retry", crashes_max: int = 2, attempts_max: int = 3, **given: Any
) -> NewJob:
    retry = Retry(attempts_max=attempts_max, base_s=1.0, cap_s=1.0, jitter=False)
    policy = Policy(retry=retry, crashes_max=crashes_max, on_crash=on_crash, lease_s=LEASE_S)
    return NewJob(id=f"job-{number}", task="t", payload="{}", queue="q", policy=policy, **given)


def world(*jobs: NewJob, claims: int = 2, deaths: int = 0, losses: int = 0, **given: Any) -> World:
    return World(jobs=jobs or [job()], claims=claims, deaths=deaths, losses=losses, **given)


WORLDS = {
    "pauses only": world(),
    "answers are lost": world(losses=1),
    "pauses only, three claims": world(claims=3),
    "the handler fails": world(job(attempts_max=1), failures=1),
    "the last crash": world(job(crashes_max=1), workers=1, deaths=1),
    "a death": world(deaths=1, workers=1, losses=1),
    "a death among two": world(deaths=1),
    "two reapers": world(reapers=2),
    "two jobs": world(job(1), job(2)),
    "declared dead while it lives": world(slanders=1, workers=1),
    "cancelled": world(acts=["cancel"], deaths=1, workers=1),
    "hold, approved": world(job(on_crash="hold"), acts=["approve"], losses=1),
    "hold, approved twice, held by hand": world(
        job(on_crash="hold"), acts=["approve", "hold", "hold", "approve"], losses=1, workers=1, claims=1
    ),
    "a step that must not be repeated": world(job(workflow=True), deaths=1, workers=1, acts=["approve"]),
    "such a step, and who was late": world(job(workflow=True)),
    "on_crash=fail": world(job(on_crash="fail"), deaths=1, workers=1),
}
LARGE = {
    "a death and a lost answer": world(deaths=1, losses=1),
    "a death, three claims": world(deaths=1, claims=3),
    "two jobs, a death": world(job(1), job(2), deaths=1),
    "hold, a death, a lost answer": world(job(on_crash="hold"), acts=["approve"], deaths=1, losses=1),
}
