"""A guard for tasks that stay with Celery: a killed worker's task is found, and runs again, is held or fails.

    app = Celery("shop", broker="redis://…")
    guard = Guard(app, "postgresql://…")

    @app.task
    @guard(on_crash="hold")
    def charge(order): ...

Each delivery of a guarded task takes a lease on a job of Holdfast whose id is the id of the Celery task, in the queue
`celery`. The lease is renewed while the task runs, and settled when it ends. A delivery of an id whose job runs or has
ended is ignored. Each Celery worker also has a keeper: a process with a reaper that sends a message, under the same id,
for each job that is to run again. A message that was never delivered stays the broker's business.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import stat
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, cast

from celery import Celery, bootsteps, signals
from celery.exceptions import Ignore, Reject, Retry
from kombu.exceptions import OperationalError as BrokerAway
from kombu.utils import json as kombu_json
from msgspec.structs import replace

from holdfast import App
from holdfast import Retry as RetryPolicy
from holdfast.clock import Clock, SystemClock, pause
from holdfast.core.acts import Move
from holdfast.core.machine import State, Transition
from holdfast.core.payload import encode_value
from holdfast.core.policy import Policy
from holdfast.core.published import PublishedTask
from holdfast.core.records import Filter, Job, Lease, NewJob, Published, Pulse, Record, Step, Worker
from holdfast.core.settlement import settlement
from holdfast.core.verdict import Failed, Outcome, Released, Snoozed, Succeeded, Verdict, judge
from holdfast.enqueueing.by_name import NamedTask
from holdfast.errors import HoldfastError, NotFound, PayloadError, Refused, UsageError
from holdfast.ids import chance, new_id
from holdfast.runtime.service import Service
from holdfast.stores.protocol import Reply, Store
from holdfast.version import __version__

log = logging.getLogger("holdfast.celery")

_json: Any = kombu_json  # it has no types

F = TypeVar("F", bound=Callable[..., Any])

QUEUE = "celery"
LOOK_S = 0.5  # how often the keeper looks for jobs that need a message
LOOK_SHARE = 0.02  # of the keeper's time; a look reads every ready job of the guarded tasks
RESTART_S = 5.0  # how soon a keeper that died is started again
FRESH_S = 5.0  # a job this young, or handed back this lately, is about to be claimed by its own delivery
AWAY_S = 5  # a delivery that finds the store away is sent again after this
CLAIM_AT_ONCE = 20
CLAIM_TRIES = 200
HANDED_BACK_S = 2.0  # how long another delivery may hold a job that it claimed along with its own
PAGE = 200
MESSAGE = "celery_message"  # marks the payload of a job that a delivery stored
_MARK = "__holdfast_guard__"

OnCrash = Literal["retry", "hold", "fail"]


class Guard:
    """Guards tasks of a Celery app with the store at `url`. Make one in the module of the Celery app.

    lease_s: how long a job stays leased after its last beat. republish_s: a message that no worker has received for
    this long is sent again; the copy is ignored if the first one arrives. keep: False lets this program's Celery
    workers run no keeper; at least one must.
    """

    def __init__(
        self,
        celery: Celery,
        url: str | None = None,
        *,
        lease_s: float = 30.0,
        republish_s: float = 60.0,
        keep: bool = True,
    ) -> None:
        if not 1.0 <= republish_s <= 86_400:
            raise UsageError(f"republish_s={republish_s!r} must be a number of seconds from 1 to 86400")
        self.celery = celery
        self.url = url
        self.republish_s = republish_s
        self.keeps = keep
        self._policy = Policy(RetryPolicy(attempts_max=1_000_000), lease_s=lease_s)
        self._sessions: dict[int, _Session] = {}
        self._lock = threading.Lock()
        self.parent: int | None = None  # the process whose children run the tasks
        steps: dict[str, set[Any]] = cast(Any, celery).steps
        if any(isinstance(each, type) and issubclass(each, _Step) for each in steps["worker"]):
            raise UsageError("this Celery app has a Guard already")
        steps["worker"].add(type("GuardStep", (_Step,), {"guard": self}))
        signals.task_revoked.connect(self._revoked, weak=False)
        signals.worker_process_shutdown.connect(self._left, weak=False)

    def __call__(self, *, on_crash: OnCrash = "retry", crashes_max: int = 3) -> Callable[[F], F]:
        """Guard the function below `@app.task`. `on_crash` decides what becomes of a task whose process died."""
        if on_crash not in ("retry", "hold", "fail"):
            raise UsageError(f"on_crash={on_crash!r} is not known; choose one of 'retry', 'hold', 'fail'")
        retry, lease_s = self._policy.retry, self._policy.lease_s
        policy = Policy(retry, crashes_max=crashes_max, on_crash=on_crash, lease_s=lease_s)

        def mark(fn: F) -> F:
            if not callable(fn) or hasattr(fn, "apply_async"):
                raise UsageError("write @guard(…) below @app.task, directly above the function")
            setattr(fn, _MARK, policy)
            return fn

        return mark

    def task(self, app: App, task: Any) -> NamedTask:
        """Return a guarded Celery task as a task of Holdfast: its jobs run on Celery workers.

        Enqueue it with keyword arguments, or start it in a workflow: `flow.result(flow.start(charge, order=42))`. `app`
        is on the same store as this guard.
        """
        policy = policy_of(task)
        if policy is None:
            raise UsageError(f"{task.name} is not guarded; write @guard(…) below its @app.task")
        new = NewJob(id="", task=task.name, payload="{}", queue=QUEUE, policy=policy)
        return NamedTask(app, PublishedTask(job=new), None)

    def keeper(self) -> Keeper:
        """Return a keeper for any program: `with guard.keeper(): …`."""
        return Keeper(self)

    def attach(self, app: App) -> None:
        """Let each `holdfast worker` of this app run a keeper, too."""
        running = ExitStack()

        def begin() -> None:
            running.enter_context(self.keeper())

        app.on_worker_start(begin)
        app.on_worker_stop(running.close)

    @property
    def guarded(self) -> dict[str, Any]:
        """Return the guarded tasks of the Celery app by name."""
        return {name: task for name, task in self.celery.tasks.items() if policy_of(task) is not None}

    def install(self) -> None:
        """Put the guard around every guarded task of this process. A Celery worker does it at its start."""
        for task in self.guarded.values():
            kind = type(task)
            if "__call__" not in vars(kind) or not hasattr(vars(kind)["__call__"], _MARK):
                kind.__call__ = self._guarded(kind.__call__)

    def _guarded(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(task: Any, *args: Any, **kwargs: Any) -> Any:
            request = task.request
            if request.called_directly or request.is_eager or request.id is None:
                return inner(task, *args, **kwargs)
            try:
                session = self._session()
            except HoldfastError as error:
                _send_again(task, error)
            return session.run(task, lambda: inner(task, *args, **kwargs))

        setattr(call, _MARK, True)
        return call

    def _session(self) -> _Session:
        with self._lock:
            pid = os.getpid()
            if pid not in self._sessions:
                self._sessions = {pid: _Session(self)}  # one that a parent had belongs to the parent
            return self._sessions[pid]

    def _revoked(self, sender: Any = None, request: Any = None, expired: bool = False, **_: Any) -> None:
        """Cancel the job of a revoked task: its killed process is not a crash, and a waiting retry is not sent again.

        A task that has begun in time does not expire: Celery may say so of a second delivery.
        """
        if request is not None and not expired and getattr(sender, "name", sender) in self.guarded:
            try:
                with App(self.url) as app:
                    app.cancel(request.id, by="celery", note="revoked")
            except (NotFound, Refused):
                pass  # it has not begun, or has ended
            except HoldfastError as error:
                log.warning("task %s was revoked, but its job could not be cancelled: %s", request.id, error)

    def _left(self, **_: Any) -> None:
        session = self._sessions.get(os.getpid())
        if session is not None:
            session.close()


def policy_of(task: Any) -> Policy | None:
    """Return what `@guard(…)` declared about a Celery task; None if it is not guarded."""
    found = getattr(getattr(task, "run", None), _MARK, None)
    return found if isinstance(found, Policy) else None


class _Session:
    """The part of the guard in one process that runs tasks: a worker of Holdfast with a heartbeat of its own."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._clock = SystemClock()
        self._app = App(guard.url)
        self._store: Store = self._app.store
        self._held: dict[str, tuple[Lease, float, float]] = {}  # lease, its length, when it was last renewed
        self._lock = threading.Lock()
        self._beat_s = guard._policy.beat_every_s
        try:
            self._enroll()
        except HoldfastError:
            self._app.close()
            raise
        self._service = Service("holdfast-celery-beat", self._beat, self._clock, log, self._beat_s, jitter=0.0)
        self._service.start()

    def close(self) -> None:
        """Leave in good order; jobs that still run are judged as lost."""
        self._service.stop(1.0)
        try:
            self._store.retire(self._worker.id, "the process ended")
        except HoldfastError as error:
            log.warning("this process could not sign off: %s", error)

    def run(self, task: Any, body: Callable[[], Any]) -> Any:
        """Run one delivery under a lease; ignore it if its job runs elsewhere or has ended."""
        request = task.request
        try:
            job = self._claim(task)
        except HoldfastError as error:
            _send_again(task, error)
        if job is None:
            log.info("this delivery of task %s is ignored: its job runs elsewhere or has ended", request.id)
            raise Ignore()
        try:
            value = body()
        except Retry as again:
            self._keep_message(task, job, again)
            self._settle(job, Snoozed(self._until(again) + self._guard.republish_s))
            raise
        except Ignore:
            self._settle(job, Succeeded())
            raise
        except Reject as rejected:
            back = Snoozed(self._guard.republish_s) if rejected.requeue else Failed(f"rejected: {rejected}", final=True)
            self._settle(job, back)
            raise
        except Exception as error:
            words = f"{type(error).__name__}: {error}"
            self._settle(job, Failed(words, final=True, error_kind=type(error).__name__))
            raise
        except BaseException as error:
            self._settle(job, Released(True, f"the Celery worker is stopping: {type(error).__name__}"))
            raise
        self._settle(job, self._succeeded(job, value))
        return value

    def _keep_message(self, task: Any, job: Job, again: Retry) -> None:
        """Record the message of a retry, as a step: it has other arguments than the first, and counts the retries."""
        signature = again.sig
        if signature is None:
            return
        options = {key: value for key, value in signature.options.items() if value is not None}
        number = int(options.get("retries") or 0)
        try:
            now = self._store.now().wall
            step = Step(
                position=number,
                path=f"retry/{number}",
                kind="step",
                name="retry",
                state="recorded",
                attempt=job.attempt,
                fence=job.fence,
                arguments=_message(task.name, signature.args, signature.kwargs, options),
                started_at=now,
                ended_at=now,
            )
            self._store.record([Record(lease=job.lease, worker=self._worker.id, steps=(step,))])
        except HoldfastError as error:
            log.warning(
                "the retry of task %s was not recorded; if it is lost, the run before is sent: %s", job.id, error
            )

    def _until(self, again: Retry) -> float:
        when = again.when
        if isinstance(when, int | float):
            return max(0.0, float(when))
        return 0.0 if when is None else max(0.0, when.timestamp() - self._clock.wall())

    @staticmethod
    def _succeeded(job: Job, value: Any) -> Outcome:
        try:
            return Succeeded(encode_value(value, f"task {job.task}: the result"))
        except PayloadError as error:
            if MESSAGE in job.payload:  # Celery keeps the result; nobody reads this one
                return Succeeded()
            return Failed(str(error), finished=True, final=True)

    # ------------------------------------------------------------------------------------------ leases

    def _claim(self, task: Any) -> Job | None:
        """Take the lease on the job of this delivery; None if it runs elsewhere or has ended."""
        policy = policy_of(task)
        assert policy is not None  # noqa: S101 - only guarded tasks come here
        request = task.request
        self._store.add([NewJob(id=request.id, task=task.name, payload=message(task), queue=QUEUE, policy=policy)])
        for turn in range(CLAIM_TRIES):
            row = self._store.get(request.id)
            now = self._store.now().wall
            if row is not None and row.state is State.RUNNING and now - (row.claimed_at or 0.0) < HANDED_BACK_S:
                pause(0.05)  # it may have been claimed for another delivery, and comes back at once
                continue
            if row is None or row.state is not State.READY:
                return None
            if row.run_at > now:
                self._store.move([Move(row.seen, Verdict(move=Transition.RESCHEDULE, state=State.READY, run_at=now))])
            claimed = self._store.claim(self._worker.id, new_id(), [QUEUE], [task.name], CLAIM_AT_ONCE)
            mine = None
            for each in claimed:
                if each.id == request.id:
                    mine = each
                else:  # due for another delivery, which will find it ready
                    self._write(each, Released(False, "claimed for another delivery"))
            if mine is not None:
                with self._lock:
                    self._held[mine.id] = (mine.lease, mine.lease_s, self._clock.lease())
                return mine
            pause(0.01 * (1 + min(turn, 20)) * chance())
        raise HoldfastError(f"the job of task {request.id} could not be claimed")

    def _settle(self, job: Job, outcome: Outcome) -> None:
        """End the attempt; keep trying until its lease ends, because nobody else knows this outcome."""
        give_up_at = self._clock.lease() + job.lease_s
        while True:
            try:
                reply = self._write(job, outcome)
                break
            except HoldfastError as error:
                if self._clock.lease() >= give_up_at:
                    log.error("the outcome of task %s was not saved, its lease will expire: %s", job.id, error)
                    return
                pause(0.5)
            finally:
                with self._lock:
                    if self._clock.lease() >= give_up_at:
                        self._held.pop(job.id, None)
        with self._lock:
            self._held.pop(job.id, None)
        if reply is Reply.REFUSED:
            log.error("task %s ended here after another worker had taken it over; this outcome is not counted", job.id)

    def _write(self, job: Job, outcome: Outcome) -> Reply:
        row = job
        while True:
            verdict = judge(outcome, row, self._store.now().wall, chance=chance())
            ended = replace(settlement(job, verdict), seen_cancel=row.cancel_requested)
            [reply] = self._store.settle([ended])
            if reply is Reply.LOCKED:
                pause(0.05)
            elif reply is not Reply.AGAIN:
                return reply
            row = self._store.get(job.id) or row

    def _enroll(self) -> None:
        names = {name: Published(QUEUE, False) for name in self._guard.guarded}
        self._worker = Worker(
            id=new_id(),
            name=f"celery:{socket.gethostname()}",
            host=socket.gethostname(),
            pid=os.getpid(),
            boot_id=self._clock.boot_id,
            queues=[QUEUE],
            slots=1,
            beat_s=self._beat_s,
            version=__version__,
            tasks=names,
        )
        self._store.enroll(self._worker)

    def _beat(self) -> None:
        """Renew the leases of this process. One that is lost, or may be by now, ends the process."""
        sent_at = self._clock.lease()
        with self._lock:
            held = dict(self._held)
        try:
            reply = self._store.beat(self._worker.id, [Pulse(lease) for lease, _, _ in held.values()])
        except HoldfastError as error:
            log.warning("the leases of this process could not be renewed: %s", error)
            if any(sent_at + 2 * self._beat_s > seen_at + length for _, length, seen_at in held.values()):
                self._end_process("its leases end before they can be renewed")
            return
        if reply.gone:
            if held:
                self._end_process("it was declared dead, and others have its tasks")
            self._enroll()
            return
        with self._lock:
            for name, (lease, length, _) in held.items():
                if name in self._held:
                    self._held[name] = (lease, length, sent_at)
            lost = [name for name in reply.lost if name in self._held and self._held[name][0] == held[name][0]]
        if lost:
            self._end_process(f"another worker has taken over task {lost[0]}")

    def _end_process(self, why: str) -> None:
        """Stop tasks whose leases are gone. Only a child of a prefork pool can be ended without harm to other tasks."""
        if self._guard.parent not in (None, os.getpid()):
            log.critical("this process is ended: %s", why)
            os.kill(os.getpid(), signal.SIGKILL)
        log.critical("%s; what the task does from here on is not counted", why)


# -------------------------------------------------------------------------------------------- messages


def _send_again(task: Any, error: HoldfastError) -> NoReturn:
    """Send a message whose task cannot be leased back to the broker, and end this delivery."""
    if isinstance(error, UsageError):
        raise error
    log.error("task %s cannot be leased, and is sent again in %d s: %s", task.request.id, AWAY_S, error)
    task.signature_from_request(task.request, countdown=AWAY_S).apply_async()
    raise Ignore() from error


def message(task: Any) -> str:
    """Return the payload of a job: the message of a delivery, as it can be sent again."""
    request = task.request
    delivery = request.delivery_info or {}
    options = {key: value for key, value in request.as_execution_options().items() if value is not None}
    if delivery.get("exchange") == "" and delivery.get("routing_key"):
        options["queue"] = delivery["routing_key"]
    else:
        options |= {key: delivery[key] for key in ("exchange", "routing_key") if delivery.get(key)}
    if delivery.get("priority") is not None:
        options["priority"] = delivery["priority"]
    return _message(task.name, request.args, request.kwargs, options)


def _message(name: str, args: Any, kwargs: Any, options: dict[str, Any]) -> str:
    """Return a message as it can be sent again: at once, and whenever, because its task has begun in time."""
    kept = {key: value for key, value in options.items() if key not in ("task_id", "expires", "eta", "countdown")}
    try:
        text = _json.dumps({MESSAGE: {"args": args, "kwargs": kwargs, "options": kept}})
    except (TypeError, ValueError) as error:
        raise UsageError(f"task {name} is guarded, so its arguments must be JSON: {error}") from error
    return str(text)


class Keeper:
    """Finds tasks whose worker died, and sends a message for each that is to run again. `with` starts and stops it."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._app = App(guard.url)
        self._service: Service | None = None
        self._clock: Clock = SystemClock()
        self._look_at = float("-inf")

    def start(self) -> Keeper:
        """Start it on threads of this process."""
        self._reaper = self._app.reaper(name=f"celery:{socket.gethostname()}:{os.getpid()}").start()
        meanwhile = "tasks whose worker died are not sent again meanwhile"
        self._service = Service("holdfast-celery-keeper", self.publish, self._clock, log, LOOK_S, meanwhile)
        self._service.start()
        return self

    def stop(self) -> None:
        """Let what is under way end, and stop."""
        if self._service is not None:
            self._service.stop(10.0)
            self._reaper.stop()
            self._service = None
        self._app.close()

    def __enter__(self) -> Keeper:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def publish(self) -> None:
        """Send a message for each job that is due. If it takes long to find them, it is done less often."""
        names, store = list(self._guard.guarded), self._app.store
        if self._clock.lease() < self._look_at:
            return
        due = store.due([QUEUE], names)
        if due is None or due > store.now().wall:
            return
        looked_s = 0.0
        for name in names:
            page = Filter(states=(State.READY,), queue=QUEUE, task=name, limit=PAGE)
            while True:
                began = self._clock.lease()
                rows = store.find(page)
                looked_s += self._clock.lease() - began
                if not rows:
                    break
                self._publish(rows)
                page = replace(page, before=rows[-1].id)
        self._look_at = self._clock.lease() + looked_s / LOOK_SHARE

    def _publish(self, rows: list[Job]) -> None:
        store = self._app.store
        now = store.now().wall
        for row in rows:
            by_delivery = MESSAGE in row.payload
            fresh = now - max(row.created_at, row.claimed_at or 0.0) < FRESH_S
            if row.run_at > now or (by_delivery and row.zombies == 0 and fresh):
                continue
            try:
                self._send(row, by_delivery)
            except (HoldfastError, BrokerAway):
                raise
            except Exception:  # of one message; the others are sent
                log.exception("task %s (%s) cannot be sent to Celery; it is tried again later", row.id, row.task)
            later = Verdict(move=Transition.RESCHEDULE, state=State.READY, run_at=now + self._guard.republish_s)
            store.move([Move(row.seen, later)])

    def _send(self, row: Job, by_delivery: bool) -> None:
        if by_delivery:
            retries = self._app.store.steps(row.id)
            found = _json.loads((retries[-1].arguments if retries else None) or row.payload)[MESSAGE]
        else:
            found = {"args": [], "kwargs": json.loads(row.payload), "options": {}}
        task = self._guard.celery.tasks[row.task]
        log.warning("task %s (%s) is sent to Celery, attempt %d", row.id, row.task, row.attempt + 1)
        task.apply_async(found["args"], found["kwargs"], task_id=row.id, **found["options"])


class _Step(bootsteps.StartStopStep):  # type: ignore[misc]
    """The keeper of a Celery worker: a process of its own.

    It has threads, and a pool that was forked beside threads may inherit a lock that nobody gives back.
    """

    requires = frozenset({"celery.worker.components:Timer"})
    guard: Guard

    def __init__(self, parent: Any, **given: Any) -> None:
        super().__init__(parent, **given)
        self._pid: int | None = None
        self.guard.parent = os.getpid()
        self.guard.install()

    def start(self, parent: Any) -> None:
        if self.guard.keeps:
            self._fork()
            parent.timer.call_repeatedly(RESTART_S, self._look)

    def stop(self, parent: Any) -> None:
        pid, self._pid = self._pid, None
        if pid is not None:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGTERM)
                os.waitpid(pid, 0)

    terminate = stop

    def _look(self) -> None:
        """Start the keeper again if it has died."""
        if self._pid is None:
            return
        try:
            ended = os.waitpid(self._pid, os.WNOHANG) != (0, 0)
        except ChildProcessError:
            ended = True
        if ended:
            log.error("the keeper of this Celery worker has died; another one is started")
            self._fork()

    def _fork(self) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            self._pid = pid
            return
        code = 1
        try:
            _keep(self.guard, parent)
            code = 0
        except BaseException:
            log.exception("the keeper of this Celery worker failed")
        finally:
            os._exit(code)


def _let_go_of_sockets() -> None:
    """Let go of the parent's connections. While a copy is open, the broker sends messages to a parent that was killed.

    The numbers stay taken, because objects of the parent may close them later.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in [int(each.name) for each in Path("/dev/fd").iterdir()]:
        with suppress(OSError):
            if number > 2 and stat.S_ISSOCK(os.fstat(number).st_mode):
                os.dup2(nothing, number)
    os.close(nothing)


def _keep(guard: Guard, parent: int) -> None:
    """Be the keeper until SIGTERM comes or the Celery worker has ended."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    for each in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
        signal.signal(each, signal.SIG_IGN)  # meant for the Celery worker, which ends this process
    _let_go_of_sockets()
    cast(Any, guard.celery)._after_fork()
    with guard.keeper():
        while os.getppid() == parent and not stop.wait(LOOK_S):
            pass


__all__ = ["Guard", "Keeper", "policy_of"]
