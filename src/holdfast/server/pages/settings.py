"""Settings: what is in effect on this server and in its store, the published tasks, and the tokens. Nothing is changed
here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast import insight
from holdfast.core.access import ADMINS
from holdfast.insight.tokens import token_view
from holdfast.server.call import Call
from holdfast.server.pages.page import Context, Page
from holdfast.stores.rounds import together

TASKS_MAX = 500


def show(call: Call) -> Context:
    """Show the settings; tokens only to administrators."""
    store, is_admin = call.store, call.user.has(ADMINS)
    tasks, now, schema = together(lambda: insight.task_views(store), store.now, store.schema)
    tokens = store.tokens.all() if is_admin else []
    return {
        "settings": list(_settings(call)),
        "schema": schema.found,
        "tasks": tasks[:TASKS_MAX],
        "number": len(tasks),
        "sees_tokens": is_admin,
        "tokens": [token_view(token, now.wall) for token in sorted(tokens, key=lambda each: each.name)],
    }


def _settings(call: Call) -> Iterator[tuple[str, Any]]:
    """Yield the key of each option's text, and its value: a word, a number, or a list."""
    options = call.server.options
    yield "needs_token", options.needs_token
    yield "read_only", options.read_only
    yield "require_note", options.require_note
    yield "reaper", options.reaper
    yield "open_metrics", options.open_metrics
    yield "prefix", [options.prefix] if options.prefix else []
    yield "hosts", list(options.allowed_hosts or ())
    yield "proxies", [str(each) for each in options.trusted_proxies]
    yield "threads", options.threads


ROUTES = (Page("settings", "/settings", show, scope="whole", nav=True),)
