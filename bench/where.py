"""Where the time of a drain goes:   .venv/bin/python bench/where.py

First the raw loop, statement by statement. Then a real worker, watched from outside by py-spy, which needs the right to
look into one's own processes: what each thread does over the wall clock, and who has the lock of the interpreter.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

import peers
from ground import FULL, Ground, fill, worker
from noise import cpu_seconds, family
from stores import BATCH, CLOCK, STORES, SqliteBed
from tasks import make_app
from watch import watch

from holdfast.ids import new_id
from holdfast.stores import row_json
from holdfast.stores.sqlite.statements import Q

RATE = 250
SECONDS = 6

# The innermost frame that matches says what a sample is: file, function, and what to call it.
FRAMES = [
    (r"begin \(.*connection\.py", "waits for the write lock"),
    (r"(commit|take|drop|forget) \(.*(connection|checkpoint)\.py", "commit: WAL write, fsync, checkpoint"),
    (r"(jobs_from|rows_from|names_from) \(.*row_json\.py", "decode rows"),
    (r"(success_row|settlement_row|is_plain_success|encode|apply:json) \(.*row_json\.py", "encode outcomes"),
    (r"apply \(.*statements\.py", "settle SQL"),
    (r"(write_tallies|write_events) \(.*statements\.py", "settle SQL"),
    (r"settle \(.*statements\.py", "settle: answers and tallies"),
    (r"take \(.*statements\.py", "claim SQL"),
    (r"claim \(.*sqlite/store\.py", "claim SQL: answers as JSON"),
    (r"(_lanes|due|_one) \(.*sqlite/store\.py", "other SQL"),
    (r"(judge|_verdict|settlement|after|_judge) \(.*(verdict|machine|settler)\.py", "judge"),
    (r"(_arguments|decode|_success|encode_result|encode_value|decode_value|bind) \(", "decode payload, encode result"),
    (
        r"(__init__|start|enter_loop|leave_loop|key|must_stop|trust) \(.*(attempt|lease)\.py",
        "attempt: lock, window",
    ),
    (r"(keep|forget|all) \(.*heartbeat\.py", "heartbeat's book"),
    (r"_ended \(.*runner\.py|_start_next \(.*runner\.py|put \(.*settler\.py", "hand over: slots and buffer"),
    (r"_run \(.*executors\.py|_spawn \(.*executors\.py|_loop \(.*executors\.py", "run the handler"),
    (r"(_run_once|run_forever|_run|call_soon|create_task|select) \(.*(asyncio|selectors)", "event loop"),
    (r"_settle \(.*settler\.py", "settler's book"),
    (r"_claim \(.*runner\.py|_room_now|_claim_until_stopped", "claim loop"),
]
WAITS = re.compile(
    r"(wait|acquire|get|select|pause|sleep) \(.*(threading|clock|selectors|queue)\.py|_serve \(.*settler"
)


def statements(ground: Ground) -> None:
    """Time each statement of the raw loop by itself."""
    with ground.fresh() as bed, make_app(bed.url) as app:
        assert isinstance(bed, SqliteBed)
        fill(app, "async_noop", ground.scale.jobs)
        spent: Counter[str] = Counter()
        began = time.perf_counter()
        jobs = _timed_loop(bed, spent)
        whole = time.perf_counter() - began
    print(f"\nThe raw loop, {jobs:,} jobs in batches of {BATCH}: {1e6 * whole / jobs:.1f} µs a job\n")
    print("| step | µs a job | share |\n|---|---|---|")
    spent["Python between the statements"] = whole - sum(spent.values())  # type: ignore[assignment]
    for name, seconds in spent.most_common():
        print(f"| {name} | {1e6 * seconds / jobs:.1f} | {seconds / whole:.0%} |")


def _timed_loop(bed: SqliteBed, spent: Counter[str]) -> int:
    def run(name: str, statement: str, values: dict[str, object] | None = None) -> str | None:
        began = time.perf_counter()
        row = bed._db.execute(statement, values or {}).fetchone()
        spent[name] += time.perf_counter() - began  # type: ignore[assignment]
        return row[0] if row else None

    jobs, known = 0, row_json.encode(["tasks.async_noop"]).decode()
    while True:
        token = {"worker": "raw", "claim_id": new_id()}
        lane = {"queue": "default", "priority": 0, "tasks": known, "started": 1, "limit": BATCH}
        run("begin", "BEGIN IMMEDIATE")
        run("claim: UPDATE", Q["claim"], {**token, **lane, "wall": CLOCK.wall(), "lease": CLOCK.lease()})
        text = run("claim: SELECT of the rows as JSON", Q["claim_answers"], token)
        run("commit after the claim", "COMMIT")
        rows = row_json.rows_from(text or "[]")
        if not rows:
            return jobs
        endings = row_json.encode([[row[0], row[10], row[11], "null"] for row in rows]).decode()
        run("begin", "BEGIN IMMEDIATE")
        run("settle: UPDATE", Q["settle_done"], {"endings": endings, "wall": CLOCK.wall()})
        run("settle: tally", Q["settle_tally"], {"tallies": f'[["default","done",{len(rows)}]]'})
        run("commit after the settle", "COMMIT")
        jobs += len(rows)


def threads(ground: Ground, task: str) -> None:
    """Watch a worker in the middle of a drain."""
    with ground.fresh() as bed:
        with make_app(bed.url) as app:
            fill(app, task, 400_000)
        with worker(bed, ready=True) as process:
            child = family(process.pid)[-1]
            watch(bed.done, 2_000)
            for title, options in (("over the wall clock", ["--idle"]), ("holding the interpreter's lock", ["--gil"])):
                before, cpu, began = bed.done(), cpu_seconds(process.pid), time.perf_counter()
                samples = _sample(child, ground.folder, options)
                length = time.perf_counter() - began
                rate, used = (bed.done() - before) / length, (cpu_seconds(process.pid) - cpu) / length
                print(f"\n{task}, {title}: {rate:,.0f} jobs/s while watched, {used:.2f} cores used")
                _show(samples, by_thread="--idle" in options, wall=SECONDS * RATE)


def _sample(pid: int, folder: Path, options: list[str]) -> list[tuple[str, list[str], int]]:
    """Return (thread, frames from the outermost, samples)."""
    out = folder / "stacks.txt"
    command = [peers.VENV / "bin/py-spy", "record", "-p", str(pid), "-d", str(SECONDS), "-r", str(RATE), "-f", "raw"]
    said = subprocess.run([*command, "-t", "--nonblocking", "-o", out, *options], capture_output=True, text=True)
    if said.returncode != 0:
        sys.exit(f"py-spy could not look: {said.stderr.strip()[-300:]}")
    found = []
    for line in out.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        name = re.search(r'"(.*)"|(MainThread)|: (.*)$', frames[0])
        found.append((name[0].strip(': "') if name else frames[0], frames[1:], int(count)))
    return found


def _what(frames: list[str]) -> str:
    if frames and WAITS.search(frames[-1]) and not any("connection.py" in frame for frame in frames[-3:]):
        return "waits"
    for frame in reversed(frames):
        for pattern, name in FRAMES:
            if re.search(pattern, frame):
                return name
    return f"else: {frames[-1]}" if frames else "else"


def _show(samples: list[tuple[str, list[str], int]], *, by_thread: bool, wall: int) -> None:
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for thread, frames, count in samples:
        group = re.sub(r"-\d+$", "-*", thread) if by_thread else "all threads"
        found[group][_what(frames)] += count
    for group, counts in sorted(found.items(), key=lambda each: -each[1].total()):
        base = counts.total() if by_thread else wall
        if counts.total() - counts["waits"] < 0.02 * base:
            continue
        print(f"\n{group}: {counts.total() / wall:.0%} of the samples")
        for name, count in counts.most_common(14):
            if count >= 0.01 * base:
                print(f"  {count / base:5.0%}  {name}")


def main() -> None:
    if trouble := peers.prepare():
        sys.exit(f"py-spy is not there: {trouble}")
    scratch = peers.VENV / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        ground = Ground(STORES["sqlite"], FULL, Path(folder))
        statements(ground)
        threads(ground, "async_noop")
        threads(ground, "sync_noop")


if __name__ == "__main__":
    main()
