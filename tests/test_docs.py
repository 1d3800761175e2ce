"""The documentation is tested like code: its programs run, its commands parse, its links and names are real.

A fenced block says by its first line what it is: `python` must compile; `python file=tasks.py` is written into a
folder, for the blocks that follow on the same page; `python run` is a complete program and is run there: after
`worker=tasks:app` with a real worker beside it, after `postgres` with the address of a real server in DATABASE_URL.
Lines with `holdfast …` in `sh` blocks, and `holdfast …` in running text, are parsed by the real command line, which
executes nothing.
"""

import ast
import asyncio
import atexit
import importlib.util
import inspect
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import click
import psycopg
import pytest

import holdfast
from holdfast import errors
from holdfast.admin import Admin
from holdfast.cli.exit_codes import Exit
from holdfast.cli.main import cli
from holdfast.core import records
from holdfast.core.records import EventKind
from holdfast.integrations.django.management.commands.holdfast import with_app
from holdfast.runtime.hooks import HookKind
from holdfast.stores.protocol import Store
from holdfast.tasks import Sender, Task, TaskOptions
from holdfast.worker.context import Context

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "holdfast"
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")], key=lambda page: page.as_posix()
)
EXAMPLES = sorted(ROOT.glob("examples/*.py"))


class Block(NamedTuple):
    page: str
    line: int
    info: str  # what stands after the three backticks
    text: str

    def option(self, name: str) -> str | None:
        return next((word.partition("=")[2] for word in self.info.split() if word.startswith(f"{name}=")), None)


def blocks() -> Iterator[Block]:
    for page in PAGES:
        name = page.relative_to(ROOT).as_posix()
        for match in re.finditer(r"^```(\w[^\n]*)\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE):
            line = page.read_text("utf-8")[: match.start()].count("\n") + 1
            yield Block(name, line, match[1].strip(), match[2])


def named(block: Block) -> str:
    return f"{block.page}:{block.line}"


PYTHON = [block for block in blocks() if block.info.split()[0] == "python"]
PROGRAMS = [block for block in PYTHON if "run" in block.info.split()]


def prose() -> str:
    return "\n".join(page.read_text("utf-8") for page in PAGES if page.name != "cli.md")


# --- Programs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", PYTHON, ids=named)
def test_every_python_block_compiles(block: Block) -> None:
    compile(block.text, named(block), "exec")


def test_there_are_programs_to_run() -> None:
    assert len(PROGRAMS) >= 5


@pytest.mark.slow  # each starts an interpreter, and most a worker
@pytest.mark.parametrize("block", PROGRAMS, ids=named)
def test_every_complete_program_runs(block: Block, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    env = clean()
    if "postgres" in block.info.split():
        env["DATABASE_URL"] = request.getfixturevalue("postgres")
    for before in PYTHON:
        if before.page == block.page and before.line < block.line and (name := before.option("file")):
            (tmp_path / name).write_text(before.text)
    (tmp_path / "program.py").write_text(block.text)
    app = block.option("worker")
    worker = start_worker(app, tmp_path, env) if app else None
    try:
        run = subprocess.run(
            [sys.executable, "program.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
        )
    finally:
        log = stop(worker) if worker else ""
    assert run.returncode == 0, f"{run.stderr}\n{log}"


def test_the_first_workflow_of_the_docs_gives_the_money_back_if_it_is_not_approved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = documented("workflows.md", "shop", tmp_path, monkeypatch)
    refunded: list[int] = []
    monkeypatch.setattr(shop, "refund", lambda result, order_id, cents: refunded.append(cents))
    try:
        job = shop.checkout.enqueue(42)
        shop.app.tick()
        shop.app.approve(job.id, False)
        while job.refresh().state in ("ready", "running", "waiting"):
            shop.app.tick()
    finally:
        shop.app.close()
    assert (job.state, refunded) == ("rolled_back", [999])


class Web:
    """As much of FastAPI as the example uses: its lifespan, and the function behind an address."""

    def __init__(self, *, lifespan: Any) -> None:
        self.lifespan = lifespan

    def post(self, path: str, *, status_code: int) -> Any:
        return lambda function: function


def test_the_web_application_of_the_docs_serves_a_second_test_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", SimpleNamespace(FastAPI=Web))
    tasks = documented("tasks.md", "tasks", tmp_path, monkeypatch)
    web = documented("tasks.md", "web", tmp_path, monkeypatch)

    async def client(name: str) -> str:
        async with web.api.lifespan(web.api):
            return str((await asyncio.to_thread(web.create, name))["job"])

    try:
        ids = [asyncio.run(client(name)) for name in ("Ann", "Bob")]
        assert [tasks.app.get(id).state for id in ids] == ["ready", "ready"]
    finally:
        tasks.app.close()
        atexit.unregister(tasks.app.close)


@pytest.mark.slow  # a PostgreSQL server
def test_the_web_application_of_the_docs_stores_order_and_job_together_on_postgresql(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres: str
) -> None:
    with psycopg.connect(postgres) as connection:  # an example project has tables of that name, too
        connection.execute("DROP TABLE IF EXISTS orders CASCADE")
    monkeypatch.setenv("DATABASE_URL", postgres)
    monkeypatch.setitem(sys.modules, "fastapi", SimpleNamespace(FastAPI=Web))
    shop = documented("tasks.md", "shop", tmp_path, monkeypatch)
    api = documented("tasks.md", "api", tmp_path, monkeypatch)

    async def client(number: int) -> str:
        async with api.api.lifespan(api.api):
            return str((await api.create(number))["job"])

    async def second(number: int) -> None:
        async with api.api.lifespan(api.api):
            with pytest.raises(Exception, match="duplicate key"):
                await api.create(number)

    try:
        before = shop.app.counts().get("ready", 0)
        # Numbers of its own: programs of other pages and tests store orders in the same database.
        assert [shop.app.get(asyncio.run(client(number))).state for number in (901, 902)] == ["ready", "ready"]
        asyncio.run(second(902))
        assert shop.app.counts()["ready"] == before + 2
    finally:
        shop.app.close()
        atexit.unregister(shop.app.close)


@pytest.mark.slow  # a real worker, and a server that cuts its sessions
def test_a_django_task_of_the_docs_survives_the_end_of_its_connections(tmp_path: Path, postgres: str) -> None:
    for name in ("shop", "baskets"):
        info = f"python file={name}.py"
        text = next(block.text for block in PYTHON if block.page == "docs/tasks.md" and block.info == info)
        # Connections that last, so that the second job finds one that is broken.
        text = text.replace('"ENGINE"', '"CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": True, "ENGINE"')
        (tmp_path / f"{name}.py").write_text(text.replace("**place", '**place, "OPTIONS": {"application_name": "orm"}'))
    program = """
import psycopg
from baskets import URL, count
for number in range(3):
    assert count.using(id=f"count-{number}").enqueue(number).result(timeout=30) == number
    with psycopg.connect(URL, autocommit=True) as db:
        ended = db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'orm'")
        assert ended.fetchall() == [(True,)], "the worker has kept its connection"
"""
    env = {**clean(), "DATABASE_URL": postgres, "HOLDFAST_WORKER_SLOTS": "1"}  # one thread, which runs all of them
    (tmp_path / "program.py").write_text(program)
    worker = start_worker("baskets:app", tmp_path, env)
    try:
        run = subprocess.run(
            [sys.executable, "program.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120
        )
    finally:
        log = stop(worker)
    assert run.returncode == 0, f"{run.stderr}\n{log}"


@pytest.mark.slow  # the cron line starts a program
def test_the_recipes_of_the_docs_run_jobs_without_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DB", f"sqlite:///{tmp_path}/jobs.db")
    monkeypatch.setenv("TICK_TOKEN", "sesame")
    tasks = documented("serverless.md", "tasks", tmp_path, monkeypatch)
    function, wsgi, asgi = (
        documented("serverless.md", name, tmp_path, monkeypatch) for name in ("function", "web_wsgi", "web_asgi")
    )
    limit = SimpleNamespace(get_remaining_time_in_millis=lambda: 30_000)

    def post(path: str, token: str) -> tuple[int, str]:
        answers: list[str] = []
        environ = {"REQUEST_METHOD": "POST", "PATH_INFO": path, "HTTP_AUTHORIZATION": f"Bearer {token}"}
        body = wsgi.application(environ, lambda status, headers: answers.append(status))
        return int(answers[0].split()[0]), b"".join(body).decode()

    def apost(path: str, token: str) -> tuple[int, str]:
        sent: list[dict[str, Any]] = []
        headers = [(b"authorization", f"Bearer {token}".encode())]

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
        asyncio.run(asgi.application(scope, None, send))
        return sent[0]["status"], sent[1]["body"].decode()

    def cron() -> None:
        text = (ROOT / "docs" / "serverless.md").read_text("utf-8")
        [line] = re.findall(r"^\* \* \* \* \*  (.*)$", text, re.MULTILINE)
        command = line.replace("/srv/app", str(tmp_path)).replace("holdfast tick", f"{sys.executable} -m holdfast tick")
        ran = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")

    try:
        for call in (lambda: function.handler({}, limit), lambda: post("/tick", "sesame"), cron):
            job = tasks.resize.enqueue("a.mov")
            call()
            assert job.result(timeout=0) == "a.mov resized"
        job = tasks.resize.enqueue("b.mov")
        for ask in (post, apost):
            assert [ask("/tick", "please"), ask("/", "sesame")] == [(401, ""), (404, "")]
        assert job.refresh().state == "ready"
        assert apost("/tick", "sesame") == (200, "1 settled\n")
    finally:
        tasks.app.close()


def documented(page: str, module: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import the first module of this name that a page shows, in a folder of its own."""
    info = f"python file={module}.py"
    text = next(block.text for block in PYTHON if block.page == f"docs/{page}" and block.info == info)
    (folder / f"{module}.py").write_text(text)
    monkeypatch.chdir(folder)
    spec = importlib.util.spec_from_file_location(module, folder / f"{module}.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, module, found)
    spec.loader.exec_module(found)
    return found


@pytest.mark.slow  # real workers, killed and started again
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_every_example_runs(example: Path, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, example], cwd=tmp_path, env=clean(), capture_output=True, text=True, timeout=90
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip(), "an example shows something"
    assert example.name in (ROOT / "examples" / "README.md").read_text("utf-8")


def start_worker(app: str, folder: Path, env: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast", "worker", app, "--grace-period", "1"],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def stop(worker: subprocess.Popen[str]) -> str:
    worker.send_signal(signal.SIGTERM)
    try:
        log, _ = worker.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        worker.kill()
        log, _ = worker.communicate()
    return log


def clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}


# --- Commands --------------------------------------------------------------------------------------------


class Command(NamedTuple):
    where: str
    words: tuple[str, ...]  # after `holdfast`
    whole: bool  # in a block: all that is needed must be there; in running text the rest may be left out


def commands() -> Iterator[Command]:
    for block in blocks():
        if block.info.split()[0] in ("sh", "console"):
            for number, line in enumerate(block.text.splitlines(), block.line + 1):
                yield from parsed(f"{block.page}:{number}", line, whole=True)
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
        for span in re.findall(r"`(holdfast [^`]+)`", text):
            yield from parsed(f"{page.relative_to(ROOT).as_posix()} `{span}`", span, whole=False)


def parsed(where: str, line: str, *, whole: bool) -> Iterator[Command]:
    if "holdfast " not in line or line.lstrip().startswith(("#", "pip ")):
        return
    words = shlex.split(line.removeprefix("$ "), comments=True)
    if "holdfast" not in words:
        return
    at = words.index("holdfast")
    in_django, words = words[:at][-1:] == ["manage.py"], words[at + 1 :]
    ends = [at for at, word in enumerate(words) if word in ("|", "||", "&&", "&", ";") or word.startswith((">", "2>"))]
    words = words[: ends[0]] if ends else words
    yield Command(where, tuple(with_app(words) if in_django else words), whole)


PLACES = {"…", "COMMAND", "[JSON]"}  # what a usage line leaves open
COMMANDS = [command for command in commands() if not PLACES & {*command.words}]


def test_there_are_commands_to_parse() -> None:
    assert len(COMMANDS) >= 30


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: f"{command.where}: {' '.join(command.words)}"[:120])
def test_every_documented_command_exists(command: Command) -> None:
    assert misuse(command) is None


def misuse(command: Command) -> str | None:
    """Parse as the command line would, without running anything; say what is wrong, or None."""
    context: click.Context | None = None
    current: click.Command = cli
    name, words = "holdfast", list(command.words)
    try:
        while True:
            context = current.make_context(name, words, parent=context)
            if not isinstance(current, click.Group):
                return None
            rest = [*context._protected_args, *context.args]
            if not rest:
                return None if not command.whole else f"{name} needs a command"
            found_name, found, words = current.resolve_command(context, rest)
            assert found is not None
            assert found_name is not None
            name, current = found_name, found
    except click.exceptions.Exit:  # --help, --version
        return None
    except (click.MissingParameter, click.exceptions.NoArgsIsHelpError) as error:
        return error.format_message() if command.whole else None
    except click.UsageError as error:
        return error.format_message()
    except errors.HoldfastError as error:
        return str(error)


@pytest.mark.parametrize("words", ["jobs lst", "scan --fx", "db prune", "jobs list --state gone", "held done"])
def test_a_wrong_command_would_be_noticed(words: str) -> None:
    assert misuse(Command("here", tuple(words.split()), whole=True)) is not None


# --- Links and names -------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent != ROOT], ids=lambda page: page.name)
def test_no_command_is_broken_over_two_lines(page: Path) -> None:
    """A command that spans two lines would be neither found by a reader's search nor parsed by the tests above."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert not re.findall(r"`holdfast\n[^`]*`|`holdfast [^`\n]*\n[^`\n]*`", text)


def test_the_index_lists_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text("utf-8")
    assert re.findall(r"^## (.+)$", index, re.MULTILINE) == ["Start", "How-to guides", "Reference", "Explanation"]
    pages = [page.name for page in (ROOT / "docs").glob("*.md") if page.name != "README.md"]
    assert not [name for name in pages if f"]({name})" not in index]


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_public_name_is_documented() -> None:
    text = prose()
    missing = [name for name in holdfast.__all__ if not re.search(rf"\b{name}\b", text) and name != "__version__"]
    assert not missing


def test_every_error_is_documented() -> None:
    kinds = [name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, BaseException)]
    text = (ROOT / "docs" / "tasks.md").read_text("utf-8")
    assert not [name for name in kinds if f"`{name}`" not in text]


def test_every_option_of_a_task_is_documented() -> None:
    text = (ROOT / "docs" / "tasks.md").read_text("utf-8")
    options = {*TaskOptions.__annotations__, *inspect.signature(Sender.using).parameters} - {"self"}
    assert not [name for name in options if f"`{name}`" not in text]
    told = str(holdfast.App.task.__doc__)
    assert not [name for name in TaskOptions.__annotations__ if not re.search(rf"\b{name}(, \w+)*: ", told)]


def test_everything_in_the_context_is_documented() -> None:
    text = (ROOT / "docs" / "tasks.md").read_text("utf-8")
    names = [name for name in [*vars(Context), "log"] if not name.startswith("_")]
    assert not [name for name in names if not re.search(rf"`{name}\b", text)]


def test_every_option_of_an_app_and_verb_of_it_is_documented() -> None:
    text = prose()
    verbs = [name for name, value in vars(holdfast.App).items() if callable(value) and not name.startswith("_")]
    options = [name for name in inspect.signature(holdfast.App).parameters if name != "url"]
    missing = [name for name in verbs if f"{name}" not in text]
    assert not missing + [name for name in options if not re.search(rf"\b{name}=|`{name}`", text)]


DECORATORS = {"task", "workflow"}  # properties that are called like methods
API: dict[str, tuple[type, list[str]]] = {
    "Attributes of the app": (
        holdfast.App,
        [name for name, value in vars(holdfast.App).items() if isinstance(value, property) and name not in DECORATORS],
    ),
    "Methods of the app": (
        holdfast.App,
        [*DECORATORS, *(name for name, value in vars(holdfast.App).items() if inspect.isfunction(value))],
    ),
    "Tasks": (Sender, [*vars(Sender), *(name for name, value in vars(Task).items() if inspect.isfunction(value))]),
    "Reads and acts of people": (Admin, [*vars(Admin)]),
    "Job": (holdfast.Job, [*vars(holdfast.Job)]),
    "Context": (Context, [*vars(Context)]),
    "Flow": (holdfast.Flow, [*vars(holdfast.Flow)]),
}
COLUMNS = {"Columns of a job": records.Job, "Columns of an event": records.Event, "Columns of a step": records.Step}


def first_cells(title: str) -> str:
    """Return what a section of the page on the API lists in the first column of its tables."""
    text = (ROOT / "docs" / "api.md").read_text("utf-8")
    [section] = re.findall(rf"^##+ {re.escape(title)}$(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
    return "\n".join(re.findall(r"^\| (`.*?`) \|", section, re.MULTILINE))


@pytest.mark.parametrize("title", API)
def test_the_page_on_the_api_lists_every_public_name_with_its_parameters(title: str) -> None:
    cells, (kind, names) = first_cells(title), API[title]
    for name in names:
        if name.startswith("_"):
            continue
        assert re.search(rf"`{name}\b", cells), f"{name} is missing"
        method = vars(kind).get(name)
        if inspect.isfunction(method) and kind is not Sender:  # what tasks are called with has a table of its own
            [listed] = re.findall(rf"`{name}\(([^)]*)\)`", cells)
            assert re.findall(r"\w+", listed) == [*inspect.signature(method).parameters][1:], name


@pytest.mark.parametrize("title", COLUMNS)
def test_the_page_on_the_api_lists_every_column(title: str) -> None:
    assert sorted(re.findall(r"`(\w+)`", first_cells(title))) == sorted(COLUMNS[title].__struct_fields__)


def test_the_page_on_the_api_lists_every_option() -> None:
    options = re.findall(r"`(\w+)`", first_cells("Options of tasks and workflows"))
    using = inspect.signature(Sender.using).parameters
    assert sorted(options) == sorted({*TaskOptions.__annotations__, "version", *using} - {"self"})
    listed = re.findall(r"`(\w+)`", first_cells("App"))
    assert listed == [*inspect.signature(holdfast.App).parameters]
    text = (ROOT / "docs" / "api.md").read_text("utf-8")
    assert f"`Retry({', '.join(inspect.signature(holdfast.Retry).parameters)})`" in text
    [kinds] = re.findall(r"^\| `kind` \| (.*) \|$", text.partition("### Columns of an event")[2], re.MULTILINE)[:1]
    assert re.findall(r"`(\w+)`", kinds) == list(EventKind.__args__)  # type: ignore[attr-defined]


def test_every_exit_code_is_documented() -> None:
    text = (ROOT / "docs" / "operations.md").read_text("utf-8")
    assert not [code for code in Exit if f"| {code.value} |" not in text]


def quotes() -> Iterator[str]:
    """Return the log lines in the tables of the page on operations."""
    for row in re.findall(r"^\|.*\|$", (ROOT / "docs" / "operations.md").read_text("utf-8"), re.MULTILINE):
        for span in re.findall(r"`([^`]+)`", row):
            if len(span.split()) >= 4 and not span.startswith("holdfast "):
                yield span


def runs(quote: str) -> list[str]:
    """Return each three words in a row of the longest part of a quote without what is filled in. A third of
    them must be in the program: it puts some lines together from two texts."""
    words = max(re.split(r"…|\d+|SIG\w+", quote), key=len).split()
    return [" ".join(words[at : at + 3]) for at in range(max(1, len(words) - 2))]


def test_every_log_line_that_is_quoted_is_one_of_the_program() -> None:
    trees = [ast.parse(path.read_text("utf-8")) for path in PACKAGE.rglob("*.py")]
    texts = [node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    said = "\n".join(text for text in texts if isinstance(text, str))
    found = list(quotes())
    assert len(found) >= 20
    assert not [quote for quote in found if sum(run in said for run in runs(quote)) * 3 < len(runs(quote))]


def test_every_kind_of_hook_that_is_called_is_documented() -> None:
    emitted = {"zombie", "held", "dead"}
    assert emitted <= set(HookKind.__args__)  # type: ignore[attr-defined]
    assert emitted <= set(EventKind.__args__)  # type: ignore[attr-defined]
    text = (ROOT / "docs" / "tasks.md").read_text("utf-8")
    assert not [kind for kind in emitted if f"`{kind}`" not in text]


# --- The house -------------------------------------------------------------------------------------------


def test_the_tree_in_architecture_is_the_tree() -> None:
    [tree] = [
        block.text for block in blocks() if block.page == "docs/ARCHITECTURE.md" and "src/holdfast/\n" in block.text
    ]
    real = {
        path.relative_to(ROOT).as_posix()
        for path in PACKAGE.rglob("*")
        if path.suffix in (".py", ".sql") and "__pycache__" not in path.parts
    }
    real = {path for path in real if "/migrations/" not in path}
    assert drawn(tree) == real


def drawn(tree: str) -> set[str]:
    """Return the files under src/ that a tree drawn by indentation names."""
    files: set[str] = set()
    folders: list[tuple[int, str]] = []
    for line in tree.splitlines():
        indent = len(line) - len(line.lstrip())
        names = re.split(r"\s{2,}", line.strip())[0].split()
        if not names or (indent == 0 and not names[0].startswith("src/")):
            folders = [] if indent == 0 and names else folders
            continue
        while folders and folders[-1][0] >= indent:
            folders.pop()
        where = "".join(folder for _, folder in folders)
        if names[0].endswith("/"):
            folders.append((indent, names[0]))
        elif where:
            files |= {where + name for name in names if name.endswith((".py", ".sql"))}
    return files


def test_every_verb_of_the_store_is_in_architecture() -> None:
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text("utf-8")
    verbs = [name for name, value in vars(Store).items() if inspect.isfunction(value) and not name.startswith("_")]
    assert not [verb for verb in verbs if f"`{verb}`" not in text]


def test_every_decision_is_listed_and_complete() -> None:
    pages = sorted((ROOT / "docs" / "adr").glob("0*.md"))
    index = (ROOT / "docs" / "adr" / "README.md").read_text("utf-8")
    for page in pages:
        text = page.read_text("utf-8")
        assert page.name in index
        assert text.startswith(f"# {int(page.name[:4])}. ")
        titles = re.findall(r"^## (.+)$", text, re.MULTILINE)
        assert titles == ["Status", "Context", "Decision", "Consequences"]


# --- The promises ----------------------------------------------------------------------------------------

GUARANTEES = ROOT / "docs" / "guarantees.md"


def test_every_promise_has_a_place() -> None:
    titles = re.findall(r"^### (P\d+)\b", GUARANTEES.read_text("utf-8"), re.MULTILINE)
    assert titles == [f"P{number}" for number in range(1, 16)]


def test_every_test_that_a_promise_names_exists() -> None:
    named_tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", GUARANTEES.read_text("utf-8"))
    assert len(named_tests) >= 14
    missing = [f"{file}::{name}" for file, name in named_tests if name not in defined_in(ROOT / file)]
    assert not missing


def test_every_file_that_a_promise_names_exists() -> None:
    files = re.findall(r"`((?:tests|bench|src)/[\w/]+\.(?:py|sql))`", GUARANTEES.read_text("utf-8"))
    assert not [file for file in files if not (ROOT / file).is_file()]


def defined_in(file: Path) -> set[str]:
    if not file.is_file():
        return set()
    nodes = ast.walk(ast.parse(file.read_text("utf-8")))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
