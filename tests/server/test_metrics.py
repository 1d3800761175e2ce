"""`/metrics` of the server: facts of the store, and what the process has counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.app import App
from holdfast.core.limits import Setting
from holdfast.core.machine import State
from holdfast.core.records import Job
from holdfast.core.verdict import Failed, Succeeded
from holdfast.core.worker_exit import WorkerExit
from holdfast.server import metrics
from holdfast.server.metrics import StoreFacts
from holdfast.testing import FakeClock
from holdfast.testing.faults import BEFORE, FaultyStore
from tests.factory import add, enrol, settle, start
from tests.server.client import PEER, Client, add_token, code
from tests.test_metrics import Sample, samples

Serve = Callable[..., Client]


def scrape(client: Client, token: str | None = None) -> dict[Sample, float]:
    answer = client.get("/metrics", token=token)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return samples(answer.text)


def lose(app: App, **given: Any) -> Job:
    """Start a job and lose its worker, which was silent for a while."""
    worker = enrol(app.store, name="host-of-secrets")
    job = start(app.store, worker, **given)
    app.clock.advance(20.0)  # type: ignore[attr-defined]
    app.store.retire(worker, "killed", how=WorkerExit("exit"))
    app.reap()
    return job


def only(found: dict[Sample, float], name: str) -> dict[tuple[str, ...], float]:
    """Return the series of one metric by the values of their labels, in the order of the labels' names."""
    return {tuple(value for _, value in labels): number for (each, labels), number in found.items() if each == name}


def test_a_scrape_shows_queues_workers_leases_and_schedules(app: App, client: Client, clock: FakeClock) -> None:
    store = app.store
    worker = enrol(store, queues=["mail"], slots=4)
    store.limit("mail", Setting(limit=3))
    start(store, worker, queue="mail", lease_s=30.0)
    add(store, queue="mail")
    add(store, queue="media")
    store.pause("media", True)
    clock.advance(8.0)
    found = scrape(client)
    jobs = only(found, "holdfast_jobs")
    assert (jobs["mail", "ready"], jobs["mail", "running"], jobs["media", "ready"]) == (1, 1, 1)
    assert sum(jobs.values()) == 3
    assert only(found, "holdfast_queue_oldest_due_seconds") == {("mail",): 8.0, ("media",): 8.0}
    assert only(found, "holdfast_queue_paused") == {("mail",): 0, ("media",): 1}
    assert only(found, "holdfast_queue_workers") == {("mail",): 1, ("media",): 0}
    assert only(found, "holdfast_limit_running") == {("mail",): 1}
    assert only(found, "holdfast_limit_max") == {("mail",): 3}
    assert only(found, "holdfast_worker_slots") == {("busy",): 1, ("free",): 3}
    assert only(found, "holdfast_workers")[("alive",)] == 1
    assert found["holdfast_lease_headroom_min_seconds", ()] == pytest.approx(22.0)
    assert found["holdfast_leases_overdue", ()] == 0
    assert found["holdfast_store_up", ()] == 1
    clock.advance(30.0)
    found = scrape(client)
    assert found["holdfast_leases_overdue", ()] == 1
    assert found["holdfast_lease_headroom_min_seconds", ()] == pytest.approx(-8.0)


def test_held_jobs_are_as_old_as_the_end_of_their_last_attempt(app: App, client: Client, clock: FakeClock) -> None:
    held = start(app.store, enrol(app.store), on_crash="hold")
    clock.advance(100.0)
    settle(app.store, held, Failed("no", final=False))
    assert scrape(client)["holdfast_held_oldest_seconds", ()] == 0
    lost = lose(app, on_crash="hold")
    assert app.get(lost.id).state == "held"
    clock.advance(3600.0)
    assert scrape(client)["holdfast_held_oldest_seconds", ()] >= 3600


def test_a_lost_attempt_counts_with_its_time_to_detection_and_its_late_report(
    app: App, client: Client, clock: FakeClock
) -> None:
    assert only(scrape(client), "holdfast_zombie_detection_seconds_count") == {}
    lost = lose(app)
    clock.advance(metrics.KEPT_S)
    found = scrape(client)
    assert only(found, "holdfast_zombie_detection_seconds_count") == {("exit",): 1}
    assert only(found, "holdfast_zombie_detection_seconds_sum")[("exit",)] == pytest.approx(20.0, abs=1)
    assert found["holdfast_false_zombies_total", ()] == 0
    settle(app.store, lost, Succeeded("1"))
    clock.advance(metrics.KEPT_S)
    scrape(client)
    found = scrape(client)
    assert found["holdfast_false_zombies_total", ()] == 1
    assert only(found, "holdfast_zombie_detection_seconds_count") == {("exit",): 1}


def test_counters_of_the_store_stay_when_jobs_are_deleted(app: App, client: Client, clock: FakeClock) -> None:
    for _ in range(3):
        settle(app.store, start(app.store, enrol(app.store), queue="mail"), Succeeded("1"))
    lost = lose(app, queue="mail", on_crash="fail")
    assert settle(app.store, lost, Succeeded("1")) == "refused"
    clock.advance(metrics.KEPT_S)
    before = scrape(client)
    assert only(before, "holdfast_jobs_ended_total") == {("mail", "done"): 3, ("mail", "dead"): 1}
    assert only(before, "holdfast_zombies_total") == {("bury", "exit"): 1}
    assert before["holdfast_stale_reports_total", ()] == 1
    assert app.store.purge([State.DONE, State.DEAD], clock.wall() + 1) == 4
    clock.advance(metrics.KEPT_S)
    after = scrape(client)
    assert sum(only(after, "holdfast_jobs").values()) == 0
    for name in ("holdfast_jobs_ended_total", "holdfast_zombies_total", "holdfast_stale_reports_total"):
        assert only(after, name) == only(before, name)


def test_a_store_that_fails_leaves_old_facts_with_their_age_and_no_zeros(app: App, clock: FakeClock) -> None:
    add(app.store, queue="mail")
    asked: list[int] = []

    def plan(verb: str) -> object:
        asked.append(1)
        return BEFORE if is_down else None

    is_down = False
    faulty = FaultyStore(app.store, plan)  # type: ignore[arg-type]
    facts = StoreFacts(lambda: faulty, clock.lease)  # type: ignore[arg-type,return-value]
    before, _ = facts.read()
    reads = len(asked)
    clock.advance(metrics.KEPT_S / 2)
    facts.read()
    assert len(asked) == reads, "facts of a moment ago are not read again"
    is_down = True
    clock.advance(60.0)
    after, _ = facts.read()
    assert after["holdfast_store_up"] == {(): 0.0}
    assert after["holdfast_snapshot_age_seconds"] == {(): 60.0 + metrics.KEPT_S / 2}
    assert after["holdfast_jobs"] == before["holdfast_jobs"]
    is_down = False
    assert facts.read()[0]["holdfast_store_up"] == {(): 1.0}, "it is asked again at once, and not after a pause"


def test_requests_acts_and_refused_tokens_are_counted(app: App, client: Client) -> None:
    job = add(app.store)
    client.post(f"/v1/jobs/{job.id}/hold")
    client.post(f"/v1/jobs/{job.id}/hold", {"state": "ready", "fence": 0})
    client.get("/v1/nothing")
    client("BREW", "/v1/jobs")
    client.get("/v1/me", token="wrong")
    client.post("/v1/login", {"token": "wrong"})
    found = scrape(client)
    requests = only(found, "holdfast_http_requests_total")  # code, method, route
    assert requests["2xx", "POST", "/v1/jobs/{id}/hold"] == 1
    assert requests["4xx", "POST", "/v1/jobs/{id}/hold"] == 1
    assert requests["4xx", "other", "unknown"] == 2
    acts = only(found, "holdfast_operator_acts_total")
    assert acts == {("post_jobs_id_hold", "ok"): 1, ("post_jobs_id_hold", "refused"): 1}
    assert found["holdfast_login_failures_total", ()] == 2
    assert only(found, "holdfast_http_request_duration_seconds_count")["GET", "/v1/me"] == 1


def test_metrics_need_a_viewer_unless_they_are_open(app: App, serve: Serve) -> None:
    viewer, worker = add_token(app, "ann", "viewer"), add_token(app, "edge", "worker")
    scoped = add_token(app, "some", "viewer", ("mail",))
    guarded = serve(peer=PEER, needs_token=True, insecure=True)
    assert code(guarded.get("/metrics"), 401) == "unauthenticated"
    assert code(guarded.get("/metrics", token=worker), 403) == "forbidden"
    assert code(guarded.get("/metrics", token=scoped), 404) == "not_found"
    assert scrape(guarded, viewer)
    assert scrape(serve(peer=PEER, needs_token=True, insecure=True, open_metrics=True))


def test_no_label_names_a_job_or_a_worker(app: App, client: Client) -> None:
    job = lose(app, key="order-42")
    text = client.get("/metrics").text
    assert not [word for word in (job.worker, job.id, "host-of-secrets", "order-42") if str(word) in text]
