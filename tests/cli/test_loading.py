"""APP and TASK: how they are found, and what is said when they are not. Nothing is stored by a call that is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import Result

from holdfast.app import App
from holdfast.cli.loading import load_app
from holdfast.core.machine import State
from holdfast.core.records import Filter
from holdfast.errors import UsageError
from holdfast.stores import open_store
from tests.cli.conftest import Run
from tests.factory import EXPIRED, claim, row, settle

APP = """
from datetime import datetime
from holdfast import App, Context

app = App("sqlite:///own.db")
plain = App()
not_an_app = 3

class inner:
    app = app

@app.task(queue="mail")
def send(to: str, subject: str = "hello") -> str: ...

@app.task(on_crash="hold")
def charge(ctx: Context, order_id: int, *, cents: int) -> str: ...

@app.task
def remind(when: datetime, *people: str, **extra: int) -> None: ...
"""


@pytest.fixture(autouse=True)
def module(folder: Path) -> Iterator[None]:
    """`shop.py`, with an app; afterwards no trace of it is left in this process."""
    (folder / "shop.py").write_text(APP)
    before, path = set(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if not name.startswith("holdfast"):
            del sys.modules[name]


# ------------------------------------------------------------------------------------------- the app


def test_an_app_is_found_in_the_current_folder(folder: Path) -> None:
    assert load_app("shop:app").url == f"sqlite:///{folder}/own.db"
    assert load_app("shop:inner.app") is load_app("shop:app")
    assert load_app("shop:app", "sqlite:///other.db").url == f"sqlite:///{folder}/other.db"


def test_an_app_is_found_in_a_package(folder: Path) -> None:
    (folder / "pack").mkdir()
    (folder / "pack" / "jobs.py").write_text(APP)
    assert "pack.jobs.send" in load_app("pack.jobs:app").tasks


def package(folder: Path) -> None:
    """`store`: its app, tasks in modules that the app does not import, and a module that must not be imported."""
    declares = "from store.app import app\n@app.task\ndef work() -> None: ...\n"
    modules = {
        "__init__.py": "",
        "app.py": "from holdfast import App\napp = App('sqlite:///own.db')\n",
        "mail.py": declares,
        "parts/__init__.py": "",
        "parts/tasks.py": declares,
        "parts/other.py": "raise SystemExit('imported')",
        "tasks/__init__.py": "",
        "tasks/night.py": declares,
        "tasks/__main__.py": "raise SystemExit('imported')",
    }
    for name, text in modules.items():
        (folder / "store" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "store" / name).write_text(text)


def test_tasks_in_modules_that_the_app_does_not_import_are_imported_by_name(run: Run, folder: Path) -> None:
    package(folder)
    assert load_app("store.app:app").tasks == {}
    refused = run("enqueue", "store.app:app", "work", "--import", "store.nothing", code=2)
    assert "there is no module 'store.nothing'" in refused.stderr
    run("enqueue", "store.app:app", "store.mail.work", "--import", "store.mail")
    assert set(load_app("store.app:app").tasks) == {"store.mail.work"}


def test_tasks_are_discovered_in_a_package(run: Run, folder: Path) -> None:
    package(folder)
    refused = run("enqueue", "store.app:app", "work", "--discover", "store.app", code=2)
    assert "package 'store.app' has no module named tasks; name the modules with --import" in refused.stderr
    run("enqueue", "store.app:app", "store.parts.tasks.work", "--discover", "store")
    assert set(load_app("store.app:app").tasks) == {"store.parts.tasks.work", "store.tasks.night.work"}


@pytest.mark.parametrize(
    ("ref", "said"),
    [
        ("shop", "'shop' does not name an App; write shop:app"),
        ("shop.py", "write shop:app"),
        (":app", "write module:name, for example jobs:app"),
        ("shop:", "write shop:app"),
        ("shop.py:app", "'shop.py' is a file; name the module: shop:app"),
        ("./sub/shop.py:app", "name the module: sub.shop:app"),
        ("nowhere:app", "there is no module 'nowhere' in "),
        ("shop.deeper:app", "there is no module 'shop.deeper' in "),
        ("shop:ap", "module 'shop' has no 'ap'; did you mean shop:app?"),
        ("shop:inner.none", "module 'shop' has no 'inner.none'"),
        ("shop:not_an_app", "shop:not_an_app is a int, not a holdfast App; did you mean shop:"),
        ("json:loads", "not a holdfast App; make one: app = holdfast.App()"),
    ],
)
def test_what_is_said_of_an_app_that_is_not_there(run: Run, folder: Path, ref: str, said: str) -> None:
    for command in (("worker", ref), ("enqueue", ref, "send")):
        assert said in run(*command, code=2).stderr
    assert not list(folder.glob("*.db*"))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import not_installed_anywhere", ["line 1", "import not_installed_anywhere", "ModuleNotFoundError"]),
        ("def f():\n    return 1 / 0\nf()", ["line 3", "f()", "line 2", "return 1 / 0", "ZeroDivisionError"]),
        ("def f(:", ["line 1", "def f(:", "SyntaxError"]),
        ("import sys\nsys.exit(3)", ["line 2", "sys.exit(3)", "SystemExit: 3"]),
    ],
)
def test_an_error_inside_the_users_module_is_told_with_its_own_lines_only(
    run: Run, folder: Path, source: str, said: list[str]
) -> None:
    (folder / "broken.py").write_text(source)
    told = run("worker", "broken:app", code=2).stderr
    assert told.startswith("holdfast: module 'broken' could not be imported:\n")
    for words in said:
        assert words in told
    assert "importlib" not in told
    assert "loading.py" not in told


def test_an_error_inside_the_users_module_cannot_forge_a_line_of_the_workers_log(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "forging.py").write_text("raise ValueError('x\\x1b[2J\\r2030 forged\\nall is lost')")
    monkeypatch.syspath_prepend(folder)
    with pytest.raises(UsageError) as caught:
        load_app("forging:app")
    assert str(caught.value).endswith("ValueError: x\\x1b[2J\\r2030 forged\n  all is lost")


# ------------------------------------------------------------------------------------------- the task


def stored(url: str) -> list[str]:
    """The payloads in a store."""
    store = open_store(url, create=False)
    try:
        return [job.payload for job in store.find(Filter())]
    finally:
        store.close()


@pytest.mark.parametrize(
    ("words", "payload"),
    [
        (["shop.send", '["ann"]'], {"to": "ann"}),
        (["send", '["ann", "bye"]'], {"to": "ann", "subject": "bye"}),
        (["send", '{"subject": "bye", "to": "ann"}'], {"to": "ann", "subject": "bye"}),
        (["charge", '{"order_id": 42, "cents": 999}'], {"order_id": 42, "cents": 999}),
        (["remind", '["2026-01-01T10:00:00Z"]'], {"when": "2026-01-01T10:00:00Z"}),
        (["remind", '["2026-01-01T10:00:00Z", "ann"]'], {"when": "2026-01-01T10:00:00Z", "people": ["ann"]}),
        (["remind", '{"when": "2026-01-01T10:00:00Z", "a": 1}'], {"when": "2026-01-01T10:00:00Z", "extra": {"a": 1}}),
    ],
)
def test_arguments_are_read_as_the_worker_will(run: Run, words: list[str], payload: dict[str, object]) -> None:
    run("enqueue", "shop:app", *words)
    [text] = stored("sqlite:///own.db")
    assert json.loads(text) == payload


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sned", '["ann"]'], "did you mean shop.send?"),
        (["xyzzy"], "this app has no task 'xyzzy'; known: shop.charge, shop.remind, shop.send"),
        (["send"], "missing argument 'to'"),
        (["send", "[]"], "missing argument 'to'"),
        (["send", "[1]"], "argument 'to'"),
        (["send", '["a", "b", "c"]'], "too many positional arguments"),
        (["send", '{"cc": "b"}'], "unexpected argument 'cc'; missing argument 'to'; it takes (to, subject='hello')"),
        (["charge", '{"order_id": "x", "cents": 1}'], "argument 'order_id'"),
        (["charge", '{"ctx": 1, "order_id": 1, "cents": 1}'], "ctx"),
        (["remind", '["tomorrow"]'], "argument 'when'"),
        (["send", "5"], "a JSON array (positional) or object (keywords)"),
        (["send", "5"], """'["ann@example.org", 3]'"""),
        (["send", "{oops"], "not valid JSON"),
        (["send", "[ann]"], """positional arguments, '["ann@example.org", 3]', or """),
        (["send", "[ann]"], """keyword arguments, '{"order": 42, "cents": 999}', in single quotes"""),
        (["send", '["a"]', "--id", "a b"], "id='a b'"),
        (["send", '["a"]', "--on-crash", "rollback"], "which only workflows have"),
        (["send", '["a"]', "--on-crash", "nothing"], "'retry', 'hold', 'fail', 'rollback'"),
        (["send", '["a"]', "--priority", "high"], "--priority"),
        (["send", '["a"]', "--run-after", "soon"], "--run-after"),
    ],
)
def test_a_wrong_call_is_2_and_stores_nothing(run: Run, folder: Path, words: list[str], said: str) -> None:
    result = run("enqueue", "shop:app", *words, code=2)
    assert said in result.stderr
    assert result.stdout == ""
    assert not (folder / "own.db").exists() or stored("sqlite:///own.db") == []


def test_the_id_is_printed_and_a_second_job_with_the_key_is_not_added(run: Run) -> None:
    words = ("enqueue", "shop:app", "send", '["ann"]', "--key", "k")
    first = run(*words).stdout.strip()
    del sys.modules["shop"]  # as in a new process
    again = run(*words)
    assert again.stdout.strip() == first
    assert "no second one was added" in again.stderr
    del sys.modules["shop"]
    assert run.json(*words) == {"id": first, "existed": True, "state": "ready"}
    assert len(stored("sqlite:///own.db")) == 1


def test_an_id_that_is_taken_is_told_with_what_is_other(run: Run) -> None:
    def again(*words: str) -> Result:
        sys.modules.pop("shop", None)  # as in a new process
        return run("enqueue", "shop:app", *words, "--id", "mine")

    again("send", '{"to": "ann", "subject": "hi"}')
    same = again("send", '{"subject": "hi", "to": "ann"}')
    assert same.stderr == "This job was there already, and is ready; no second one was added.\n"
    assert again("send", '["ann", "hi"]', "--json").stderr == ""
    for form in ((), ("--json",)):
        told = again("send", '["bo"]', *form).stderr
        assert told == "This job was there already, with other arguments, and is ready; no second one was added.\n"
    told = again("charge", '{"order_id": 1, "cents": 2}').stderr
    assert told == "This job was there already, of task shop.send, and is ready; no second one was added.\n"
    assert again("send", '["bo"]', "-q").stderr == ""
    assert len(stored("sqlite:///own.db")) == 1


FLOWS = """
from holdfast import App, Flow
app = App("sqlite:///flows.db")

@app.workflow
def checkout(flow: Flow, order: int) -> int:
    return order
"""


def test_a_workflow_may_be_rolled_back_when_its_worker_dies(run: Run, folder: Path) -> None:
    (folder / "flowshop.py").write_text(FLOWS)
    job = run.json("enqueue", "flowshop:app", "checkout", "[1]", "--on-crash", "rollback")
    with App("sqlite:///flows.db") as app:
        row = app.get(job["id"]).row
    assert (row.on_crash, row.workflow) == ("rollback", True)


def test_an_enqueue_of_an_old_version_says_that_there_is_a_newer_one(run: Run, folder: Path) -> None:
    newer = "\n@app.workflow(name='flowshop.checkout', version=2)\ndef again(flow: Flow, order: int) -> int: ...\n"
    (folder / "flowshop.py").write_text(FLOWS + newer)
    told = run("enqueue", "flowshop:app", "checkout", "[1]").stderr
    assert told == "flowshop.checkout has a newer version, which only its own name starts: flowshop.checkout@2\n"
    del sys.modules["flowshop"]  # its app is closed
    assert run("enqueue", "flowshop:app", "checkout@2", "[1]").stderr == ""


# ------------------------------------------------------------------------- a result, given by a person


@pytest.fixture
def held_id(run: Run) -> str:
    """A held job of `shop.charge` in the app's own store."""
    job_id: str = run.json("enqueue", "shop:app", "charge", '{"order_id": 1, "cents": 2}')["id"]
    with closing(open_store("sqlite:///own.db", create=False)) as store:
        [job] = claim(store, tasks=["shop.charge"])
        settle(store, job, EXPIRED)
    sys.modules.pop("shop", None)  # as in a new process
    return job_id


def result_of(job_id: str) -> tuple[str, str | None]:
    with closing(open_store("sqlite:///own.db", create=False)) as store:
        job = row(store, job_id)
        return job.state.value, job.result


def test_a_result_is_held_to_the_task_of_the_app(run: Run, held_id: str) -> None:
    said = run("held", "done", held_id, "--app", "shop:app", "--result", "7", code=2).stderr
    assert "task shop.charge: the result" in said
    assert result_of(held_id) == ("held", None)
    sys.modules.pop("shop", None)
    run("held", "done", held_id, "--app", "shop:app", "--result", '"receipt 7"')
    assert result_of(held_id) == ("done", '"receipt 7"')


def test_without_the_app_a_result_is_not_checked_and_help_says_so(run: Run, held_id: str) -> None:
    assert "Without it the result of a task is not checked" in " ".join(run("held", "done", "--help").stdout.split())
    run("held", "done", held_id, "--result", "7", "--db", "sqlite:///own.db")
    assert result_of(held_id) == ("done", "7")


def test_an_app_that_has_not_the_task_cannot_check_a_result(run: Run, held_id: str) -> None:
    words = ("held", "done", held_id, "--app", "shop:plain", "--db", "sqlite:///own.db", "--result", "7")
    assert "shop:plain has no task 'shop.charge'; name the app that declares it" in run(*words, code=2).stderr
    assert result_of(held_id) == ("held", None)


def test_an_app_whose_store_is_not_there_makes_none(run: Run, folder: Path) -> None:
    run("held", "done", "x", "--app", "shop:app", code=3)
    assert not list(folder.glob("*.db*"))


def test_what_an_enqueue_may_choose(run: Run) -> None:
    options = ["--queue", "fast", "--key", "k", "--run-after", "1h", "--priority", "7", "--id", "mine"]
    shown = run.json("enqueue", "shop:app", "send", '["ann"]', *options, "--on-crash", "fail")
    assert shown == {"id": "mine", "existed": False, "state": "scheduled"}
    store = open_store("sqlite:///own.db", create=False)
    job = store.get("mine")
    store.close()
    assert job is not None
    assert (job.queue, job.key, job.priority, job.on_crash, job.state) == ("fast", "k", 7, "fail", State.READY)
    assert job.run_at - job.created_at == pytest.approx(3600, abs=1)


def test_arguments_may_come_from_stdin(run: Run) -> None:
    run("enqueue", "shop:app", "send", "-", input='["ann"]')
    assert stored("sqlite:///own.db") == ['{"to":"ann"}']


def test_a_flag_overrides_the_apps_own_store_and_the_environment_does_not(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_DB", "sqlite:///env.db")
    run("enqueue", "shop:app", "send", '["ann"]')
    assert [path.name for path in folder.glob("*.db")] == ["own.db"]


def test_a_flag_may_stand_before_or_after(run: Run, folder: Path) -> None:
    run("--db", "sqlite:///a.db", "enqueue", "shop:app", "send", '["ann"]')
    assert [path.name for path in folder.glob("*.db")] == ["a.db"]


def test_worker_hands_over_what_it_was_told(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.worker import supervisor
    from holdfast.worker.options import WorkerOptions

    told: list[tuple[str, str, WorkerOptions]] = []
    monkeypatch.setattr(supervisor, "supervise", lambda ref, app, options, _: told.append((ref, app.url, options)) or 0)
    run("worker", "shop:app")
    assert told.pop() == ("shop:app", f"sqlite:///{folder}/own.db", WorkerOptions())
    del sys.modules["shop"]  # the next command is another process: there the store is not open yet
    words = ["--queues", "mail,media", "--slots", "8", "--processes", "2", "--name", "w1", "--grace-period", "1m"]
    words += ["--grace", "5", "--no-reaper", "--db", "sqlite:///x.db", "--log-level", "DEBUG"]
    run("worker", "shop:app", *words)
    assert told[0][1] == f"sqlite:///{folder}/x.db"
    assert told.pop()[2] == WorkerOptions(
        queues=("mail", "media"),
        slots=8,
        processes=2,
        name="w1",
        grace_period_s=60.0,
        reaper=False,
        grace_s=5.0,
        log_level="debug",
    )


def test_a_queue_that_no_task_names_is_served_with_a_warning(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from holdfast.worker import supervisor
    from holdfast.worker.options import WorkerOptions

    served: list[WorkerOptions] = []
    monkeypatch.setattr(supervisor, "supervise", lambda ref, app, options, _: served.append(options) or 0)
    run("worker", "shop:app", "--queues", "mail,default")
    assert caplog.messages == []
    del sys.modules["shop"]  # the next command is another process
    run("worker", "shop:app", "--queues", "mail,typo")
    assert served[-1].queues == ("mail", "typo")
    [warning] = caplog.messages
    assert warning.startswith("queue 'typo' is not named by any task of shop:app; it is served, but")
    assert warning.endswith("The named queues: default, mail")


def test_the_exit_code_of_a_worker_is_its_supervisors(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.worker import supervisor

    monkeypatch.setattr(supervisor, "supervise", lambda *_: 1)
    run("worker", "shop:app", code=1)
