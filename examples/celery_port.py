"""An application that was written for Celery, on Holdfast. docs/from-celery.md has the lines that it had before.

python examples/celery_port.py
"""

import os
import tempfile
import time

from holdfast import App, Context, Flow, GiveUp, JobCancelled, JobDead, Retry, RetryLater

app = App(keep={"done": "1d"})  # the store is what $HOLDFAST_DB says: broker and result backend in one

app.queue("api", rate="20/1s", burst=2)  # rate_limit, for the whole fleet
outages = [ConnectionError("the service is away"), ConnectionError("the service is away")]
mails: list[str] = []


# --- Retry by exception: autoretry_for, retry_backoff, max_retries; self.retry(countdown=…)


@app.task(queue="api", retry=Retry(attempts_max=5, base_s=0.1, cap_s=60, on=(ConnectionError, TimeoutError)))
def fetch(url: str) -> str:
    if url == "https://flaky.example" and outages:
        raise outages.pop()
    if url == "https://gone.example":
        raise GiveUp("410 Gone")  # Reject(requeue=False)
    return f"content of {url}"


@app.task(retry=Retry(attempts_max=3))
def poll_export(ctx: Context, export: str) -> str:
    if ctx.job.failures == 0:
        raise RetryLater(0.1)  # self.retry(countdown=0.1)
    return f"{export} is ready"


# --- on_failure and link_error, link


@app.task
def tell_support(job_id: str, error_kind: str | None, error: str | None) -> None:
    mails.append(f"{error_kind}: {error}")


@app.task(retry=Retry(attempts_max=1), on_dead=tell_support)
def charge(order: int) -> str:
    if order == 13:
        raise ValueError("no such order")
    return f"order {order} is paid"


# --- Expiry: expires=…


@app.task(queue="codes", expires_s=600)  # cancelled, and never run, unless a worker claims it in time
def send_code(code: str) -> str:
    return f"sent {code}"


# --- Canvas: chain, group, chord


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task
def mul(x: int, y: int) -> int:
    return x * y


@app.workflow
def add_then_mul(flow: Flow, x: int) -> int:  # chain(add.s(x, 4), mul.s(8))
    total = flow.result(flow.start(add, x, 4))
    return flow.result(flow.start(mul, total, 8))


@app.workflow
def sum_of_doubles(flow: Flow, numbers: list[int]) -> int:  # chord((add.s(n, n) for n in numbers), total.s())
    jobs = [flow.start(add, number, number) for number in numbers]
    return sum(flow.result(job) for job in jobs)


@app.task
def all_fetched(counts: dict[str, int]) -> str:  # the body of a large chord: it gets numbers, not results
    return f"{counts['done']} pages, {counts['dead']} failed"


# --- Routes: task_routes, and apply_async(queue=…)


@app.task(queue="reports")
def report(day: str) -> str:
    return f"report of {day}"


# --- Revoke, also of what runs: app.control.revoke(id, terminate=True)


@app.task
def crunch(ctx: Context) -> None:
    for number in range(10_000):
        ctx.progress(
            number / 10_000, note=f"part {number}"
        )  # update_state(state="PROGRESS"); a cancelled job stops here
        time.sleep(0.01)


# --- Beat: beat_schedule

app.cron("30 7 * * mon", report.job("Monday"), key="weekly-report", tz="Europe/Berlin")  # crontab(…)
app.every(seconds=30, task=add.job(1, 1), key="heartbeat")  # 30.0


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        app.url = f"sqlite:///{folder}/jobs.db"
        os.environ["HOLDFAST_DB"] = app.url
        with app, app.worker(slots=8):  # celery -A celery_port worker -B
            show()


def show() -> None:
    flaky, gone = fetch.enqueue("https://flaky.example"), fetch.enqueue("https://gone.example")
    print("retried:  ", flaky.result(timeout=60), "after", flaky.refresh().row.failures, "failures")
    try:
        gone.result(timeout=60)
    except JobDead as error:
        print("given up: ", error.error)
    print("again:    ", poll_export.enqueue("export 7").result(timeout=60))

    unpaid = charge.enqueue(13)
    [*_] = (job.result(timeout=60) for job in app.enqueue_many([charge.job(1), charge.job(2)]))
    callback = f"{unpaid.id}:dead:1"
    while unpaid.refresh().state != "dead":
        add.enqueue(0, 0).result(timeout=60)
    app.get(callback).result(timeout=60)
    print("on_dead:  ", mails[-1])

    app.pause("codes")  # nobody claims it in time
    late = send_code.using(expires_s=0.2).enqueue("1234")
    try:
        late.result(timeout=60)
    except JobCancelled as error:
        print("expired:  ", error.error)
    app.resume("codes")

    print("chain:    ", add_then_mul.enqueue(2).result(timeout=60))
    group = app.enqueue_many([add.job(number, number) for number in range(5)])  # group(…)
    print("group:    ", [job.result(timeout=60) for job in group])
    print("chord:    ", sum_of_doubles.enqueue([1, 2, 3]).result(timeout=60))
    with app.batch(then=all_fetched) as batch:  # a chord of any size
        batch.add(*(fetch.job(f"https://{number}.example") for number in range(3)))
    while app.get_batch(batch.id).state != "ended":
        add.enqueue(0, 0).result(timeout=60)
    print("batch:    ", app.get(f"{batch.id}:then:0").result(timeout=60))

    print("route:    ", report.enqueue("today").row.queue, report.using(queue="default").enqueue("today").row.queue)
    print("countdown:", add.using(run_after=0.2).enqueue(20, 22).result(timeout=60))  # apply_async(countdown=0.2)

    later, running = crunch.using(run_after=3600).enqueue(), crunch.enqueue()
    while running.refresh().state != "running":
        add.enqueue(0, 0).result(timeout=60)
    for job in (later, running):
        app.cancel(job.id)
        try:
            job.result(timeout=60)
        except JobCancelled:
            print("revoked:  ", "a job that waited" if job is later else "a job that ran")


if __name__ == "__main__":
    main()
