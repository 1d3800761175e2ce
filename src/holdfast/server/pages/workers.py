"""Workers: who runs jobs, what each did last, and what people have asked of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct

from holdfast import insight
from holdfast.acts.workers import order_workers, resume_workers
from holdfast.core.records import OrderAct
from holdfast.errors import NotFound
from holdfast.server.call import Call
from holdfast.server.fleet import serves
from holdfast.server.pages.page import Context, Form, Page, note_of, see
from holdfast.server.routes import Answer

Name = Annotated[str, Meta(min_length=1, max_length=200)]
GONE_MAX = 200  # of the workers that stopped or died, the newest
SHOWN_MAX = 200  # living workers


class List(Struct):
    """`gone`: also workers that stopped or died."""

    gone: bool = False


class One(Struct):
    """The name of a worker, or of a supervisor and so of its children."""

    name: Name


class Order(Struct):
    """A name of workers, and why they are asked."""

    name: Name
    note: str | None = None


def show(call: Call) -> Context:
    """Show the workers that serve queues of this user, those in trouble first."""
    views = [view for view in insight.worker_views(call.store, gone=call.query.gone) if serves(call, view["queues"])]
    living = [view for view in views if view["gone_at"] is None]
    gone = sorted((view for view in views if view["gone_at"] is not None), key=lambda view: view["gone_at"])
    living.sort(key=lambda view: (view["state"] in insight.BEATING, view["name"]))
    shown = [*living[:SHOWN_MAX], *gone[::-1][:GONE_MAX]]
    return {
        "workers": shown,
        "left_out": max(0, len(living) - SHOWN_MAX),
        "with_gone": call.query.gone,
        "released": any(view["release"] for view in shown),
    }


def show_one(call: Call) -> Context:
    """Show what workers of a name run, ended last and logged."""
    reports = [each for each in insight.worker_reports(call.store, call.query.name) if serves(call, each["queues"])]
    if not reports:
        raise NotFound(f"there is no worker {call.query.name!r}")
    sees_all = call.user.queues is None
    return {
        "name": call.query.name,
        "workers": [{**each, "log": each["log"] if sees_all else [], **_visible(call, each)} for each in reports],
        "acts": _acts(reports) if sees_all else (),
    }


def _visible(call: Call, report: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a worker runs and ended, without jobs of other queues. Endings do not say of which queue they are."""
    jobs = [job for job in report["jobs"] if call.user.sees(job["queue"])]
    return {"jobs": jobs, "endings": report["endings"] if all(map(call.user.sees, report["queues"])) else []}


def _acts(reports: list[dict[str, Any]]) -> tuple[str, ...]:
    """Return what may be asked of these workers now."""
    if any(each["order"] is not None for each in reports):
        return ("resume",)
    return ("drain", "stop") if any(each["gone_at"] is None for each in reports) else ()


def _ordered(act: OrderAct) -> Any:
    def order(call: Call) -> Answer:
        """Ask workers of a name, until they are resumed."""
        order_workers(call.store, call.body.name, act, call.user.name, note_of(call, call.body.note))
        return see(call, "/workers/one", name=call.body.name, said=act)

    return order


def resume(call: Call) -> Answer:
    """Let workers of a name claim again."""
    resume_workers(call.store, call.body.name, call.user.name, note_of(call, call.body.note))
    return see(call, "/workers/one", name=call.body.name, said="resume")


ROUTES = (
    Page("workers", "/workers", show, query=List, nav=True, key="w"),
    Page("worker", "/workers/one", show_one, query=One),
    Form("worker", "/workers/drain", _ordered("drain"), Order, scope="whole"),
    Form("worker", "/workers/stop", _ordered("stop"), Order, scope="whole"),
    Form("worker", "/workers/resume", resume, Order, scope="whole"),
)
