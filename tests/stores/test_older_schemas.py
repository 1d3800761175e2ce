"""Stores of every older schema, written by the programs of their time, are brought up to date and worked off."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import App
from holdfast.core.machine import ENDED, State
from holdfast.core.records import Filter
from holdfast.core.verdict import Succeeded
from holdfast.stores import open_store
from holdfast.stores.protocol import Reply
from tests.factory import EXPIRED, claim, enrol, revive, row, settle
from tests.servers import PostgresServer
from tests.stores import landed

ALL = Filter(limit=1000)
pytestmark = pytest.mark.slow  # sixty stores

VERSIONS = [(kind, number) for kind in ("sqlite", "postgres") for number in landed.later(kind)]


@pytest.mark.parametrize(("kind", "number"), VERSIONS)
def test_a_store_of_an_older_schema_is_migrated_and_drained(
    kind: str, number: int, tmp_path: Path, request: pytest.FixtureRequest, schema: str
) -> None:
    """No job is lost, no fence falls, and each job comes to an end."""
    if kind == "sqlite":
        landed.make_sqlite(tmp_path / "jobs.db", number)
        url = f"sqlite:///{tmp_path / 'jobs.db'}?synchronous=normal"
    else:
        server: PostgresServer = request.getfixturevalue("server")
        landed.make_postgres(server.url, schema, number)
        url = f"{server.url}?schema={schema}"
    held = landed.later(kind)[number][{"sqlite": "holdfast_job", "postgres": "job"}[kind]]
    places = [held["columns"].index(name) for name in ("id", "state", "fence", "payload")]
    before = {each[places[0]]: [each[place] for place in places[1:]] for each in held["rows"]}
    with closing(open_store(url)) as store:
        assert store.schema().found == number
        store.migrate()
        jobs = store.find(ALL)
        assert {job.id: [job.state.value, job.fence, job.payload] for job in jobs} == before
        assert {job.state for job in jobs} == set(State)
        assert store.check() == []
        counts = Counter(job.state for job in jobs)
        assert store.counts()["default"] == dict(counts)
        for job in jobs:
            if job.state is State.RUNNING:
                assert settle(store, job, EXPIRED) is Reply.ACCEPTED
        now = store.now().wall
        with closing(App(url)) as app:
            for job in store.find(ALL):
                is_later = job.state is State.READY and job.run_at > now
                if job.state is State.WAITING or is_later or job.open_step is not None:
                    app.cancel(job.id, by="ann")
                elif job.state is State.HELD:
                    assert revive(store, job)
        worker = enrol(store, id="worker-of-today")
        left = store.find(Filter(states=(State.READY,), limit=1000))
        queues, tasks = sorted({job.queue for job in left}), sorted({job.task for job in left})
        while claimed := claim(store, worker, queues=queues, tasks=tasks):
            for job in claimed:
                assert settle(store, job, Succeeded("1")) is Reply.ACCEPTED
        ended = store.find(ALL)
        assert {job.state for job in ended} <= ENDED
        assert {job.id for job in ended} == before.keys()
        assert all(row(store, job.id).fence >= before[job.id][1] for job in ended)
        assert store.check() == []


def test_every_older_schema_has_a_store_here() -> None:
    """Those that landed in one commit with the next one were never in a store."""
    for kind, together in (("sqlite", {28}), ("postgres", {35})):
        newest = max(landed.later(kind))
        assert set(range(landed.LAST[kind] + 1, newest + 1)) - together == landed.later(kind).keys(), kind
