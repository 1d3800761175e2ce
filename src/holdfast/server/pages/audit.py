"""Audit: what people did, when, on what, and why."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from holdfast import insight
from holdfast.core.audit import Act
from holdfast.server.call import Call
from holdfast.server.pages.page import Context, Page
from holdfast.stores.protocol import rows_of

PAGE = 50
LOOK = 200  # lines that are read for a page of a user who sees some queues only


class Which(Struct):
    """`by`: only acts of this person. `before`: the page after this act."""

    by: Annotated[str, Meta(max_length=200)] | None = None
    before: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None


def show(call: Call) -> Context:
    """Show the acts, newest first."""
    asked, sees_all = call.query, call.user.queues is None
    found = insight.acts_of_people(call.store, None, asked.by, PAGE if sees_all else LOOK, asked.before)
    seen = found if sees_all else _seen(call, found)
    shown = seen[:PAGE]
    full = len(found) == (PAGE if sees_all else LOOK) or len(seen) > len(shown)
    older = (shown[-1] if len(seen) > len(shown) or sees_all else found[-1]).seq if full and found else None
    acts = [insight.act_view(act) for act in shown]
    for each in acts:
        each["detail"] = {name: value for name, value in each["detail"].items() if name != each["about"]}
    return {"acts": acts, "by": asked.by or "", "older": older, "first": asked.before}


def _seen(call: Call, acts: list[Act]) -> list[Act]:
    """Return the acts on jobs and queues that the user may see."""
    queues = {row.id: row.queue for row in rows_of(call.store, [act.job_id for act in acts if act.job_id], LOOK)}
    names = [act.name if act.about == "queue" else queues.get(act.job_id or "") for act in acts]
    return [act for act, queue in zip(acts, names, strict=True) if queue is not None and call.user.sees(queue)]


ROUTES = (Page("audit", "/audit", show, query=Which, nav=True, key="a"),)
