"""app.admin: the reads and acts of the command line as typed Python."""

import asyncio
import inspect
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import App, Flow, NotFound, Refused, UsageError, insight
from holdfast.admin import Admin, AsyncAdmin, QueueView, ScheduleView, WorkerView
from holdfast.core.access import digest_of
from holdfast.core.limits import Rate
from holdfast.core.machine import State
from holdfast.core.records import EndedAttempt, Recent
from holdfast.core.verdict import Failed
from holdfast.enqueueing.by_name import publish
from holdfast.testing import FakeClock
from tests.factory import EXPIRED, add, enrol, job_in, row, settle, start, start_flow


def test_workers_are_typed_as_the_command_line_shows_them(app: App) -> None:
    living, gone = enrol(app.store, name="box/1", queues=["mail"]), enrol(app.store, name="old")
    app.store.retire(gone, "left")
    [worker] = app.admin.workers()
    assert (worker.id, worker.name, worker.state, worker.queues) == (living, "box/1", "alive", ["mail"])
    assert worker.started_at == datetime.fromtimestamp(app.clock.wall(), UTC)
    found = sorted((each.name, each.gone_cause) for each in app.admin.workers(gone=True))
    assert found == [("box/1", None), ("old", "left")]


def test_a_program_drains_stops_and_resumes_workers(app: App) -> None:
    worker = enrol(app.store, name="box/1", supervisor="s")
    with pytest.raises(NotFound):
        app.admin.stop("nobody")
    assert app.admin.drain("box", by="ann", note="a new kernel") == 1
    order = app.admin.workers()[0].order
    assert order is not None
    assert (order.act, order.by, order.note) == ("drain", "ann", "a new kernel")
    with pytest.raises(Refused):
        app.admin.resume_workers("box/1")
    assert app.admin.resume_workers("box") == ["box"]
    assert app.admin.stop("box/1") == 1
    app.store.beat(worker, [], recent=Recent((EndedAttempt("a", "t", "succeeded", State.DONE, 1.0, 0.1),), "one"))
    [report] = app.admin.worker("box")
    assert ([each.id for each in report.endings], report.log) == (["a"], ["one"])


def test_queues_are_typed(app: App, clock: FakeClock) -> None:
    add(app.store, queue="mail")
    until = datetime.fromtimestamp(clock.wall() + 60, UTC)
    app.admin.pause("mail", group="acme", until=until, by="ann")
    [queue] = app.admin.queues()
    assert (queue.queue, queue.ready, queue.dead, queue.served) == ("mail", 1, 0, False)
    assert queue.paused_groups == {"acme": until}
    app.admin.resume("mail", group="acme")
    assert app.admin.queues()[0].paused_groups == {}
    app.admin.pause("mail")
    assert app.admin.queues()[0].paused


def test_limits_that_are_not_named_stay(app: App) -> None:
    assert app.admin.limit("mail").limit is None
    assert app.admin.limit("mail", limit=5, rate="10/60s", by="ann").limit == 5
    held = app.admin.limit("mail", burst=3)
    assert (held.limit, held.rate, held.burst) == (5, Rate.parse("10/60s"), 3)
    assert app.admin.limit("mail").limit == 5
    assert app.admin.limit("mail", limit=None).limit is None
    assert app.admin.limit("mail", clear=True).rate is None
    with pytest.raises(UsageError):
        app.admin.limit("mail", limit=-1)
    assert {event.actor for event in app.admin.journal(kinds=["limited"])} == {"ann", "app"}


def test_schedules_and_tasks_are_typed(app: App) -> None:
    @app.task(name="report")
    def report() -> None: ...

    app.cron("0 3 * * *", report, key="nightly")
    app.store.declare(list(app.schedules.values()))
    publish(app.store, app.tasks)
    [schedule] = app.admin.schedules()
    assert (schedule.key, schedule.task, schedule.declared, schedule.last) == ("nightly", "report", True, None)
    assert schedule.next is not None
    assert schedule.next.hour == 3
    assert [task.name for task in app.admin.tasks()] == ["report"]


def test_the_journal_is_read_by_job_kind_and_time(app: App, clock: FakeClock) -> None:
    one, two = start(app.store), start(app.store)
    settle(app.store, one, Failed("no luck"))
    clock.advance(60)
    settle(app.store, two, EXPIRED)
    assert [event.job_id for event in app.admin.journal()] == [one.id, two.id]
    assert [event.kind for event in app.admin.journal(two.id)] == ["zombie"]
    assert [event.job_id for event in app.admin.journal(kinds=["failed"])] == [one.id]
    since = datetime.fromtimestamp(clock.wall(), UTC) - timedelta(seconds=1)
    newest = app.admin.journal(since=since)
    assert [event.job_id for event in newest] == [two.id]
    assert [event.job_id for event in app.admin.journal(before=newest[0].seq, limit=1)] == [one.id]
    with pytest.raises(UsageError, match=r"since=.*time zone"):
        app.admin.journal(since=datetime(2026, 1, 1))
    assert [each.job_id for each in app.admin.zombies().found] == [two.id]
    assert app.admin.zombies(since_s=0.0).victims.keys() <= {two.id}


def test_dead_jobs_are_revived_by_queue_and_task(app: App) -> None:
    def dead(**given: Any) -> str:
        job = start(app.store, attempts_max=1, **given)
        settle(app.store, job, Failed("no luck"))
        assert row(app.store, job.id).state == "dead"
        return job.id

    mail, other = dead(queue="mail"), dead(task="other")
    plan = app.admin.act("revive", queue="mail", dry_run=True)
    assert (plan.count, plan.sample, plan.done, plan.refused, plan.left_alone) == (1, [mail], 0, {}, {})
    assert row(app.store, mail).state == "dead"
    assert app.admin.act("revive", queue="mail", by="ann", note="mail is back").done == 1
    assert app.admin.journal(mail, kinds=["revived"])[0].actor == "ann"
    assert [row(app.store, each).state for each in (mail, other)] == ["ready", "dead"]
    assert app.admin.act("revive", task="other", since=datetime.now(UTC) - timedelta(days=9000)).done == 1
    assert app.admin.act("revive").done == 0


def test_jobs_are_chosen_by_the_same_names_as_on_the_command_line(app: App, clock: FakeClock) -> None:
    failed = start(app.store, attempts_max=1, task="shop.pay", queue="money", group="acme", key="k")
    settle(app.store, failed, Failed("no luck"))
    add(app.store)
    error = str(row(app.store, failed.id).fingerprint)
    now = datetime.fromtimestamp(clock.wall(), UTC)
    hour = timedelta(hours=1)
    assert [job.id for job in app.admin.select(state="dead", task="pay", error=error)] == [failed.id]
    assert [job.id for job in app.admin.select(queue="money", group="acme", key="k", since=now - hour)] == [failed.id]
    assert app.admin.select(error=error, until=now - hour) == []
    assert app.admin.select(crashed=True) == app.admin.select(detector="exit") == []
    assert len(app.admin.select(state=["dead", "ready"])) == 2
    assert len(app.admin.select(limit=1)) == 1


def test_an_act_by_a_program_can_move_and_set_and_refuses_what_makes_no_sense(app: App) -> None:
    job = add(app.store, queue="slow")
    assert app.admin.act("move", queue="slow", to_queue="fast").done == 1
    assert app.admin.act("set", queue="fast", priority=7).done == 1
    assert (row(app.store, job.id).queue, row(app.store, job.id).priority) == ("fast", 7)
    with pytest.raises(UsageError, match="to move"):
        app.admin.act("move")
    with pytest.raises(UsageError, match="is not an act"):
        app.admin.act("bless")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="time zone"):
        app.admin.act("cancel", since=datetime(2026, 1, 1))
    with pytest.raises(UsageError, match="cannot be chosen"):
        app.admin.act("approve", state="dead")
    with pytest.raises(UsageError, match="not a state"):
        app.admin.act("cancel", state="lively")


def test_views_have_every_field_that_the_command_line_shows(app: App, clock: FakeClock) -> None:
    """One source: a field that the views get must be typed as well."""
    enrol(app.store)
    add(app.store)

    @app.task(name="report")
    def report() -> None: ...

    app.cron("0 3 * * *", report)
    app.store.declare(list(app.schedules.values()))
    for views, kind in (
        (insight.worker_views(app.store), WorkerView),
        (insight.queue_views(app.store), QueueView),
        (insight.schedule_views(app.store), ScheduleView),
    ):
        assert set(views[0]) == set(kind.__struct_fields__), kind


def test_the_awaited_verbs_are_those_of_admin(app: App) -> None:
    sync = {name: verb for name, verb in vars(Admin).items() if inspect.isfunction(verb) and name[0] != "_"}
    twin = {name: verb for name, verb in vars(AsyncAdmin).items() if inspect.isfunction(verb) and name[0] != "_"}
    assert twin.keys() == sync.keys()
    for name, verb in twin.items():
        assert inspect.iscoroutinefunction(verb), name
        assert inspect.signature(verb) == inspect.signature(sync[name]), name
        assert verb.__doc__ == sync[name].__doc__, name
    add(app.store, queue="mail")

    async def program() -> list[QueueView]:
        await app.aio.admin.limit("mail", limit=2)
        return await app.aio.admin.queues()

    assert [(queue.queue, queue.limit) for queue in asyncio.run(program())] == [("mail", 2)]


def test_errors_come_by_task_and_fingerprint(app: App) -> None:
    for number in (1, 2):
        settle(app.store, start(app.store, task="pay", attempts_max=1), Failed(f"no order {number}", error_kind="E"))
    settle(app.store, start(app.store, task="ship"), EXPIRED)
    one, other = app.admin.errors()
    assert (one.task, one.kind, one.message, one.attempts) == ("pay", "E", "no order #", 2)
    assert one.first_seen.tzinfo is not None
    assert (other.task, other.kind) == ("ship", "crash")
    assert [each.task for each in app.admin.errors(task="ship")] == ["ship"]
    assert len(app.admin.errors(limit=1)) == 1


def test_a_program_reads_how_bad_it_is_and_what_to_do(app: App) -> None:
    held = start(app.store, on_crash="hold")
    settle(app.store, held, EXPIRED)
    status = app.admin.status()
    assert (status.healthy, status.jobs["held"], status.lost) == (False, 1, 1)
    assert [(each.harm, each.command) for each in status.troubles] == [("waiting", "holdfast held list")]
    findings = {each.title: each for each in app.admin.doctor()}
    assert {each.severity for each in findings.values()} <= {"ok", "warning", "problem"}
    assert "The app knows every task that is due" in findings
    why = app.admin.explain(held.id)
    assert "a person decides" in why.sentence
    assert {choice.act for choice in why.choices} == {"approve", "done", "fail"}
    with pytest.raises(NotFound):
        app.admin.explain("nobody")


def test_a_program_acts_on_schedules(app: App) -> None:
    @app.task(name="report")
    def report() -> None: ...

    app.cron("0 3 * * *", report, key="nightly")
    app.store.declare(list(app.schedules.values()))
    app.admin.pause_schedule("nightly", by="ann", note="too loud")
    assert app.admin.schedules()[0].paused
    app.admin.resume_schedule("nightly", by="ann")
    assert not app.admin.schedules()[0].paused
    assert row(app.store, app.admin.fire_schedule("nightly")).task == "report"
    app.admin.forget_schedule("nightly")
    assert app.admin.schedules() == []
    with pytest.raises(NotFound, match="nightly"):
        app.admin.pause_schedule("nightly")
    told = [(act.act, act.actor, act.note) for act in app.admin.audit()]
    assert told == [
        *(("forget", "app", None), ("fire", "app", None)),
        *(("resume", "ann", None), ("pause", "ann", "too loud")),
    ]


def test_a_program_forgets_tasks_and_silent_workers(app: App, clock: FakeClock) -> None:
    @app.task(name="report")
    def report() -> None: ...

    publish(app.store, app.tasks)
    app.admin.forget_task("report", by="ann")
    assert app.admin.tasks() == []
    with pytest.raises(NotFound):
        app.admin.forget_task("report")
    job = start(app.store)
    [worker] = app.admin.workers()
    with pytest.raises(Refused, match="beats"):
        app.admin.forget_worker(worker.name)
    clock.advance(3600)
    assert app.admin.forget_worker(worker.name, by="ann", note="it burned") == 1
    assert row(app.store, job.id).state == "ready"
    with pytest.raises(NotFound):
        app.admin.forget_worker(worker.name)
    assert [(act.about, act.note) for act in app.admin.audit()] == [("worker", "it burned"), ("task", None)]


def test_a_program_makes_and_revokes_tokens(app: App) -> None:
    secret = app.admin.add_token("edge", "worker", queues=["mail"], expires_s=60, by="ann")
    [token] = app.admin.tokens()
    assert (token.name, token.role, token.queues, token.expired) == ("edge", "worker", ["mail"], False)
    assert app.store.tokens.all()[0].sha256 == digest_of(secret)
    with pytest.raises(Refused, match="already"):
        app.admin.add_token("edge", "viewer")
    for wrong in ({"role": "king"}, {"name": "two words"}, {"expires_s": 0}):
        with pytest.raises(UsageError):
            app.admin.add_token(**{"name": "other", "role": "viewer", **wrong})  # type: ignore[arg-type]
    app.admin.revoke_token("edge")
    assert app.admin.tokens() == []
    assert [act.act for act in app.admin.audit()] == ["revoke token", "add token"]


def test_a_program_purges_what_ended_long_ago(app: App, clock: FakeClock) -> None:
    old = [job_in(app.store, State.DONE) for _ in range(3)]
    clock.advance(3600)
    new, live = job_in(app.store, State.DONE), add(app.store)
    assert app.admin.purge(["done"], 60.0, by="ann") == len(old)
    assert {job.id for job in app.admin.select()} == {new.id, live.id}
    for wrong in ([], ["ready"], ["done", "ready"]):
        with pytest.raises(UsageError, match="states of ended jobs"):
            app.admin.purge(wrong, 60.0)
    with pytest.raises(UsageError, match="older_than_s"):
        app.admin.purge(["done"], float("nan"))
    assert [act.actor for act in app.admin.audit()] == ["ann"]


def test_a_page_after_a_deleted_job_is_an_error_and_not_the_end(app: App) -> None:
    jobs = [job_in(app.store, State.DONE).id for _ in range(3)]
    assert [job.id for job in app.admin.select(before=jobs[1])] == [jobs[0]]
    assert app.admin.act("delete").done == 3
    with pytest.raises(NotFound, match="to continue after"):
        app.admin.select(before=jobs[1])


def test_jobs_are_chosen_by_tags_and_metadata(app: App) -> None:
    @app.task(name="send")
    def send() -> None: ...

    job = send.using(tags=["import", "slow"], meta={"tenant": "acme"}).enqueue()
    send.using(tags=["import"]).enqueue()
    assert [each.id for each in app.admin.select(tags=["slow", "import"])] == [job.id]
    assert [each.id for each in app.admin.select(meta={"tenant": "acme"})] == [job.id]
    assert app.admin.select(tags=["slow"], meta={"tenant": "globex"}) == []
    assert app.admin.act("cancel", meta={"tenant": "acme"}).done == 1


def test_workflows_and_the_jobs_of_a_worker_are_chosen(app: App) -> None:
    flow, job = start_flow(app.store), start(app.store)
    add(app.store)
    assert [each.id for each in app.admin.select(workflow=True)] == [flow.id]
    assert job.id in {each.id for each in app.admin.select(workflow=False)}
    assert [each.id for each in app.admin.select(worker=job.worker or "")] == [job.id]


def test_every_kind_of_job_is_exported_with_its_history(app: App) -> None:
    jobs = [job_in(app.store, state) for state in State]
    failed = start(app.store, queue="mail")
    settle(app.store, failed, Failed("no luck"))
    records = app.admin.export(limit=4)
    assert [each.id for each in records] == [failed.id, *(job.id for job in reversed(jobs))][:4]
    rest = app.admin.export(limit=100, before=records[-1].id)
    assert len(records) + len(rest) == len(jobs) + 1
    assert {each.state for each in rest} >= {"ready", "running", "held"}
    assert [event.kind for event in records[0].events] == ["failed"]
    assert records[0].created_at == datetime.fromtimestamp(app.clock.wall(), UTC)
    [mail] = asyncio.run(app.aio.admin.export(queue="mail", state="retrying"))
    assert mail == records[0]
    with pytest.raises(NotFound):
        app.admin.export(before="unknown")


def test_steps_are_exported_with_their_arguments_if_asked(app: App) -> None:
    @app.workflow(name="flow")
    def flow(flow: Flow) -> None:
        flow.step(int, "7", name="seven", undo=lambda result, text: None)
        flow.wait("go")

    flow.enqueue()
    app.tick(budget_s=5)
    [plain], [whole] = app.admin.export(), app.admin.export(step_arguments=True)
    assert (plain.state, plain.steps[0].name, plain.steps[0].result) == ("waiting", "seven", 7)
    assert plain.steps[0].arguments is None
    assert whole.steps[0].arguments["arguments"] == {"args": ["7"]}


def test_a_report_says_what_went_wrong(app: App, clock: FakeClock) -> None:
    worker = enrol(app.store, name="box")
    lost = start(app.store, worker, lease_s=5.0)
    settle(app.store, start(app.store, worker, attempts_max=1, task="t"), Failed("no luck", error_kind="ValueError"))
    job_in(app.store, State.HELD)
    app.admin.pause("mail", by="ann", note="the relay is slow")
    clock.advance(6)
    settle(app.store, row(app.store, lost.id), EXPIRED, seen_lease=True)
    report = app.admin.report(3600.0)
    assert (report.until - report.since).total_seconds() == report.seconds == 3600.0
    assert (report.held_total, report.dead_total, report.lost["zombies"]) == (1, 1, 2)
    assert [(each.kind, each.now) for each in report.dead] == [("dead", "dead")]
    assert [(each.by, each.act, each.note) for each in report.acts] == [("ann", "pause", "the relay is slow")]
    assert "box" in [each.name for each in report.workers]
    assert asyncio.run(app.aio.admin.report(3600.0)).lost == report.lost
    with pytest.raises(UsageError, match="since_s"):
        app.admin.report(0)
