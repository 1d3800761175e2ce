"""An app in a Django project: connections around attempts, enqueues that join atomic(), settings, the command line."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection, connections
from django.db import transaction as django_transaction
from django.test import override_settings
from psycopg.conninfo import conninfo_to_dict

from holdfast import App, Context, JobDead, Retry
from holdfast.errors import UsageError
from holdfast.integrations.django import configuration, instrument, transaction
from holdfast.integrations.django.apps import check_configuration
from holdfast.integrations.django.test import drop_tables
from holdfast.stores.postgres.connection import Options
from tests.api.doors import with_django
from tests.integrations.orms import database
from tests.worker.house import House, until

SHOP = Path(__file__).resolve().parents[2] / "examples" / "django_shop"
on_postgres = pytest.mark.parametrize("shared_house", ["postgres"], indirect=True)
ONCE = Retry(attempts_max=1)


@pytest.fixture
def django(shared_house: House) -> Iterator[Any]:
    """Django's connection to the database of the house."""
    with_django({"default": database(shared_house.app.url)})
    connections.settings["default"] |= {"CONN_MAX_AGE": 0, "CONN_HEALTH_CHECKS": False}
    yield connections["default"]
    connections["default"].close()
    for runner in list(shared_house._workers):
        shared_house.stop(runner)
    while opened:
        opened.pop().close()


opened: list[Any] = []  # connections of the driver, which Django would leave open


def backend() -> int:
    """Return which process of the server answers Django."""
    with connection.cursor() as cursor:
        opened.append(connection.connection)
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def kept_open(django: Any, kept: bool) -> None:
    connections.settings["default"] |= {"CONN_MAX_AGE": None if kept else 0, "CONN_HEALTH_CHECKS": False}


@on_postgres
@pytest.mark.parametrize("where", ["sync", "async"])
def test_a_cut_connection_would_fail_every_later_job_of_a_thread(shared_house: House, django: Any, where: str) -> None:
    """What happens without the integration: the reason for the next test."""
    assert outcomes_after_a_cut(shared_house, django, where) == ["dead"] * 3


@on_postgres
@pytest.mark.parametrize("kept", [False, True], ids=["closed after each task", "kept open"])
@pytest.mark.parametrize("where", ["sync", "async"])
def test_no_job_fails_after_a_connection_was_cut(shared_house: House, django: Any, where: str, kept: bool) -> None:
    kept_open(django, kept)
    instrument(shared_house.app)
    assert outcomes_after_a_cut(shared_house, django, where) == ["done"] * 3


def outcomes_after_a_cut(house: House, django: Any, where: str) -> list[str]:
    @house.app.task(name="ask", retry=ONCE)
    def ask() -> int:
        return backend()

    @house.app.task(name="aask", retry=ONCE)
    async def aask() -> int:
        return await sync_to_async(backend)()

    task = ask if where == "sync" else aask
    house.start(slots=1)
    pid = task.enqueue().result(60)
    if house.app.layers and connections.settings["default"].get("CONN_MAX_AGE") == 0:
        gone = "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %s)"
        with django.cursor() as cursor:
            until(lambda: (cursor.execute(gone, [pid]), cursor.fetchone() == (True,))[1], "the session is closed")
    else:
        with django.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
    states = []
    for _ in range(3):
        job = task.enqueue()
        until(lambda job=job: job.refresh().row.ended_at is not None, "the job ends")  # type: ignore[misc]
        states.append(job.state.value)
    return states


@on_postgres
def test_async_jobs_do_not_share_a_connection(shared_house: House, django: Any) -> None:
    instrument(shared_house.app)
    both = asyncio.Event()
    seen: list[int] = []

    @shared_house.app.task
    async def ask() -> None:
        seen.append(await sync_to_async(backend)())
        if len(seen) == 2:
            both.set()
        await both.wait()

    shared_house.start(slots=2)
    for job in [ask.enqueue(), ask.enqueue()]:
        job.result(60)
    assert len(set(seen)) == 2


def test_an_enqueue_commits_and_rolls_back_with_atomic(shared_house: House, django: Any) -> None:
    app = shared_house.app
    instrument(app)

    @app.task
    def ship(number: int) -> None: ...

    app.counts()
    with django_transaction.atomic():
        kept = ship.enqueue(1)
        with django_transaction.atomic():
            ship.enqueue(2)
            django_transaction.set_rollback(True)
        assert app.find() == []  # nobody sees it yet
    assert [job.id for job in app.find()] == [kept.id]
    assert ship.enqueue(3).refresh().state == "ready"  # outside of atomic() it is stored at once


def test_atomic_of_another_database_is_not_joined(shared_house: House, django: Any, tmp_path: Path) -> None:
    with_django({"other": database(f"sqlite:///{tmp_path}/other.db")})
    app = shared_house.app
    instrument(app)

    @app.task
    def ship(number: int) -> None: ...

    app.counts()
    try:
        with django_transaction.atomic(using="other"):
            assert ship.enqueue(1).refresh().state == "ready"  # stored at once
            with django_transaction.atomic():
                ship.enqueue(2)
                django_transaction.set_rollback(True)
    finally:
        connections["other"].close()
    assert len(app.find()) == 1


def test_an_awaited_enqueue_inside_atomic_is_refused_and_not_stored_outside_of_it(
    shared_house: House, django: Any
) -> None:
    app = shared_house.app
    instrument(app)

    @app.task
    def ship(number: int) -> None: ...

    app.counts()
    with django_transaction.atomic(), pytest.raises(UsageError, match=r"cannot join atomic\(\).*call enqueue\(\)"):
        async_to_sync(ship.aenqueue)(1)
    async_to_sync(ship.aenqueue)(2)
    asyncio.run(ship.aenqueue(3))
    assert app.counts()["ready"] == 2


def test_a_batch_and_a_stream_inside_atomic_are_refused_with_what_to_do(shared_house: House, django: Any) -> None:
    app = shared_house.app
    instrument(app)

    @app.task
    def ship(number: int) -> None: ...

    app.counts()
    with django_transaction.atomic():
        words = r"a batch.*Django's atomic\(\).*open it.*in transaction.on_commit"
        with pytest.raises(UsageError, match=words), app.batch() as batch:
            batch.add(ship.job(1))
        with pytest.raises(UsageError, match=r"enqueue_stream.*Django's atomic\(\)\): use app.enqueue_many"):
            list(app.enqueue_stream([ship.job(1)]))
        app.enqueue_many([ship.job(1), ship.job(2)])
    assert app.counts()["ready"] == 2


def test_an_enqueue_inside_ctx_transaction_commits_with_the_job(shared_house: House, django: Any) -> None:
    app = shared_house.app
    instrument(app)

    @app.task(retry=ONCE)
    def ship(number: int) -> None: ...

    @app.task(retry=ONCE)
    def pack(ctx: Context, fails: bool) -> str:
        with ctx.transaction() as db, transaction(db):
            job = ship.enqueue(1)
        if fails:
            raise ValueError("no box")
        return job.id

    shared_house.start()
    with pytest.raises(JobDead, match="no box"):
        pack.enqueue(True).result(60)
    assert app.find(task=ship._task.name) == []
    assert app.get(pack.enqueue(False).result(60)).result(60) is None


def test_a_store_elsewhere_is_not_joined(shared_house: House, django: Any) -> None:
    with App("memory://") as app:
        instrument(app, database=None)

        @app.task
        def ship() -> None: ...

        with django_transaction.atomic():
            assert ship.enqueue().refresh().state == "ready"


# --- Settings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"DATABSE": "default"}, "perhaps 'DATABASE'"),
        ({"OPTIONS": {"kep": {}}}, "perhaps 'keep'"),
        ({"DATABASE": "nowhere"}, "names the database 'nowhere', which DATABASES does not have"),
        ({"DATABASE": "default", "URL": "memory://"}, "both URL and DATABASE"),
        ("sqlite://", "must be a dict"),
    ],
)
def test_wrong_settings_are_refused_with_advice(django: Any, given: Any, words: str) -> None:
    configuration.project_app.cache_clear()
    with override_settings(HOLDFAST=given):
        with pytest.raises(UsageError, match=words):
            configuration.project_app()
        [error] = check_configuration()
        assert (error.id, words in error.msg) == ("holdfast.E001", True)


def test_the_address_of_the_store_is_that_of_the_database(django: Any) -> None:
    with_django(
        {
            "odd": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": "shop/1",
                "USER": "ann",
                "PASSWORD": "p@ss:/?",
                "HOST": "/run/postgresql",
                "PORT": "",
                "OPTIONS": {"sslmode": "require", "pool": True},
            },
            "memory": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
            "oracle": {"ENGINE": "django.db.backends.dummy", "NAME": "x"},
        }
    )
    url = configuration.database_url("odd")
    assert url == "postgresql://ann:p%40ss%3A%2F%3F@/shop%2F1?sslmode=require&host=%2Frun%2Fpostgresql"

    read = conninfo_to_dict(Options.parse(url).conninfo)
    assert (read["password"], read["dbname"], read["host"]) == ("p@ss:/?", "shop/1", "/run/postgresql")
    with pytest.raises(UsageError, match="in memory, where no worker can find its jobs"):
        configuration.database_url("memory")
    with pytest.raises(UsageError, match="cannot store jobs"):
        configuration.database_url("oracle")


def test_no_table_is_left_in_a_test_database(tmp_path: Path) -> None:
    path = tmp_path / "test.db"
    with App(f"sqlite:///{path}") as app:
        app.counts()
    with_django({"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": path}})
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM sqlite_master")
        assert cursor.fetchone() > (50,)
        drop_tables("default")
        cursor.execute("SELECT name FROM sqlite_master")
        assert cursor.fetchall() == []
    connection.close()


# --- The example project, with its own processes --------------------------------------------------------------------


class Shop:
    """The example, with its files in a folder of the test."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.env = {**os.environ, "SHOP_FOLDER": str(folder), **env}
        self.env.pop("HOLDFAST_DB", None)
        self.folder = folder

    def manage(self, *words: str) -> str:
        """Run a command of manage.py, from another folder, and return what it prints."""
        command = [sys.executable, "-W", "error", str(SHOP / "manage.py"), *words]
        ran = subprocess.run(command, env=self.env, cwd=self.folder, capture_output=True, text=True, timeout=120)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout + (ran.stderr if words[0] == "test" else "")

    def python(self, program: str) -> str:
        """Run a program in the project."""
        env = {**self.env, "DJANGO_SETTINGS_MODULE": "shop.settings", "PYTHONPATH": str(SHOP)}
        command = [sys.executable, "-W", "error", "-c", program]
        ran = subprocess.run(command, env=env, cwd=self.folder, capture_output=True, text=True, timeout=120)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout


CARELESS = """
from django.test import TestCase
from holdfast.errors import UsageError
from orders.tasks import report


class CarelessTests(TestCase):
    def test_the_queue_of_the_project_is_out_of_reach(self):
        with self.assertRaisesRegex(UsageError, "holdfast.integrations.django.test"):
            report.enqueue()
"""


@pytest.mark.slow  # it makes a test database and starts Python
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_the_tests_of_the_django_shop_pass(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    (tmp_path / "test_careless.py").write_text(CARELESS)
    env = {} if kind == "sqlite" else {"DATABASE_URL": str(request.getfixturevalue("postgres"))}
    said = Shop(tmp_path, PYTHONPATH=str(tmp_path), **env).manage("test", "orders", "test_careless")
    assert "\nOK\n" in said
    assert not (tmp_path / "shop.db").exists()
    assert not list(tmp_path.glob("*-workers"))


@pytest.mark.slow  # it starts a worker and commands
def test_manage_py_runs_a_worker_and_the_commands(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.manage("migrate", "-v", "0")
    assert shop.manage("holdfast", "db", "check").strip()  # the tables of the jobs were made with the others
    made = shop.python(
        "import django; django.setup()\n"
        "from orders.models import Order\n"
        "from orders.tasks import fulfil, send_receipt\n"
        "from django.db import transaction\n"
        "with transaction.atomic():\n"
        "    order = Order.objects.create(customer='Ann', cents=7)\n"
        "    job = fulfil.enqueue(order.pk)\n"
        "print(job.id)"
    ).strip()
    enqueued = shop.manage("holdfast", "enqueue", "orders.tasks.report")
    command = [sys.executable, str(SHOP / "manage.py"), "holdfast", "worker", "--slots", "2"]
    worker = subprocess.Popen(command, env=shop.env, cwd=tmp_path)
    try:
        for job in (made, enqueued.split()[-1]):
            until(lambda job=job: shown(shop, job)["state"] == "done", f"{job} is done")  # type: ignore[misc]
        receipts = "SELECT count(*) FROM orders_receipt"
        with sqlite3.connect(tmp_path / "shop.db") as db:
            until(lambda: db.execute(receipts).fetchone() == (1,), "the receipt is written")
        db.close()
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
    assert "Run jobs." in shop.manage("holdfast", "worker", "--help")
    assert "manage.py holdfast" in shop.manage("help", "holdfast")


def shown(shop: Shop, job: str) -> Any:
    return json.loads(shop.manage("holdfast", "jobs", "show", job, "--json", "--settings=shop.settings"))


@pytest.mark.slow  # it starts Python
def test_staff_of_the_project_see_the_server_and_others_do_not(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.manage("migrate", "-v", "0")
    said = shop.python(
        "import asyncio, httpx\n"
        "from shop.asgi import application\n"
        "from django.contrib.auth import get_user_model\n"
        "from django.db import connection\n"
        "from django.test import Client\n"
        "User = get_user_model()\n"
        "people = {name: User.objects.create(username=name, is_staff=name != 'guest', is_superuser=name == 'root')\n"
        "          for name in ('guest', 'ann', 'root')}\n"
        "def cookies(name):\n"
        "    client = Client()\n"
        "    client.force_login(people[name])\n"
        "    return {'sessionid': client.cookies['sessionid'].value}\n"
        "given = {name: cookies(name) for name in people} | {None: {}}\n"
        "async def main():\n"
        "    transport = httpx.ASGITransport(application)\n"
        "    async with application.server:\n"
        "        for name in given:\n"
        "            async with httpx.AsyncClient(transport=transport, base_url='http://testserver',\n"
        "                                         cookies=given[name]) as http:\n"
        "                asked = [await http.get('/ops/jobs/v1/jobs'),\n"
        "                         await http.get('/ops/jobs/', headers={'accept': 'text/html'}),\n"
        "                         await http.patch('/ops/jobs/v1/limits', json={'queue': 'mail', 'limit': 3},\n"
        "                                          headers={'origin': 'http://testserver'}),\n"
        "                         await http.get('/ops/jobsworth')]\n"
        "                print(name, [each.status_code for each in asked], asked[1].headers.get('location'))\n"
        "asyncio.run(main())\n"
        "from holdfast.integrations.django import app\n"
        "app.close(); connection.close()\n"
    )
    lines = dict(line.split(" ", 1) for line in said.splitlines())
    assert lines["None"] == "[401, 302, 401, 404] /accounts/login/?next=/ops/jobs/"
    assert lines["guest"] == "[401, 302, 401, 404] /accounts/login/?next=/ops/jobs/"
    assert lines["ann"].startswith("[200, ")
    assert ", 403, 404]" in lines["ann"]
    assert ", 200, 404]" in lines["root"]
