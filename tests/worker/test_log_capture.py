"""The last lines that a job has logged: whose they are, what is kept of them, and where they go."""

import asyncio
import logging
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, Context, Retry
from holdfast.core.autopsy import lines_of
from holdfast.core.records import Pulse
from holdfast.runtime.log_fields import current_attempt
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from holdfast.worker import log_capture
from holdfast.worker.attempt import Attempt
from holdfast.worker.heartbeat import TALKERS_MAX
from holdfast.worker.isolated import protocol
from holdfast.worker.log_capture import LINE_MAX, LINES_MAX, LOG_MAX, LogCapture, listening
from tests.factory import a_job
from tests.worker import bad
from tests.worker.house import House, on_every_store, until
from tests.worker.test_heartbeat import Desk

ONCE = Retry(attempts_max=1)
LOGGER = logging.getLogger("tests.lines")


class Unreadable:
    """Its text cannot be made."""

    def __str__(self) -> str:
        raise ZeroDivisionError("no text")


def record(message: str, *arguments: Any, level: int = logging.INFO, name: str = "shop") -> logging.LogRecord:
    return logging.LogRecord(name, level, "x.py", 1, message, arguments, None)


def said(found: list[str]) -> list[str]:
    """The lines without their times."""
    return [re.sub(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ", "", line) for line in found]


@pytest.fixture(autouse=True)
def _level() -> Iterator[None]:
    LOGGER.setLevel(logging.INFO)
    yield
    LOGGER.setLevel(logging.NOTSET)


# ------------------------------------------------------------------------------------- what is kept of them


def test_a_line_has_time_level_logger_and_message() -> None:
    kept = LogCapture()
    heard = record("paid %d of %s", 3, "5", level=logging.WARNING, name="shop.till")
    heard.created = 1_700_000_000.25
    kept.hear(heard)
    assert kept.all() == ["2023-11-14T22:13:20.250Z WARNING shop.till: paid 3 of 5"]


def test_only_the_last_are_kept() -> None:
    kept = LogCapture()
    for number in range(LINES_MAX + 5):
        kept.hear(record("line %d", number))
    assert said(kept.all()) == [f"INFO shop: line {number}" for number in range(5, LINES_MAX + 5)]


def test_a_line_keeps_its_beginning() -> None:
    kept = LogCapture()
    kept.hear(record("begin" + "x" * 5000))
    [line] = kept.all()
    assert len(line) == LINE_MAX
    assert said([line])[0].startswith("INFO shop: beginx")


@pytest.mark.parametrize("letter", ["x", "é", "🐈"])
def test_all_of_them_are_bounded_and_the_newest_stay(letter: str) -> None:
    kept = LogCapture()
    for number in range(LINES_MAX):
        kept.hear(record(f"{number} {letter * 5000}"))
    found = kept.all()
    assert LOG_MAX / 2 < len("\n".join(found).encode()) <= LOG_MAX
    assert said(found)[-1].startswith(f"INFO shop: {LINES_MAX - 1} ")


def test_one_record_is_one_line_that_every_store_can_hold() -> None:
    kept = LogCapture()
    kept.hear(record("a\nb\r\nc\u2028d\0e\ud800"))
    [line] = said(kept.all())
    assert line == "INFO shop: a⏎b⏎c⏎d␀e?"


def test_secrets_are_hidden_wherever_the_line_is_cut() -> None:
    kept = LogCapture()
    kept.hear(record("to postgresql://ann:hunter2@db/shop with token=abc123 and password: 'p q'"))
    kept.hear(record("x" * 240 + " password=hunter2hunter2"))
    kept.hear(record("x" * 240 + " see redis://ann:hunter2hunter2hunter2hunter2@db"))
    text = "\n".join(kept.all())
    assert "hunter2" not in text
    assert "abc123" not in text
    assert "p q" not in text
    assert "postgresql://ann:***@db/shop" in text


def test_an_exception_is_said_in_a_few_words() -> None:
    kept = LogCapture()
    try:
        raise ValueError("too few")
    except ValueError as error:
        heard = record("it failed")
        heard.exc_info = (type(error), error, error.__traceback__)
    kept.hear(heard)
    heard = record("it failed there")
    heard.exc_text = "Traceback (most recent call last):\n  File x\nKeyError: 'k'\n"  # as it comes from a cell
    kept.hear(heard)
    assert said(kept.all()) == ["INFO shop: it failed⏎ValueError: too few", "INFO shop: it failed there⏎KeyError: 'k'"]


@pytest.mark.parametrize(
    "heard",
    [record("%s", Unreadable()), record("%d", "no number"), record(Unreadable()), record("%s and %s", 1)],  # type: ignore[arg-type]
    ids=["an argument", "a wrong format", "the message", "an argument is missing"],
)
def test_a_record_that_cannot_be_written_is_kept_as_a_note(heard: logging.LogRecord) -> None:
    kept = LogCapture()
    kept.hear(heard)
    [line] = kept.all()
    assert re.fullmatch(r"\(a record that cannot be written: \w+Error\)", line)


# ------------------------------------------------------------------------------------------ whose they are


def attempt_of(**given: Any) -> Attempt:
    task: Any = None
    return Attempt(a_job(**given), task, 100.0)


def test_lines_belong_to_the_code_of_the_attempt_and_its_tasks_and_threads() -> None:
    ann, bob = attempt_of(), attempt_of()

    async def inner() -> None:
        LOGGER.info("inner")

    async def run(attempt: Attempt, name: str) -> None:
        current_attempt.set(attempt)
        LOGGER.info("%s begins", name)
        await asyncio.sleep(0)
        await asyncio.create_task(inner())
        await asyncio.to_thread(LOGGER.info, "%s in a thread", name)
        current_attempt.set(None)
        LOGGER.info("%s has ended", name)

    async def both() -> None:
        await asyncio.gather(run(ann, "ann"), run(bob, "bob"))

    with listening(LOGGER):
        LOGGER.info("before")
        asyncio.run(both())
        LOGGER.info("after")
    for attempt, name in ((ann, "ann"), (bob, "bob")):
        assert attempt.activity.lines is not None
        found = [line.removeprefix("INFO tests.lines: ") for line in said(attempt.activity.lines.all())]
        assert found == [f"{name} begins", "inner", f"{name} in a thread"]


def test_levels_are_honoured_and_nothing_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    attempt = attempt_of()
    LOGGER.setLevel(logging.WARNING)
    quiet = logging.getLogger("tests.lines.quiet")
    with listening(LOGGER):
        current_attempt.set(attempt)
        LOGGER.info("too low")
        quiet.info("its parent says so")
        LOGGER.warning("high enough")
        current_attempt.set(None)
    assert attempt.activity.lines is not None
    assert said(attempt.activity.lines.all()) == ["WARNING tests.lines: high enough"]
    assert capsys.readouterr() == ("", "")


def test_a_logger_that_keeps_to_itself_is_heard_if_it_is_the_apps() -> None:
    own = logging.Logger("own")  # not in the tree of the others
    child = logging.getLogger("tests.lines.apart")
    child.propagate = False
    try:
        for logger in (own, child):
            attempt = attempt_of()
            with listening(logger):
                current_attempt.set(attempt)
                logger.warning("heard")
                current_attempt.set(None)
                assert log_capture._listener in logger.handlers
            assert attempt.activity.lines is not None
            assert len(attempt.activity.lines.all()) == 1
            assert logger.handlers == []
    finally:
        child.propagate = True


def test_two_workers_in_one_process_hear_once_and_leave_nothing_behind() -> None:
    root, attempt = logging.getLogger(), attempt_of()
    before = list(root.handlers)
    with listening(LOGGER):
        with listening(LOGGER):
            assert len(root.handlers) == len(before) + 1
        current_attempt.set(attempt)
        LOGGER.info("once")
        current_attempt.set(None)
        LOGGER.info("nobody's")
    assert root.handlers == before
    assert attempt.activity.lines is not None
    assert said(attempt.activity.lines.all()) == ["INFO tests.lines: once"]


def test_what_a_worker_logs_after_a_handler_is_not_the_jobs(house: House) -> None:
    """On the same thread, while it reports the outcome."""
    attempts: list[Attempt] = []

    def work() -> None:
        [attempt] = runner._heartbeat.all()
        attempts.append(attempt)
        logging.getLogger("tests.lines").warning("from the job")

    def ended(attempt: Attempt, outcome: Any) -> None:
        logging.getLogger("tests.lines").warning("from the worker")
        report(attempt, outcome)

    task = house.app.task(name="work")(work)
    runner = house.start()
    report = runner._slots.threads._report
    runner._slots.threads._report = ended
    task.enqueue().result(10)
    assert attempts[0].activity.lines is not None
    assert said(attempts[0].activity.lines.all()) == ["WARNING tests.lines: from the job"]


def test_a_record_from_a_cell_is_its_attempts_own_or_nobodys() -> None:
    """A thread that an earlier attempt has left in the cell may still talk."""
    attempt = attempt_of()
    for key in (attempt.key, None, ("another", attempt.key[1]), (attempt.key[0], attempt.key[1] + 1)):
        word = protocol.Logged(
            {"name": "tests.lines", "levelno": logging.INFO, "levelname": "INFO", "msg": f"{key}"}, key
        )
        log_capture.pass_on(word, attempt)
        log_capture.pass_on(word, None)
    assert attempt.activity.lines is not None
    assert said(attempt.activity.lines.all()) == [f"INFO tests.lines: {attempt.key}"]


def test_an_isolated_process_sends_records_that_the_workers_levels_then_drop() -> None:
    attempt = attempt_of()
    fields = {"name": "tests.lines", "levelno": logging.DEBUG, "levelname": "DEBUG", "msg": "too low"}
    log_capture.pass_on(protocol.Logged(fields, attempt.key), attempt)
    assert attempt.activity.lines is None


@pytest.mark.parametrize("odd", [{"name": 5}, {"levelno": None}, {"levelno": "high"}])
def test_a_record_that_a_handler_made_badly_stops_nothing(
    odd: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """What its process says next, perhaps that the attempt has ended, is heard all the same."""
    fields = {"name": "tests.lines", "levelno": logging.INFO, "levelname": "INFO", "msg": "odd"}
    log_capture.pass_on(protocol.Logged(fields | odd, None), None)
    assert "a record that an isolated job logged cannot be shown: TypeError" in caplog.text


def test_where_nobody_set_up_logging_warnings_are_still_shown(capfd: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, root.handlers = root.handlers, []
    try:
        with listening(LOGGER):
            LOGGER.info("not this")
            LOGGER.warning("but this")
            LOGGER.addHandler(other := logging.NullHandler())
            LOGGER.warning("somebody has it")
            LOGGER.removeHandler(other)
    finally:
        root.handlers = before
    assert capfd.readouterr().err == "but this\n"


# ------------------------------------------------------------------------------------------- with the beat


def test_new_lines_go_with_a_beat_once(desk: Desk) -> None:
    attempt = desk.keep(lease_s=30.0)
    attempt.activity.hear(record("one"))
    desk.clock.advance(10.1)
    [[pulse]] = desk.beat()
    assert said(lines_of(pulse.log) or []) == ["INFO shop: one"]
    assert desk.row(attempt).log == pulse.log
    desk.clock.advance(10.1)
    assert desk.beat() == [[Pulse(attempt.lease)]]
    assert desk.row(attempt).log == pulse.log
    attempt.activity.hear(record("two"))
    desk.clock.advance(10.1)
    [[pulse]] = desk.beat()
    assert said(lines_of(pulse.log) or []) == ["INFO shop: one", "INFO shop: two"]


def test_a_job_that_is_no_longer_short_tells_its_lines_once_a_second(desk: Desk) -> None:
    desk.beat()
    desk.clock.advance(0.5)
    attempt = desk.keep(lease_s=600.0)
    attempt.activity.hear(record("early"))
    desk.clock.advance(0.9)
    assert desk.beat() == [], "a short job costs no beat"
    desk.clock.advance(1.1)
    assert len(desk.beat()) == 1
    for _ in range(9):  # however much it logs
        attempt.activity.hear(record("more"))
        desk.clock.advance(0.1)
        assert desk.beat() == []
    desk.clock.advance(0.2)
    assert len(desk.beat()) == 1
    desk.clock.advance(2.0)
    assert desk.beat() == [], "a job that is silent costs no beat"


def test_a_beat_stays_short_and_everybody_gets_a_turn(desk: Desk) -> None:
    desk.beat()
    attempts = [desk.keep(lease_s=600.0) for _ in range(TALKERS_MAX + 7)]
    told: list[str] = []
    for _ in range(2):
        for attempt in attempts:
            attempt.activity.hear(record("talks on and on"))
        desk.clock.advance(1.1)
        [pulses] = desk.beat()
        assert len(pulses) == TALKERS_MAX
        assert all(pulse.log for pulse in pulses)
        told += [pulse.lease.job_id for pulse in pulses]
    assert set(told) == {attempt.job.id for attempt in attempts}


def test_lines_are_taken_once_but_all_is_read_again_and_again() -> None:
    kept = LogCapture()
    kept.hear(record("one"))
    assert kept.take() == "\n".join(kept.all())
    assert kept.take() is None
    assert kept.all() == kept.all() != []


@pytest.mark.parametrize("trouble", ["failed", "skipped"])
def test_lines_that_may_not_have_arrived_are_sent_again(desk: Desk, trouble: str) -> None:
    attempt = desk.keep(lease_s=30.0)
    attempt.activity.hear(record("one"))
    desk.clock.advance(10.1)
    if trouble == "failed":
        with desk.store.down("beat"), pytest.raises(Exception, match="took it away"):
            desk.beat()
    else:
        attempt.pulse(desk.clock.lease(), talks=True)
        attempt.unheard()
    desk.clock.advance(1.1)
    [[pulse]] = desk.beat()
    assert said(lines_of(pulse.log) or []) == ["INFO shop: one"]


@pytest.fixture
def desk(store: Store, clock: FakeClock) -> Desk:
    return Desk(store, clock)


# ------------------------------------------------------------------------------------------- with the end


def tell_and_fail(ctx: Context) -> None:
    LOGGER.info("about to fail")
    ctx.log.warning("with %s", "token=abc123")
    LOGGER.warning("%s", Unreadable())
    raise ValueError("as told")


async def tell_and_fail_async(ctx: Context) -> None:
    await asyncio.to_thread(LOGGER.info, "about to fail")
    ctx.log.warning("with %s", "token=abc123")
    LOGGER.warning("%s", Unreadable())
    raise ValueError("as told")


@on_every_store
@pytest.mark.parametrize("isolate", [False, True], ids=["in process", "isolated"])
@pytest.mark.parametrize("handler", [tell_and_fail, tell_and_fail_async], ids=["sync", "async"])
def test_a_failure_has_the_last_lines(
    house: House, handler: Callable[..., Any], isolate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.getLogger()
    for each in root.handlers:  # those of pytest do not take it calmly that a record cannot be written
        monkeypatch.setattr(each, "handleError", lambda _: None)
    root.setLevel(logging.INFO)
    try:
        task = house.app.task(name="t", isolate=isolate, retry=Retry(attempts_max=2, base_s=0))(handler)
        house.start()
        job = task.enqueue()
        house.until_state(job.id, "dead")
    finally:
        root.setLevel(logging.WARNING)
    events = house.events(job.id, "failed")
    assert len(events) == 2
    for event in events:  # each attempt has its own
        told = [line.partition(": ")[2] or line for line in said(event.detail["log"])]
        assert told[:2] == ["about to fail", "with token=***"]
        assert "cannot be written: ZeroDivisionError)" in event.detail["log"][2]
        assert len(told) == 3
    assert house.row(job.id).log is None


@on_every_store
def test_a_success_writes_nothing(house: House) -> None:
    @house.app.task(name="t")
    def task(ctx: Context) -> None:
        ctx.log.warning("fine")

    house.start()
    job = task.enqueue()
    assert house.until_state(job.id, "done").log is None
    [event] = house.events(job.id, "succeeded")
    assert event.detail == {}
    assert all(pulse.log is None for given in house.store.arguments_of("beat") for pulse in given[1])


@pytest.mark.parametrize("isolate", [False, True], ids=["in process", "isolated"])
def test_a_time_limit_has_the_last_lines(house: House, isolate: bool) -> None:
    task = house.app.task(name="t", timeout_s=2, retry=ONCE, isolate=isolate)(bad.tell_and_spin)
    house.start()
    job = task.enqueue()
    house.until_state(job.id, "dead")
    [event] = house.events(job.id, "timed_out")
    assert said(event.detail["log"]) == ["WARNING holdfast.job: going round"]


def test_an_isolated_job_that_dies_has_all_that_it_said(shared_house: House) -> None:
    task = shared_house.app.task(name="t", isolate=True, crashes_max=1)(bad.tell_and_kill_itself)
    shared_house.start()
    job = task.enqueue()
    shared_house.until_state(job.id, "dead")
    [event] = shared_house.events(job.id, "zombie")
    assert said(event.detail["log"]) == ["WARNING holdfast.job: last words"]
    known = {"detector", "cause", "worker", "host", "pid", "last_beat", "lease_until", "seconds_since_beat"}
    known |= {"seconds_overdue", "claimed_at", "attempt", "started", "rss_mb", "signal", "isolated", "decision"}
    assert set(event.detail) == known | {"fence_before", "fence_after", "log"}


def test_the_lines_of_a_running_job_are_on_its_row(house: House) -> None:
    go = threading.Event()

    @house.app.task(name="t")
    def task(ctx: Context) -> None:
        ctx.log.warning("on its way")
        go.wait(60)

    house.start()
    job = task.enqueue()
    try:
        found = until(lambda: house.row(job.id).log, "a beat carries the line")
    finally:
        go.set()
    assert said(lines_of(found) or []) == ["WARNING holdfast.job: on its way"]
    assert house.until_state(job.id, "done").log is None


def test_the_app_may_have_a_logger_of_its_own(tmp_path: Path) -> None:
    own = logging.getLogger("tests.lines.app")
    own.propagate = False
    house = House(App(f"sqlite:///{tmp_path}/jobs.db", logger=own))
    try:
        task = house.app.task(name="t", retry=ONCE)(bad.tell_and_raise)
        house.start()
        job = task.enqueue()
        house.until_state(job.id, "dead")
        [event] = house.events(job.id, "failed")
        assert said(event.detail["log"]) == ["WARNING tests.lines.app.job: about to raise"]
    finally:
        house.close()
        own.propagate = True
    assert own.handlers == []
