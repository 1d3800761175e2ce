"""Read a Celery project without running it, and say of each thing it uses what its counterpart here is.

`COUNTERPARTS` is the table; docs/from-celery.md has the same settings.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

Kind = Literal["setting", "task option", "call option", "call", "canvas", "signal", "exception"]
Fit = Literal["maps", "differs", "none", "unknown"]

SKIPPED = {".git", ".venv", "venv", "node_modules", "__pycache__", "site-packages", "build", "dist", ".tox"}
FILE_MAX = 2_000_000  # bytes; a larger one is data

# maps: the same, by another name. differs: read the page first. none: there is nothing like it.
COUNTERPARTS: dict[tuple[Kind, str], tuple[Fit, str]] = {
    ("setting", "broker_url"): ("maps", "App(url): one store is broker and result backend"),
    ("setting", "result_backend"): ("maps", "none needed: results are in the store"),
    ("setting", "task_acks_late"): ("maps", "always so; on_crash decides what becomes of a lost run"),
    ("setting", "task_reject_on_worker_lost"): ("maps", "always so, up to crashes_max"),
    ("setting", "task_acks_on_failure_or_timeout"): ("differs", "retry= decides what is run again"),
    ("setting", "broker_transport_options"): ("differs", "visibility_timeout: lease_s, and a living worker renews it"),
    ("setting", "task_time_limit"): ("maps", "timeout_s= with isolate=True"),
    ("setting", "task_soft_time_limit"): ("maps", "timeout_s="),
    ("setting", "task_default_queue"): ("maps", "@app.task(queue=…)"),
    ("setting", "task_routes"): ("maps", "@app.task(queue=…), using(queue=…)"),
    ("setting", "task_queues"): ("maps", "queues need no declaration; app.queue(…) sets limits"),
    ("setting", "task_default_priority"): ("maps", "@app.task(priority=…): larger is sooner"),
    ("setting", "task_default_rate_limit"): ("differs", "app.queue(…, rate=…) counts for the whole fleet"),
    ("setting", "task_annotations"): ("differs", "options at the task itself"),
    ("setting", "task_serializer"): ("differs", "JSON of typed values, or App(codec=…)"),
    ("setting", "result_serializer"): ("differs", "JSON of typed values, or App(codec=…)"),
    ("setting", "accept_content"): ("none", "nothing but the codec of the app is ever read"),
    ("setting", "task_ignore_result"): ("maps", "@app.task(ignore_result=True)"),
    ("setting", "result_expires"): ("maps", "App(keep={'done': '1d'})"),
    ("setting", "task_track_started"): ("maps", "always so: state running, with worker and lease"),
    ("setting", "task_always_eager"): ("maps", "memory:// with app.tick(), or the pytest plugin"),
    ("setting", "task_eager_propagates"): ("maps", "the pytest plugin: eager()"),
    ("setting", "worker_concurrency"): ("maps", "holdfast worker --slots N --processes N"),
    ("setting", "worker_prefetch_multiplier"): (
        "differs",
        "the worker chooses; careful jobs are never claimed ahead",
    ),
    ("setting", "worker_max_tasks_per_child"): ("maps", "holdfast worker --isolate --recycle-jobs N"),
    ("setting", "worker_max_memory_per_child"): ("maps", "holdfast worker --isolate --recycle-mb MB"),
    ("setting", "worker_pool"): ("differs", "async tasks on a loop, others in threads; isolate=True for processes"),
    ("setting", "worker_send_task_events"): ("maps", "always so: the journal, /metrics"),
    ("setting", "task_send_sent_event"): ("maps", "always so: the journal"),
    ("setting", "worker_hijack_root_logger"): ("maps", "never done"),
    ("setting", "beat_schedule"): ("maps", "app.cron(…), app.every(…)"),
    ("setting", "beat_scheduler"): ("differs", "every worker can fire; app.schedule(…) at run time"),
    ("setting", "timezone"): ("maps", "app.cron(…, tz=…)"),
    ("setting", "enable_utc"): ("maps", "always so"),
    ("setting", "imports"): ("maps", "holdfast worker APP --import MODULE"),
    ("setting", "include"): ("maps", "holdfast worker APP --import MODULE"),
    ("setting", "broker_connection_retry_on_startup"): ("maps", "always so"),
    ("setting", "broker_pool_limit"): ("maps", "the pool of the store: URL options"),
    ("task option", "bind"): ("maps", "a first parameter ctx: Context"),
    ("task option", "name"): ("maps", "@app.task(name=…)"),
    ("task option", "autoretry_for"): ("maps", "retry=Retry(on=(…))"),
    ("task option", "dont_autoretry_for"): ("maps", "retry=Retry(never=(…))"),
    ("task option", "max_retries"): ("maps", "Retry(attempts_max=N + 1): the first run counts"),
    ("task option", "default_retry_delay"): ("maps", "Retry(base_s=…)"),
    ("task option", "retry_backoff"): ("maps", "Retry(base_s=…)"),
    ("task option", "retry_backoff_max"): ("maps", "Retry(cap_s=…)"),
    ("task option", "retry_jitter"): ("maps", "Retry(jitter=…)"),
    ("task option", "rate_limit"): ("differs", "app.queue(…, rate=…) counts for the whole fleet"),
    ("task option", "time_limit"): ("maps", "timeout_s= with isolate=True"),
    ("task option", "soft_time_limit"): ("maps", "timeout_s="),
    ("task option", "acks_late"): ("maps", "always so; on_crash decides what becomes of a lost run"),
    ("task option", "reject_on_worker_lost"): ("maps", "always so, up to crashes_max"),
    ("task option", "ignore_result"): ("maps", "ignore_result=True"),
    ("task option", "queue"): ("maps", "queue="),
    ("task option", "priority"): ("maps", "priority=: larger is sooner"),
    ("task option", "expires"): ("maps", "expires_s="),
    ("task option", "serializer"): ("differs", "JSON of typed values, or App(codec=…)"),
    ("task option", "base"): ("differs", "@app.middleware, app.resource"),
    ("task option", "pydantic"): ("maps", "arguments are always checked by the signature"),
    ("task option", "track_started"): ("maps", "always so"),
    ("call option", "countdown"): ("maps", "using(run_after=…)"),
    ("call option", "eta"): ("maps", "using(run_at=…)"),
    ("call option", "expires"): ("maps", "using(expires_s=…)"),
    ("call option", "queue"): ("maps", "using(queue=…)"),
    ("call option", "priority"): ("maps", "using(priority=…): larger is sooner"),
    ("call option", "task_id"): ("maps", "using(id=…)"),
    ("call option", "link"): ("maps", "using(on_done=…)"),
    ("call option", "link_error"): ("maps", "using(on_dead=…)"),
    ("call option", "routing_key"): ("differs", "using(queue=…)"),
    ("call option", "exchange"): ("none", "there are queues only"),
    ("call option", "serializer"): ("differs", "JSON of typed values, or App(codec=…)"),
    ("call option", "headers"): ("maps", "using(meta={…})"),
    ("call option", "args"): ("maps", "enqueue(…)"),
    ("call option", "kwargs"): ("maps", "enqueue(…)"),
    ("call", "delay"): ("maps", "enqueue(…), await aenqueue(…)"),
    ("call", "apply_async"): ("maps", "using(…).enqueue(…)"),
    ("call", "send_task"): ("maps", "app.enqueue_by_name(…)"),
    ("call", "AsyncResult"): ("maps", "app.get(id): .state, .result(timeout=…)"),
    ("call", "update_state"): ("maps", "ctx.progress(…), ctx.heartbeat(…)"),
    ("call", "revoke"): ("maps", "app.cancel(id): stored, so a restart does not forget it"),
    ("call", "retry"): ("maps", "raise RetryLater(s), or Snooze(s) at no cost"),
    ("canvas", "chain"): ("differs", "a workflow, or using(after=…)"),
    ("canvas", "group"): ("maps", "app.enqueue_many([…])"),
    ("canvas", "chord"): ("differs", "app.batch(then=…), or a workflow that needs the results"),
    ("canvas", "signature"): ("maps", "task.job(…)"),
    ("canvas", "chunks"): ("maps", "app.enqueue_stream(…)"),
    ("canvas", "starmap"): ("maps", "app.enqueue_stream(…)"),
    ("signal", "task_prerun"): ("maps", "@app.middleware"),
    ("signal", "task_postrun"): ("maps", "@app.middleware"),
    ("signal", "task_failure"): ("maps", "@app.middleware, on_dead="),
    ("signal", "task_success"): ("maps", "@app.middleware, on_done="),
    ("signal", "task_retry"): ("maps", "@app.middleware"),
    ("signal", "task_revoked"): ("differs", "the journal: holdfast audit"),
    ("signal", "before_task_publish"): ("maps", "@app.enqueue_middleware"),
    ("signal", "after_task_publish"): ("maps", "@app.enqueue_middleware"),
    ("signal", "worker_process_init"): ("maps", "app.resource, @app.on_worker_start"),
    ("signal", "worker_process_shutdown"): ("maps", "@app.on_worker_stop"),
    ("signal", "worker_ready"): ("maps", "@app.on_worker_start"),
    ("signal", "worker_shutdown"): ("maps", "@app.on_worker_stop"),
    ("signal", "setup_logging"): ("maps", "App(logger=…), --log-format"),
    ("exception", "Reject"): ("maps", "raise GiveUp(…)"),
    ("exception", "Ignore"): ("maps", "return"),
    ("exception", "SoftTimeLimitExceeded"): ("maps", "holdfast.errors.TimeLimit, a BaseException"),
    ("exception", "MaxRetriesExceededError"): ("maps", "the job is dead, with its error"),
}
_SIGNALS = {name for kind, name in COUNTERPARTS if kind == "signal"}
_SETTINGS = {name for kind, name in COUNTERPARTS if kind == "setting"}
_CANVAS = {name for kind, name in COUNTERPARTS if kind == "canvas"}
_EXCEPTIONS = {name for kind, name in COUNTERPARTS if kind == "exception"}
_METHODS = {name for kind, name in COUNTERPARTS if kind == "call"} - {"AsyncResult", "retry"}


class Use(NamedTuple):
    """One use of a feature of Celery, and its counterpart."""

    file: str
    line: int
    kind: Kind
    name: str
    fit: Fit
    here: str


def scan(project: Path) -> tuple[list[Use], list[str]]:
    """Return what the Python files of a project use of Celery, and the files that could not be read. Runs no code."""
    found: list[Use] = []
    unread: list[str] = []
    for path in _files(project):
        name = path.relative_to(project).as_posix() if path != project else path.name
        try:
            if path.stat().st_size > FILE_MAX:
                continue
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError):
            unread.append(name)
            continue
        uses: set[tuple[int, Kind, str]] = set(_uses(tree))
        for line, kind, what in sorted(uses):
            fit, here = COUNTERPARTS.get((kind, what), ("unknown", "not in the table: see docs/from-celery.md"))
            found.append(Use(name, line, kind, what, fit, here))
    return found, unread


def _files(project: Path) -> Iterator[Path]:
    if project.is_file():
        yield project
        return
    for path in sorted(project.rglob("*.py")):
        if path.is_file() and not SKIPPED & set(path.relative_to(project).parts[:-1]):
            yield path


def _uses(tree: ast.Module) -> Iterator[tuple[int, Kind, str]]:
    imported = {name for node in ast.walk(tree) for name in _imported(node)}
    knows_celery = bool(imported)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for decorator in node.decorator_list:
                yield from _decorated(decorator)
        elif isinstance(node, ast.Call):
            yield from _called(node, imported, knows_celery)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _assigned(target)
        elif isinstance(node, ast.AnnAssign):
            yield from _assigned(node.target)
        elif isinstance(node, ast.Raise | ast.ExceptHandler):
            raised = node.exc if isinstance(node, ast.Raise) else node.type
            name = _last(raised.func if isinstance(raised, ast.Call) else raised)
            if name in _EXCEPTIONS and name in imported:
                yield node.lineno, "exception", name


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("celery", "celery_app"):
        yield from (alias.asname or alias.name for alias in node.names)
    elif isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "celery")


def _decorated(decorator: ast.expr) -> Iterator[tuple[int, Kind, str]]:
    call = decorator.func if isinstance(decorator, ast.Call) else decorator
    name = _last(call)
    if isinstance(call, ast.Attribute) and name == "connect" and _last(call.value) in _SIGNALS:
        yield decorator.lineno, "signal", _last(call.value)
    elif name == "shared_task" or (isinstance(call, ast.Attribute) and name == "task"):
        for keyword in decorator.keywords if isinstance(decorator, ast.Call) else ():
            if keyword.arg is not None:
                yield decorator.lineno, "task option", keyword.arg


def _called(node: ast.Call, imported: set[str], knows_celery: bool) -> Iterator[tuple[int, Kind, str]]:
    name = _last(node.func)
    if isinstance(node.func, ast.Attribute):
        owner = _last(node.func.value)
        if name in _METHODS or (name == "retry" and owner == "self" and knows_celery):
            yield node.lineno, "call", name
        if name in ("apply_async", "send_task"):
            for keyword in node.keywords:
                if keyword.arg is not None:
                    yield node.lineno, "call option", keyword.arg
        if name == "connect" and owner in _SIGNALS:
            yield node.lineno, "signal", owner
        if name == "update" and owner == "conf":
            for keyword in node.keywords:
                if keyword.arg is not None:
                    yield node.lineno, "setting", keyword.arg
    if name in imported and (name in _CANVAS or name == "AsyncResult"):
        yield node.lineno, "canvas" if name in _CANVAS else "call", name


def _assigned(target: ast.expr) -> Iterator[tuple[int, Kind, str]]:
    if isinstance(target, ast.Attribute) and _last(target.value) == "conf":
        yield target.lineno, "setting", target.attr
    elif isinstance(target, ast.Name):
        plain = target.id.removeprefix("CELERY_").lower()
        if target.id.startswith("CELERY_") or (target.id in _SETTINGS and target.id not in ("imports", "include")):
            yield target.lineno, "setting", plain


def _last(node: ast.expr | None) -> str:
    """Return the last part of a dotted name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
