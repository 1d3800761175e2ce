"""The app of a Django project, as the setting `HOLDFAST` describes it.

HOLDFAST = {"DATABASE": "default", "OPTIONS": {"keep": {"done": "7d"}}}     jobs in the database of this alias
HOLDFAST = {"URL": "redis://queue.example.org/0"}                           jobs in a store of their own
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any
from urllib.parse import quote, urlencode

from django.conf import settings
from django.core import mail
from django.db import connections

from holdfast.app import App
from holdfast.errors import UsageError
from holdfast.integrations.django.instrument import instrument
from holdfast.stores.protocol import Store

KNOWN = ("DATABASE", "URL", "OPTIONS")
_NOT_AN_OPTION = ("self", "url", "clock")


@functools.cache
def project_app() -> App:
    """Return the app of this project; the same one each time. Opens nothing. Raises `UsageError` for wrong settings."""
    given = configuration()
    app = App(given.get("URL") or database_url(alias_of(given)), **given.get("OPTIONS", {}))
    open_store = app.opener

    def opened() -> Store:
        if is_testing():
            raise UsageError(
                "a test uses the jobs of the project: derive it from TestCase or TransactionTestCase of "
                "holdfast.integrations.django.test, which give each test a store of its own"
            )
        return open_store()

    app.opener = opened
    instrument(app, None if given.get("URL") else alias_of(given))
    return app


def is_testing() -> bool:
    """Say whether Django's test runner, or pytest-django, is at work: both make an outbox of mails."""
    return hasattr(mail, "outbox")


def configuration() -> Mapping[str, Any]:
    """Return the setting, checked. Raises `UsageError`."""
    given = getattr(settings, "HOLDFAST", {})
    if not isinstance(given, Mapping):
        raise UsageError(f"the setting HOLDFAST={given!r} must be a dict")
    options = given.get("OPTIONS", {})
    known_options = [name for name in inspect.signature(App.__init__).parameters if name not in _NOT_AN_OPTION]
    for names, known, what in ((given, KNOWN, "HOLDFAST"), (options, known_options, "HOLDFAST['OPTIONS']")):
        for name in names:
            if name not in known:
                near = get_close_matches(str(name), known, 1)
                perhaps = f"; perhaps {near[0]!r}" if near else f"; known: {', '.join(known)}"
                raise UsageError(f"the setting {what} has no {name!r}{perhaps}")
    if given.get("URL") and given.get("DATABASE"):
        raise UsageError("the setting HOLDFAST has both URL and DATABASE; the jobs can be in one of them only")
    return given


def alias_of(given: Mapping[str, Any]) -> str:
    """Return the alias of the database that has the jobs."""
    return str(given.get("DATABASE") or "default")


def database_url(alias: str) -> str:
    """Return the address of a store in this database of Django's. Raises `UsageError` if there can be none."""
    if alias not in list(connections):
        raise UsageError(f"the setting HOLDFAST names the database {alias!r}, which DATABASES does not have")
    database = connections[alias]
    given, name = database.settings_dict, str(database.settings_dict["NAME"])
    if database.vendor == "postgresql":
        return _postgresql_url(given)
    if database.vendor != "sqlite":
        raise UsageError(
            f"the database {alias!r} is {database.display_name}, in which Holdfast cannot store jobs; give it a store "
            "of its own: HOLDFAST = {'URL': 'postgresql://…'}"
        )
    if name.startswith("file:") or name == ":memory:":
        raise UsageError(
            f"the database {alias!r} is in memory, where no worker can find its jobs; give NAME a file, and in tests "
            "TEST: {'NAME': …}"
        )
    return f"sqlite:///{quote(name)}"


def _postgresql_url(given: Mapping[str, Any]) -> str:
    from psycopg import pq

    known = {each.keyword.decode() for each in pq.Conninfo.get_defaults()}
    query = {name: str(value) for name, value in given["OPTIONS"].items() if name in known}
    for name, key in (("host", "HOST"), ("port", "PORT"), ("user", "USER"), ("password", "PASSWORD")):
        if given[key]:
            query[name] = str(given[key])
    user, password = query.pop("user", ""), query.pop("password", "")
    who = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "") + "@" * bool(user)
    return f"postgresql://{who}/{quote(str(given['NAME'] or ''), safe='')}?{urlencode(query, quote_via=quote)}".rstrip(
        "?"
    )
