"""Every component in every state, for those who work on the pages."""

from __future__ import annotations

from holdfast.insight import SHOWN_STATES
from holdfast.server.call import Call
from holdfast.server.pages.page import Context, Page

_WORDS = ("zombie", "failed", "timed_out", "stale_report", "released", "snoozed", "resolved")
_DATA = '{"order": 9007199254740993123, "price": 12.10, "paid": true, "to": null, "lines": [1, [], {"<b>": "<i>"}]}'


def show(call: Call) -> Context:
    """Show the components."""
    return {"shown_states": SHOWN_STATES, "words": _WORDS, "data": _DATA, "lefts": (30.0, 14.0, 5.0, 0.0, -12.0)}


ROUTES = (Page("style", "/style", show, scope="none", dev=True),)
