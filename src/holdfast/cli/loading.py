"""Find what a command works on: the user's App, named `module:name`, its tasks, and a store that is already there."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from difflib import get_close_matches
from functools import partial
from types import ModuleType
from typing import Any

import click

from holdfast import insight
from holdfast.app import App
from holdfast.cli.base import Settings, say, settings
from holdfast.cli.output import clean
from holdfast.cli.types import Text, options, shared_option
from holdfast.clock import Clock
from holdfast.core.text import escaped
from holdfast.errors import SchemaMismatch, StoreMissing, UnknownTask, UsageError
from holdfast.stores import open_store
from holdfast.stores.protocol import Store, schema_too_new
from holdfast.stores.urls import absolute_url

# --------------------------------------------------------------------------------------------- stores


@contextmanager
def opened_store(*, bulk: bool = False) -> Iterator[Store]:
    """Open the store that the command line names, if it is there and fits this program; create nothing.

    `bulk`: as for `open_store`.
    """
    with closing(open_existing(bulk=bulk)) as store:
        require_schema(store)
        yield store


def open_existing(*, bulk: bool = False, clock: Clock | None = None) -> Store:
    """Open what is there, whatever its schema."""
    try:
        return open_store(settings().db, clock=clock, create=False, bulk=bulk)
    except StoreMissing as error:
        raise StoreMissing(f"{error} (is --db right? `holdfast db init` makes a store)") from error


def require_schema(store: Store) -> None:
    """Raise unless this program can work on the store's schema."""
    schema = store.schema()
    url = insight.shown_url(store.url)
    if schema.found == 0:
        raise StoreMissing(
            f"there is no Holdfast store in {url}; if there was one, restore it from a backup, otherwise make one with "
            f"`holdfast db init --db {url}`"
        )
    if schema.is_too_new:
        raise schema_too_new(url, schema)
    if schema.is_stale:
        raise SchemaMismatch(
            f"{url} has schema {schema.found}, and this program needs {schema.wanted}; "
            f"run `holdfast db migrate --db {url}`"
        )


def suggest_task(store: Store, task: str | None, states: Sequence[str] = ()) -> None:
    """Suggest the names that may have been meant when no job has a task of this name."""
    if task is not None and (guesses := insight.near_tasks(store, task, states)):
        say(f"Did you mean the task {' or '.join(map(clean, guesses))}?")


# ----------------------------------------------------------------------------------------------- apps


@contextmanager
def opened_app(ref: str | None = None) -> Iterator[App]:
    """Open the store that the command line names, as `opened_store` does, for acts on jobs: an app without tasks.

    With `ref`, `module:name`, it is the user's own app on its own store, unless a flag said otherwise.
    """
    app = own_app(ref) or App(settings().db, migrate=False)
    app.opener = lambda: open_existing(clock=app.clock)
    with app:
        require_schema(app.store)
        yield app


def _note(ctx: click.Context, option: click.Parameter, value: tuple[str, ...]) -> None:
    setattr(ctx.find_root().ensure_object(Settings), str(option.name), value)


_modules = partial(shared_option, type=Text(), multiple=True, expose_value=False, callback=_note)
# The modules that declare tasks of the App; `named_app` imports them.
import_options = options(
    _modules(
        "--import",
        "imports",
        metavar="MODULE",
        help="Import this module after APP, for the tasks that it declares; may be repeated.",
    ),
    _modules(
        "--discover",
        metavar="PACKAGE",
        help="Import the modules named tasks below this package, and those in packages so named; may be repeated.",
    ),
)


def named_app(ref: str) -> App:
    """Import the App that a command was given, on the store that a flag names, with the modules of `import_options`."""
    return load_app(ref, settings().db_given, wanted_modules())


def own_app(ref: str | None) -> App | None:
    """Import the App that a command was given, if any; its store is then the one that the command opens."""
    if ref is None:
        return None
    app = named_app(ref)
    settings().db_given = app.url
    return app


def require_task(app: App, ref: str, task: str) -> None:
    """Raise unless the App that a command was given has the task of the job that it is about."""
    if task not in app.tasks:
        raise UnknownTask(f"{ref} has no task {task!r}; name the app that declares it")


def wanted_modules() -> tuple[str, ...]:
    """Return the names of the modules that the command line wants imported: those named, and those discovered."""
    given = settings()
    return tuple(dict.fromkeys([*given.imports, *(name for package in given.discover for name in _discover(package))]))


def _discover(package: str) -> list[str]:
    """Name the modules below a package that are called `tasks`, or are in a package of that name.

    Only the package itself is imported here.
    """
    found: list[str] = []
    left = [(package, getattr(_import(package), "__path__", ()))]
    while left:
        name, folders = left.pop()
        for each in pkgutil.iter_modules(folders, f"{name}."):
            if "tasks" in each.name.split(".") and not each.name.endswith(".__main__"):
                found.append(each.name)
            if each.ispkg and (spec := each.module_finder.find_spec(each.name, None)) is not None:
                left.append((each.name, spec.submodule_search_locations or ()))
    if not found:
        raise UsageError(f"package {package!r} has no module named tasks; name the modules with --import")
    return sorted(found)


def load_app(ref: str, db: str | None = None, imports: Sequence[str] = ()) -> App:
    """Import the App that `module:name` names, with the current folder on the path; give it the store `db`, if any.

    Then import `imports`, which may declare tasks of it.

    Pass what a flag said, not $HOLDFAST_DB: that is what an App without an address of its own uses, here as in every
    other process of the user's, and must not part a worker from the programs that feed it.
    """
    module_name, colon, attribute = ref.partition(":")
    if not colon or not module_name or not attribute:
        advice = f"write {_module_of(module_name)}:app" if module_name else "write module:name, for example jobs:app"
        raise UsageError(f"{ref!r} does not name an App; {advice}")
    if module_name.endswith(".py") or "/" in module_name:
        raise UsageError(f"{module_name!r} is a file; name the module: {_module_of(module_name)}:{attribute}")
    db = None if db is None else absolute_url(db)  # before a module that is imported may change the folder
    module = _import(module_name)
    found: object = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, App):
        what = f"module {module_name!r} has no {attribute!r}"
        if found is not None:
            what = f"{ref} is a {type(found).__name__}, not a holdfast App"
        raise UsageError(f"{what}{_apps_in(module, attribute)}")
    for name in imports:
        _import(name)
    if db is not None:
        found.url = db
    return found


def load_function(ref: str) -> Callable[..., Any]:
    """Import the function that `module:name` names, with the current folder on the path."""
    module_name, colon, attribute = ref.partition(":")
    if not colon or not module_name or not attribute:
        raise UsageError(f"{ref!r} does not name a function; write module:name, for example checks:charges_of")
    found: Callable[..., Any] | None = getattr(_import(module_name), attribute, None)
    if found is None or not callable(found):
        raise UsageError(f"module {module_name!r} has no function {attribute!r}")
    return found


def _import(name: str) -> ModuleType:
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise UsageError(f"there is no module {error.name!r} in {folder} or on the Python path") from error
        raise UsageError(_story(name, error)) from error
    except (Exception, SystemExit) as error:
        raise UsageError(_story(name, error)) from error


def _story(name: str, error: BaseException) -> str:
    """Tell what the user's module raised, with the lines of the user's own code only."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen ") and frame.filename not in (__file__, importlib.__file__)
    ]
    lines = [*traceback.format_list(frames), *traceback.format_exception_only(error)]
    trace = "".join(f"\n  {escaped(line)}" for line in "".join(lines).rstrip().split("\n"))
    return f"module {name!r} could not be imported:{trace}"


def _apps_in(module: ModuleType, wanted: str) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, App)]
    if not names:
        return "; make one: app = holdfast.App()"
    best = get_close_matches(wanted, names, n=1) or names
    return f"; did you mean {module.__name__}:{best[0]}?"


def _module_of(path: str) -> str:
    return path.removesuffix(".py").strip("./").replace("/", ".") or "module"
