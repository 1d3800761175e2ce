"""Acts of people on jobs, one or very many: read a page, decide in the core, write the page in one statement.

A job that cannot be acted on stops none of the others. Every act is compared with what was read, so an act that was
interrupted can be repeated: what is done already is refused, and nothing is done twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from holdfast.clock import pause
from holdfast.core.acts import Move
from holdfast.core.audit import line
from holdfast.core.records import Filter, Job, Seen
from holdfast.core.text import check_storable
from holdfast.core.verdict import Verdict
from holdfast.errors import HoldfastError, KeyTaken, NotFound, Refused, StoreLocked, StoreTimeout
from holdfast.stores.protocol import Reply, Store, rows_of

PAGE = 1_000  # jobs in one transaction
READ = 200  # jobs in one query: a row may be a few megabytes
LOCK_WAIT_S = 1.0  # for rows that other transactions have locked, after everything else is done
LOCK_LOOK_S = 0.05

Named = str | Seen  # a job by its id, or as it was when a person saw it
T = TypeVar("T", Move, Seen)
N = TypeVar("N", str, Named)
WritePage = Callable[[Sequence[T]], list[Reply]]
Page = list[tuple[str, T | HoldfastError]]  # what is to be done to each job, or why nothing is


class Acted(NamedTuple):
    """The result of an act on one job. Without an error it was carried out."""

    job_id: str
    error: HoldfastError | None = None


def move_all(store: Store, jobs: Sequence[Named], decide: Callable[[Job], Verdict]) -> Iterator[list[Acted]]:
    """Act on these jobs and yield what became of each, page by page; those whose rows are locked come last.

    A job that is given as it was seen (`Seen`) is refused if its state or fence is another by now: a person decided
    about what was listed. `decide` raises `Refused` where there is no such act on a job. No id may come twice.
    """

    def move(job: Job) -> Move:
        return Move(job.seen, checked(decide(job)))

    return _act(store, jobs, move, store.move)


def delete_all(
    store: Store, jobs: Sequence[Named], decide: Callable[[Job], Seen], actor: str, note: str | None
) -> Iterator[list[Acted]]:
    """Delete these jobs, with a line of the journal for each page; the rest is as in `move_all`."""
    check_storable(by=actor, note=note)
    return _act(store, jobs, decide, partial(store.delete, act=line("deleted", actor, note)))


def move_one(store: Store, job: Job, verdict: Verdict) -> None:
    """Act on one job that was read. Raises `Refused` if it is another by now, `KeyTaken`, or `StoreLocked`."""
    page: Page[Move] = [(job.id, Move(job.seen, checked(verdict)))]
    for done in _written(store, [page], store.move):
        for acted in done:
            if acted.error is not None:
                raise acted.error


def checked(verdict: Verdict) -> Verdict:
    """Return the verdict if what a person has written can be stored."""
    for each in verdict.events:
        check_storable(by=each.actor, note=each.detail.get("reason") or each.detail.get("note"))
    return verdict


def _act(store: Store, jobs: Sequence[Named], decide: Callable[[Job], T], write: WritePage[T]) -> Iterator[list[Acted]]:
    return _written(store, (_decided(store, page, decide) for page in _pieces(jobs, PAGE)), write)


def _pieces(jobs: Sequence[N], most: int) -> Iterator[Sequence[N]]:
    return (jobs[start : start + most] for start in range(0, len(jobs), most))


def _decided(store: Store, jobs: Sequence[Named], decide_each: Callable[[Job], T]) -> Page[T]:
    listed = {each.job_id: each for each in jobs if isinstance(each, Seen)}
    ids = [each.job_id if isinstance(each, Seen) else each for each in jobs]

    def decide(job: Job) -> T:
        seen = listed.get(job.id, job.seen)
        if seen != job.seen:
            raise _moved_on(seen, job.seen)
        return decide_each(job)

    found = {job_id: each for piece in _pieces(ids, READ) for job_id, each in _read(store, piece, decide)}
    return [(job_id, found.get(job_id) or NotFound(f"there is no job {job_id!r}")) for job_id in ids]


def _read(store: Store, ids: Sequence[str], decide: Callable[[Job], T]) -> Page[T]:
    """Decide about the jobs that are there. If to read them takes too long, in halves: one job does not stop others."""
    try:
        return [(job.id, _decide(job, decide)) for job in store.find(Filter(ids=tuple(ids), limit=len(ids)))]
    except StoreTimeout as error:
        if len(ids) == 1:
            return [(ids[0], error)]
        middle = len(ids) // 2
        return _read(store, ids[:middle], decide) + _read(store, ids[middle:], decide)


def _decide(job: Job, decide: Callable[[Job], T]) -> T | HoldfastError:
    try:
        return decide(job)
    except (NotFound, Refused) as error:
        return error


def _written(store: Store, pages: Iterable[Page[T]], write: WritePage[T]) -> Iterator[list[Acted]]:
    locked: Page[T] = []
    for page in pages:
        done, busy = _write(store, page, write)
        locked += busy
        yield done
    waited_s = 0.0
    while locked and waited_s < LOCK_WAIT_S:
        pause(LOCK_LOOK_S)
        waited_s += LOCK_LOOK_S
        again, locked = locked, []
        for start in range(0, len(again), PAGE):
            done, busy = _write(store, again[start : start + PAGE], write)
            locked += busy
            yield done
    if locked:
        yield [Acted(job_id, _locked(job_id)) for job_id, _ in locked]


def _write(store: Store, page: Page[T], write: WritePage[T]) -> tuple[list[Acted], Page[T]]:
    """Write a page; return what became of each job, and apart from these the acts on rows that others have locked."""
    wanted = {job_id: each for job_id, each in page if not isinstance(each, HoldfastError)}
    answers = dict(zip(wanted, _answers(list(wanted.values()), write), strict=True))
    refused = [job_id for job_id, answer in answers.items() if answer is Reply.REFUSED]
    now = {job.id: job.seen for job in rows_of(store, refused, READ)}
    done: list[Acted] = []
    busy: Page[T] = []
    for job_id, each in page:
        if isinstance(each, HoldfastError):
            done.append(Acted(job_id, each))
        elif (answer := answers[job_id]) is Reply.LOCKED:
            busy.append((job_id, each))
        elif isinstance(answer, HoldfastError):
            done.append(Acted(job_id, answer))
        elif answer is Reply.TAKEN:
            done.append(Acted(job_id, KeyTaken(f"job {job_id}: its key belongs to another live job")))
        elif answer is Reply.REFUSED:
            seen = each.seen if isinstance(each, Move) else each
            done.append(Acted(job_id, _moved_on(seen, now.get(job_id))))
        else:
            done.append(Acted(job_id))
    return done, busy


def _answers(wanted: Sequence[T], write: WritePage[T]) -> list[Reply | HoldfastError]:
    """Write these acts; if one of them makes the store refuse them all, or take too long, in halves."""
    if not wanted:
        return []
    try:
        return [*write(wanted)]
    except (Refused, StoreTimeout) as error:
        if len(wanted) == 1:
            return [error]
        middle = len(wanted) // 2
        return _answers(wanted[:middle], write) + _answers(wanted[middle:], write)


def _moved_on(seen: Seen, now: Seen | None) -> HoldfastError:
    if now is None:
        return NotFound(f"there is no job {seen.job_id!r}")
    return Refused(
        f"job {seen.job_id} was {seen.state.value} (fence {seen.fence}) and is {now.state.value} (fence {now.fence}) "
        "by now; nothing was changed"
    )


def _locked(job_id: str) -> StoreLocked:
    return StoreLocked(
        f"job {job_id}: another transaction holds a lock on its row, its key or its workflow; nothing was changed, "
        "try again later"
    )
