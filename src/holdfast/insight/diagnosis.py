"""The doctor: is the store well, are its workers, do jobs get done, do the settings fit? Nothing is changed.

A finding that is not ok says what to do. Warnings are for what will become a problem, or is one for a person; what is
merely unusual, such as two workers of one name, is ok and says why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from math import inf
from shlex import quote
from typing import Any

from holdfast.app import App
from holdfast.clock import Clock
from holdfast.core import orders
from holdfast.core.durations import duration
from holdfast.core.machine import ENDED, State
from holdfast.core.records import Filter, Job, Worker
from holdfast.core.text import counted, listed
from holdfast.core.transitions import is_declared
from holdfast.errors import StoreError, StoreFull
from holdfast.insight.findings import Finding, Severity, ok, problem, warning
from holdfast.insight.format import first_line, moment
from holdfast.insight.health import SET_BACK_S, enqueued_ahead_s, vanished_ids, worker_state
from holdfast.insight.schedules import late_now
from holdfast.insight.steps import awaited_jobs, since_each
from holdfast.insight.store_findings import TO_MAKE_ONE, of_the_medium, to_take_writes
from holdfast.insight.tuning import of_settings
from holdfast.insight.views import all_jobs, locked_rows, queue_views, totals
from holdfast.insight.zombies import look_back
from holdfast.stores.protocol import Store, in_words, schema_too_new
from holdfast.stores.rounds import together
from holdfast.stores.urls import shown_url
from holdfast.upkeep.reaper import reap

DAY_S = 86_400.0
ASKED_LONG_S = DAY_S
PAUSED_LONG_S = 3600.0
WAIT_LONG_S = 600.0
FAILED_S = 3600.0  # how far back failures are looked at; the default `Retry` never pauses for longer
ENDED_MAX = 1_000_000
WAITING_MAX = 100_000  # workflows that are looked at, from the newest
DEATHS_MAX = 2_000  # lines of the journal about jobs that died, from the newest
DEAD_MAX = 2_000  # dead jobs whose tasks are counted, from the newest
SCHEDULED_MAX = 2_000  # ready jobs whose time has not come, from the newest
_PAGE = 500
_LOOKED_AT = 50  # held jobs, from the oldest
_TASKS_NAMED = 3  # with a command for each


def diagnose(store: Store, clock: Clock, app: App | None = None, name: str = "APP") -> Iterator[Finding]:
    """Check everything; with `app` also whether it knows the tasks of the jobs in its queues.

    name: how the command line names the app, for the commands that a person is to type.
    """
    yield (schema := _schema(store))
    if schema.severity != "ok":
        return  # nothing else can be read
    if missing := store.missing():
        yield problem("Tables are missing", listed(missing), "stop the workers and restore the store from a backup")
        return
    yield _continuity(store)
    yield (writes := _writes(store))
    yield from (each for each in of_the_medium(store) if not each.fix or each.fix != writes.fix)  # once is enough
    queues = queue_views(store, exact=True)
    someone_works = any(queue["served"] for queue in queues)
    nobodys = {queue["queue"]: queue["missing" if someone_works else "unserved"] for queue in queues}
    checks: list[Callable[[], Iterable[Finding]]] = [
        lambda: _of_workers(store, queues, quote(name)),
        lambda: _of_queues(queues, app, quote(name), someone_works=someone_works),
        lambda: _of_limits(store, app),
        lambda: [] if app is None else _of_tasks(store, app, nobodys),
        lambda: [_clock(store)],
    ]
    later: list[Callable[[], Iterable[Finding]]] = [
        lambda: _orphaned(store),
        lambda: [_held(store)],
        lambda: [_retrying(store)],
        lambda: [_dead(store)],
        lambda: _of_schedules(store),
        lambda: of_settings(store, look_back(store, DAY_S)),
        lambda: [_retention(store)],
    ]
    found = together(*(partial(_made, check) for check in (*checks, *later)))
    yield from chain.from_iterable(found[: len(checks)])
    yield _zombies(store, clock)
    yield from _locked(store)
    yield from chain.from_iterable(found[len(checks) :])


def _made(check: Callable[[], Iterable[Finding]]) -> list[Finding]:
    return list(check())


def _schema(store: Store) -> Finding:
    schema, where = store.schema(), shown_url(store.url)
    if not schema.found:
        return problem("There is no store here", f"{where} has no tables of Holdfast", TO_MAKE_ONE)
    if schema.is_too_new:
        return problem("The schema is too new for this program", str(schema_too_new(where, schema)), "upgrade Holdfast")
    if schema.is_stale:
        evidence = f"{where} has version {schema.found}; this program needs {schema.wanted}"
        return problem("The schema is old", evidence, "holdfast db migrate")
    if schema.found > schema.wanted:
        evidence = f"{where} has version {schema.found}; this program knows {schema.wanted}, and may continue"
        return ok("The schema is newer than this program", evidence)
    return ok("The schema is current", f"version {schema.found}, in {where}")


def _continuity(store: Store) -> Finding:
    doubts = store.doubts()
    if not doubts:
        return ok(
            "The store was not replaced, rewound or emptied", "no worker has found it replaced, rewound or emptied"
        )
    evidence = "; ".join(dict.fromkeys(in_words(doubt) for doubt in doubts))
    fix = "look what has become of the jobs, then: holdfast db accept --by NAME --note TEXT"
    return problem("The store was replaced, rewound or emptied", evidence, fix)


def _writes(store: Store) -> Finding:
    try:
        store.ping()
    except StoreError as error:
        title = "The disk is full" if isinstance(error, StoreFull) else "The store takes no writes"
        return problem(title, str(error), to_take_writes(store, error))
    return ok("The store takes writes", shown_url(store.url))


# --------------------------------------------------------------------------------- workers, queues, tasks


def _of_workers(store: Store, queues: Sequence[dict[str, Any]], app: str) -> Iterator[Finding]:
    workers, vanished, now = store.workers(), vanished_ids(store), store.now()
    states = {worker.id: worker_state(worker, now, vanished) for worker in workers}
    alive = [worker for worker in workers if states[worker.id] == "alive"]
    stopping = [f"{worker.name} ({worker.running} running)" for worker in workers if states[worker.id] == "stopping"]
    none = "Every worker is stopping" if stopping else "No worker is alive"
    due = [queue["queue"] for queue in queues if queue["oldest_due_s"] is not None and not queue["paused"]]
    if alive:
        yield ok("Workers are alive", f"{len(alive)}: {listed([worker.name for worker in alive])}")
    elif due:
        oldest = max(queue["oldest_due_s"] for queue in queues if queue["queue"] in due)
        evidence = f"jobs are due in {listed(due)}, the oldest for {duration(oldest)}"
        fix = f"start one: holdfast worker {app}"
        if standing := store.orders():  # one that is started under such a name claims nothing
            evidence += f"; {listed([orders.in_words(order) for order in standing])}"
            resume = listed([f"holdfast workers resume {quote(order.name)}" for order in standing])
            fix = f"let them claim again: {resume}; or start one of another name: holdfast worker {app} --name NAME"
        yield problem(none, evidence, fix)
    else:
        yield ok(none, "and nothing is due")
    if stopping:
        yield ok("Workers are stopping", listed(stopping))
    for worker in workers:
        evidence = (
            f"{worker.name}, pid {worker.pid} on {worker.host}: last beat {duration(now.wall - worker.beat_at)} ago"
        )
        if states[worker.id] == "vanished":
            fix = "a worker or holdfast reaper settles its jobs by itself; now: holdfast scan --fix"
            yield warning("A worker vanished", f"{evidence}; its process has ended or was cut off", fix)
        elif states[worker.id] == "silent":
            fix = f"it hangs, is stopped or has died; if it is dead: holdfast workers forget {quote(worker.name)}"
            yield warning("A worker is silent", f"{evidence}, one every {worker.beat_s:g} s expected", fix)
    if idle := [worker.name for worker in alive if worker.tasks == {}]:
        fix = f"import the modules that declare them: holdfast worker {app} --import MODULE"
        yield warning("A worker has no tasks", f"{listed(idle)} will run no jobs", fix)
    yield from _of_names(alive)


def _of_names(alive: Sequence[Worker]) -> Iterator[Finding]:
    for name, number in Counter(worker.name for worker in alive).items():
        if number > 1:
            yield ok("Living workers share a name", f"{number} are called {name}; they do not disturb each other")
    versions = sorted({worker.version for worker in alive})
    if len(versions) > 1:
        fix = "restart the old ones when you can; a mixed fleet is meant to be short-lived"
        yield warning("Workers run several versions", listed(versions), fix)


def _of_queues(
    queues: Sequence[dict[str, Any]], app: App | None, ref: str, *, someone_works: bool
) -> Iterator[Finding]:
    for queue in queues:
        name, waited = queue["queue"], queue["oldest_due_s"]
        if waited is None:
            continue
        evidence = f"{name}: the oldest job has been due for {duration(waited)}, {_due_jobs(queue)}"
        if queue["paused"]:
            if waited > PAUSED_LONG_S:
                yield warning("A queue is paused", evidence, f"if that is over: holdfast queues resume {name}")
        elif not queue["served"]:
            if someone_works:  # otherwise it is said that nobody works at all
                yield from _unserved_queue(queue, evidence, app, ref)
        elif queue["missing"]:
            yield _missing_tasks(f"{name}: no living worker has", queue["missing"])
        served = queue["oldest_served_s"]
        if served is not None and served > WAIT_LONG_S:
            evidence = f"{name}: the oldest job has been due for {duration(served)}, {_due_jobs(queue)}"
            yield warning("Due jobs wait for a free slot", evidence, "more workers, more --processes, or more --slots")


def _of_limits(store: Store, app: App | None) -> Iterator[Finding]:
    """Find queues whose limits two apps, or two versions of one, declare differently: the last worker to start wins."""
    said: dict[str, list[dict[str, Any]]] = {}
    for event in store.journal(kinds=("limited",), since=store.now().wall - DAY_S, limit=_PAGE):
        if event.detail["by"] == "app":
            said.setdefault(event.detail["queue"], [event.detail["was"]]).append(event.detail["is"])
    for queue, values in sorted(said.items()):
        if any(value in values[: place - 1] for place, value in enumerate(values) if value):  # it came back
            evidence = f"{queue}: {_declared(values)} within a day; workers declare them in turn, and the last one wins"
            fix = f"declare one setting in all apps and versions, or choose one: holdfast queues limit {quote(queue)} N"
            yield warning("Apps declare different limits for a queue", evidence, fix)
    if app is None:
        return
    known = {queue.name: queue.declared for queue in store.queues()}
    for queue, declared in sorted(app.queues.items()):
        if queue in known and known[queue] != declared:
            evidence = (
                f"{queue}: this app declares {_declared([declared.view])}, and {_declared([known[queue].view])} holds"
            )
            fix = "declare the same in all apps and versions; the limits of the worker that starts last hold"
            yield warning("The app declares other limits than hold", evidence, fix)


def _declared(values: Sequence[dict[str, Any]]) -> str:
    """Name each of these declarations once."""
    words = [", ".join(f"{name}={value}" for name, value in each.items()) or "no limits" for each in values]
    return " and ".join(dict.fromkeys(words))


def _unserved_queue(queue: dict[str, Any], evidence: str, app: App | None, ref: str) -> Iterator[Finding]:
    """Name the due tasks that no living worker and not the app has: only for the others a worker of that code helps."""
    name, own = queue["queue"], {} if app is None else app.tasks
    missing = {task: jobs for task, jobs in queue["missing"].items() if task not in own}
    others = [task for task in queue["unserved"] if task not in missing]
    if missing:
        yield _missing_tasks(f"{name}: no worker serves the queue, and no living worker has", missing)
    if others:
        start = f"holdfast worker {ref} --queues {quote(name)}"
        if app is not None and not any(task in own for task in others):
            start = f"start a worker of the code that has {listed(others)}: holdfast worker APP --queues {quote(name)}"
        yield problem("No worker serves a queue", evidence, start)


def _missing_tasks(known: str, missing: dict[str, int]) -> Finding:
    tasks = listed([f"{task} ({counted(jobs, 'due job')})" for task, jobs in missing.items()])
    fix = "run a worker of the code that has the task, or declare it again under that name; nothing is lost"
    return problem("No worker serves a task", f"{known} {tasks}", fix)


def _due_jobs(queue: dict[str, Any]) -> str:
    ready, waits = queue["ready"], counted(queue["unroused"], "workflow has", "workflows have")
    return f"{ready} are ready" + (f", and {waits} waited long enough" if queue["unroused"] else "")


def _of_tasks(store: Store, app: App, nobodys: dict[str, dict[str, int]]) -> Iterator[Finding]:
    """Find due jobs that the app has no task for, in its queues and, if they are in `nobodys`, in any other."""
    queues = sorted({task.queue for task in app.tasks.values()})
    unknown = Counter(store.unserved(queues, sorted(app.tasks)))
    for each in store.due_waits():
        if each.queue in queues and each.task not in app.tasks:
            unknown[each.task] += each.jobs
    for queue, tasks in nobodys.items():
        if queue not in queues:
            unknown.update({task: jobs for task, jobs in tasks.items() if task not in app.tasks})
    if not unknown:
        yield ok("The app knows every task that is due", f"{counted(len(app.tasks), 'task')} in {listed(queues)}")
        return
    named = listed([f"{task} ({counted(number, 'job')})" for task, number in sorted(unknown.items())])
    fix = "run a worker of the code that has them, or bring the task back under its name; nothing is lost meanwhile"
    yield problem("Tasks are due that the app does not have", named, fix)


# --------------------------------------------------------------------------------------------------- jobs


def _clock(store: Store) -> Finding:
    """Find ready jobs that start late because the clock was set back after they were enqueued."""
    now = store.now()
    later = Filter(states=(State.READY,), later=now.wall + SET_BACK_S, limit=_PAGE)
    scheduled = islice(all_jobs(store, later), SCHEDULED_MAX)
    ahead = [job for job in scheduled if enqueued_ahead_s(job, now)]
    if not ahead:
        return ok("No job waits for a clock that was set back", "no ready job was enqueued later than now")
    furthest = duration(max(enqueued_ahead_s(job, now) for job in ahead))
    number = counted(len(ahead), "ready job was", "ready jobs were")
    jobs = listed([f"{job.id} ({job.task})" for job in ahead], 3)
    evidence = f"{number} enqueued up to {furthest} later than now, and will not start before then: {jobs}"
    fix = (
        "if the clock is wrong now, set it right; if it was wrong before, wait. A job that is neither a workflow nor "
        "the child of one can be started now: holdfast jobs cancel ID, then holdfast jobs retry ID"
    )
    return warning("The clock of the store was set back", evidence, fix)


def _zombies(store: Store, clock: Clock) -> Finding:
    found = reap(store, clock, fix=False).zombies
    if not found:
        return ok("No zombies", "every running job has a living worker")
    number = counted(len(found), "job lost its worker", "jobs lost their worker")
    evidence = f"{number}: {listed([zombie.job.id for zombie in found], 3)}"
    return problem(
        "Zombies wait for a reaper", evidence, "holdfast scan --fix; a worker or holdfast reaper does it by itself"
    )


def _locked(store: Store) -> Iterator[Finding]:
    """Find leases that have run out because another transaction keeps their rows locked."""
    if found := locked_rows(store):
        evidence = f"{counted(len(found), 'job')}: {listed([f'{job.id} ({job.task})' for job in found], 3)}"
        fix = (
            'end the transaction that has locked them: docs/postgresql.md, "Locks of others", has a query that names '
            "it; until then leases are not renewed and results are not saved"
        )
        yield warning("Rows are locked by another transaction", evidence, fix)


def _orphaned(store: Store) -> Iterator[Finding]:
    """Find waiting workflows that nothing will wake: the job whose end they wait for was deleted."""
    walk = islice(all_jobs(store, Filter(states=(State.WAITING,), limit=_PAGE)), WAITING_MAX)
    found: list[tuple[Job, str]] = []
    while page := list(islice(walk, _PAGE)):
        wanted = [(job, job_id) for job in page for job_id in awaited_jobs(job)]
        ids = tuple({job_id for _, job_id in wanted})
        there = {job.id for job in store.find(Filter(ids=ids, limit=len(ids)))} if ids else set[str]()
        found += [(job, job_id) for job, job_id in wanted if job_id not in there]
    if found:
        evidence = listed([f"{job.id} ({job.task}) waits for {job_id}" for job, job_id in found], 3)
        first = quote(found[0][0].id)
        fix = f"let it run again; it is then notified: holdfast jobs cancel {first}; holdfast jobs retry {first}"
        yield problem("A workflow waits for a job that does not exist", evidence, fix)


def _held(store: Store) -> Finding:
    held = store.find(Filter(states=(State.HELD,), limit=_PAGE))
    asking = store.find(Filter(states=(State.WAITING,), asking=True, limit=_PAGE))
    if not held and not asking:
        return ok("No job waits for an answer", "no job is held, and no workflow asks a person")
    now, waited, evidence = store.now().wall, 0.0, []
    for jobs, state in ((held, "held"), (asking, "asks a person" if len(asking) == 1 else "ask a person")):
        if jobs:
            oldest = jobs[: -_LOOKED_AT - 1 : -1]
            instants = since_each(store, oldest)
            longest = min(oldest, key=lambda job: instants[job.id])
            since = instants[longest.id]
            waited = max(waited, now - since)
            number = f"{len(jobs)}{' or more' if len(jobs) == _PAGE else ''}"
            evidence.append(f"{number} {state}, {longest.id} ({longest.task}) for {duration(now - since)}")
    said = "Held jobs wait for an answer" if held else "Workflows wait for an answer"
    # A held job was interrupted, and its work stands still. A question is part of a workflow's ordinary way.
    severity: Severity = "warning" if held or waited > ASKED_LONG_S else "ok"
    return Finding(severity, said, "; ".join(evidence), "decide: holdfast held list")


def _retrying(store: Store) -> Finding:
    """Find jobs that failed and will run again. The newest failures of the journal lead to them, by its index on kind
    and time and then by id: neither the ready jobs nor the ended ones are walked over."""
    since = store.now().wall - FAILED_S
    failures = store.journal(kinds=("failed", "timed_out", "stalled"), since=since, limit=_PAGE)
    ids = tuple(dict.fromkeys(event.job_id for event in reversed(failures)))  # the newest first
    ready = store.find(Filter(ids=ids, states=(State.READY,), limit=len(ids))) if ids else []
    failed = {job.id: job for job in ready if job.failures}
    tasks: dict[str, list[Job]] = {}
    for job_id in ids:
        if job_id in failed:
            tasks.setdefault(failed[job_id].task, []).append(failed[job_id])
    if not tasks:
        return ok("No job is retried after a failure", "none that failed within the last hour")
    worst = sorted(tasks, key=lambda task: -len(tasks[task]))
    evidence = listed(
        [f"{task} ({counted(len(tasks[task]), 'job')}; {first_line(tasks[task][0].error)})" for task in worst], 3
    )
    # A single failure may pass. A job that fails again after a pause needs a person, before its attempts are spent.
    severity: Severity = "warning" if any(job.failures > 1 for job in failed.values()) else "ok"
    fix = f"see the errors: holdfast jobs list --state retrying --task {quote(worst[0])}"
    return Finding(severity, "Jobs are retried after failures", evidence, fix)


def _dead(store: Store) -> Finding:
    """Compare a day's dead jobs with those of the day before."""
    now, number = store.now().wall, totals(store)[State.DEAD.value]
    days = [0, 0]
    before = None
    while page := store.journal(kinds=("dead",), since=now - 2 * DAY_S, before=before, limit=DEATHS_MAX):
        for event in page:
            days[event.at < now - DAY_S] += 1
        before = page[0].seq
        if sum(days) >= DEATHS_MAX:
            break
    at_least = "at least " if sum(days) >= DEATHS_MAX else ""  # of the older day, if the newest lines reach it at all
    if at_least and not days[1]:
        evidence = f"{number} dead; {at_least}{days[0]} gave up in 24 h"
    else:
        evidence = f"{number} dead; {days[0]} gave up in 24 h, {at_least}{days[1]} in the day before"
    growing = _growing_dead(store, evidence) if days[0] > days[1] else None
    return growing or ok("No more jobs died than the day before", evidence)


def _growing_dead(store: Store, evidence: str) -> Finding | None:
    """Name the tasks of the dead jobs: each task may have a cause of its own, and its jobs come back by themselves."""
    number: Counter[str] = Counter()
    since: dict[str, float] = {}
    opened = 0
    for job in islice(all_jobs(store, Filter(states=(State.DEAD,), limit=DEAD_MAX)), DEAD_MAX):
        number[job.task] += 1
        since[job.task] = min(since.get(job.task, inf), job.ended_at or inf)
        opened += job.open_step is not None
    if not number:
        return None
    tasks = [f"{task} ({jobs} since {moment(since[task])})" for task, jobs in number.most_common()]
    looked = f"among the newest {DEAD_MAX}: " if number.total() == DEAD_MAX else ""
    worst = [quote(task) for task, _ in number.most_common(_TASKS_NAMED)]
    fix = (
        f"see why: holdfast dead list --task {worst[0]}; when the cause is gone, bring the jobs of that task back: "
        + "; ".join(f"holdfast dead revive --all --task {task}" for task in worst)
    )
    if opened:
        fix += (
            f"; that leaves {opened} alone, in which a step may have happened that must not be repeated: decide for "
            "each, see holdfast workflows show ID"
        )
    return warning("More jobs died than the day before", f"{evidence}; {looked}{listed(tasks)}", fix)


def _of_schedules(store: Store) -> Iterator[Finding]:
    """Find schedules whose instants came and were not fired: by nobody, or by nobody who can."""
    schedules, now = store.schedules(), store.now().wall
    overdue = [(schedule, late) for schedule in schedules if (late := late_now(schedule, now)) is not None]
    for schedule, late in overdue:
        key = quote(schedule.key)
        evidence = f"{schedule.key} ({schedule.job.task}): no program fired {moment(late.since)}"
        if late.instants > 1:
            evidence += f" and {counted(late.instants - 1, 'instant')} after it"
        if is_declared(schedule, now):
            fix = (
                "read in the worker's log, under holdfast.scheduler, what stands in the way; to add its job now: "
                f"holdfast schedules fire {key}"
            )
        else:
            evidence += f"; the last program that declared it did so {duration(now - schedule.declared_at)} ago"
            fix = (
                "start a worker of the app that declares it; if it was removed on purpose: "
                f"holdfast schedules pause {key}"
            )
        yield problem("A schedule is late", evidence, fix)
    if schedules and not overdue:
        yield ok("No schedule is late", listed([schedule.key for schedule in schedules]))


def _retention(store: Store) -> Finding:
    found = totals(store)
    ended = sum(found[state.value] for state in ENDED)
    if ended > ENDED_MAX:
        fix = (
            'say how long to keep them: App(…, keep={"done": "30d"}) or holdfast reaper --keep 30d; '
            "once, by hand: holdfast db prune --older-than 30d"
        )
        return warning("Many ended jobs are kept", f"{ended:,}", fix)
    return ok("Few ended jobs are kept", f"{ended:,}")
