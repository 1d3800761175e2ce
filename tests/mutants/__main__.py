"""Break one guard at a time and demand that a test goes red; exit code 1 if a mutant lives.

    make mutants                                     every mutant; goes on where an earlier run stopped
    make mutants-sample                              30 at random, at most three minutes
    python -m tests.mutants settle judge             only those whose name contains one of the words
    python -m tests.mutants --sample 30 --seed 7     the sample that an earlier run printed as seed 7
    python -m tests.mutants --list

Results are kept in .mutants.jsonl. A mutant that died is not run again while its change and its tests are the same,
even if other files have changed; --again runs it all the same.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, as_completed, wait
from functools import partial

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.mutants.catalogue import all_mutants, harmless
from tests.mutants.in_place import batches
from tests.mutants.mutant import Mutant
from tests.mutants.run import Result, Results, postgres, run, run_in_place, unbroken


def main() -> int:
    given = arguments()
    known_harmless = harmless()
    chosen = [
        mutant
        for mutant in all_mutants()
        if mutant.name not in known_harmless and (not given.words or any(word in mutant.name for word in given.words))
    ]
    if given.list:
        print("\n".join(mutant.name for mutant in chosen))
        return 0
    if given.sample:
        print(f"{given.sample} of {len(chosen)} mutants, seed {given.seed}")
        chosen = random.Random(given.seed).sample(chosen, min(given.sample, len(chosen)))
    results = Results()
    earlier = {} if given.again else results.load()
    found = [earlier[each.name] for each in chosen if is_known(each, earlier)]
    left = [each for each in chosen if not is_known(each, earlier)]
    if found:
        print(f"{len(found)} known from an earlier run, {len(left)} left")
    if left:
        found += run_all(left, results, given)
    return summary(found, len(chosen), given)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", help="only mutants whose name contains one of these")
    parser.add_argument("--list", action="store_true", help="print the names and run nothing")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at once (default: the cores)")
    parser.add_argument("--sample", type=int, metavar="N", help="only N of them, chosen at random")
    parser.add_argument("--seed", type=int, help="which sample (default: a new one, printed)")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="stop after so many seconds")
    parser.add_argument("--again", action="store_true", help="run those with a known result as well")
    parser.add_argument("--known-green", action="store_true", help="do not run the tests unbroken first")
    given = parser.parse_args()
    given.seed = secrets.randbelow(10_000) if given.seed is None else given.seed
    return given


def is_known(mutant: Mutant, earlier: dict[str, Result]) -> bool:
    """Say whether a run has shown that it dies. One that lived is tried again."""
    result = earlier.get(mutant.name)
    return result is not None and result.digest == mutant.digest and not result.alive


def run_all(mutants: list[Mutant], results: Results, given: argparse.Namespace) -> list[Result]:
    """Run the tests unbroken, then over each mutant. Ctrl-C ends it; what was found stays."""
    deadline = time.monotonic() + given.limit_s
    found: list[Result] = []
    with postgres() as server, ThreadPoolExecutor(given.jobs) as pool, bar() as progress:
        start = partial(pool.submit, run, server=server, deadline=deadline)
        finished = partial(as_they_end, start, at_once=given.jobs, progress=progress, deadline=deadline)
        if not given.known_green:
            for result in finished(unbroken(mutants), what="unbroken"):
                if not result.alive:
                    raise SystemExit(f"{result.name}, and a test is red; mend it first")

        def note(result: Result) -> None:
            results.add(result)
            found.append(result)
            said = f"{'ALIVE' if result.alive else 'dead '} {result.took_s:6.1f} s  {result.name}"
            progress.console.print(said, markup=False, soft_wrap=True)

        for result in in_place_first(pool, mutants, progress=progress, deadline=deadline):
            note(result)
        died = {result.name for result in found}
        for result in finished([each for each in mutants if each.name not in died], what="mutants"):
            note(result)
    return found


def in_place_first(
    pool: ThreadPoolExecutor, mutants: list[Mutant], *, progress: Progress, deadline: float
) -> Iterator[Result]:
    """Yield the mutants of pure modules that die without a process of their own, as their batches end."""
    todo = list(batches([mutant for mutant in mutants if mutant.is_in_a_function]))
    bar = progress.add_task("in place", total=len(todo))
    for ended in as_completed([pool.submit(run_in_place, batch, deadline) for batch in todo]):
        progress.advance(bar)
        yield from ended.result()


def as_they_end(
    start: Callable[[Mutant], Future[Result | None]],
    mutants: list[Mutant],
    *,
    what: str,
    at_once: int,
    progress: Progress,
    deadline: float,
) -> Iterator[Result]:
    """Yield results as they come; no more are started than run at once, so that Ctrl-C and the limit work."""
    todo = list(mutants)
    bar = progress.add_task(what, total=len(todo))
    running: set[Future[Result | None]] = set()
    while todo or running:
        while todo and len(running) < at_once and time.monotonic() < deadline:
            running.add(start(todo.pop(0)))
        if not running:
            return
        done, running = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            progress.advance(bar)
            if (result := future.result()) is not None:
                yield result


def bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        disable=not sys.stdout.isatty(),
    )


def summary(found: list[Result], chosen: int, given: argparse.Namespace) -> int:
    alive = [result for result in found if result.alive]
    print(f"{len(found) - len(alive)} dead, {len(alive)} alive, {chosen - len(found)} not run")
    for result in alive:
        print(f"  alive: {result.name}" + (f"   (seed {given.seed})" if given.sample else ""))
    return 1 if alive else 0


if __name__ == "__main__":
    raise SystemExit(main())
