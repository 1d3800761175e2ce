"""Acts on the pages: each counts once, for the job that the person saw, and says who did it and why."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from holdfast.app import App
from holdfast.core.machine import State
from holdfast.core.records import Job
from holdfast.core.verdict import Succeeded
from holdfast.server.pages import jobs
from tests.factory import a_step, add, job_in, park, record, row, settle, start_flow
from tests.pages.world import BIG, EVIL
from tests.server.client import PEER, Client, add_token

HTML = {"accept": "text/html", "sec-fetch-site": "same-origin"}


@pytest.fixture
def serve(app: App) -> Iterator[Callable[..., Client]]:
    opened: list[Client] = []

    def serve(**options: Any) -> Client:
        opened.append(Client(app, **options))
        return opened[-1]

    yield serve
    for client in opened:
        client.close()


@pytest.fixture
def client(serve: Callable[..., Client]) -> Client:
    return serve()


def act(client: Client, job: Job, name: str, **fields: Any) -> httpx.Response:
    given = {"act": name, "fence": job.fence, "state": job.state.value, **fields}
    return client.post(f"/jobs/{job.id}/act", headers=HTML, data=given)


def said(app: App, job: Job) -> tuple[str | None, str | None]:
    """Return who acted on the job last, and the note."""
    event = [event for event in app.store.journal(job.id) if event.actor is not None][-1]
    return event.actor, event.detail.get("note") or event.detail.get("reason")


@pytest.mark.parametrize(
    ("state", "name", "then"),
    [
        (State.HELD, "approve", State.READY),
        (State.HELD, "done", State.DONE),
        (State.HELD, "fail", State.DEAD),
        (State.DEAD, "revive", State.READY),
        (State.CANCELLED, "retry", State.READY),
        (State.READY, "cancel", State.CANCELLED),
        (State.READY, "hold", State.HELD),
    ],
)
def test_an_act_changes_the_job_and_names_the_person(
    client: Client, app: App, state: State, name: str, then: State
) -> None:
    job = job_in(app.store, state)
    answer = act(client, job, name, note="I looked")
    assert answer.status_code == 303
    assert answer.headers["location"] == f"/jobs/{job.id}?said={name}"
    assert row(app.store, job.id).state is then
    assert said(app, job) == ("anonymous", "I looked")
    page = client.get(answer.headers["location"], headers=HTML)
    assert 'role="status" id="said"' in page.text


@pytest.mark.parametrize("name", ["approve", "done", "fail", "cancel"])
def test_a_second_answer_is_refused_and_names_the_first_person(client: Client, app: App, name: str) -> None:
    job = job_in(app.store, State.HELD)
    app.resolve(job.id, "retry", by="ann", note="first")
    before = row(app.store, job.id)
    answer = act(client, job, name)
    assert answer.status_code == 409
    assert "ann revived it" in answer.text
    assert f'href="/jobs/{job.id}"' in answer.text
    assert row(app.store, job.id) == before


def test_an_act_on_an_older_attempt_is_refused(client: Client, app: App) -> None:
    job = job_in(app.store, State.HELD)
    answer = client.post(f"/jobs/{job.id}/act", headers=HTML, data={"act": "approve", "fence": job.fence - 1})
    assert answer.status_code == 409
    assert row(app.store, job.id) == job


def test_an_act_without_a_fence_is_refused(client: Client, app: App) -> None:
    job = job_in(app.store, State.HELD)
    assert client.post(f"/jobs/{job.id}/act", headers=HTML, data={"act": "approve"}).status_code == 422
    assert row(app.store, job.id) == job


def test_a_result_keeps_every_digit(client: Client, app: App) -> None:
    job = job_in(app.store, State.HELD)
    assert act(client, job, "done", result=f'{{"paid": {BIG}}}').status_code == 303
    assert str(BIG) in (row(app.store, job.id).result or "")
    assert str(BIG) in client.get(f"/jobs/{job.id}", headers=HTML).text


def test_a_result_that_is_not_json_changes_nothing(client: Client, app: App) -> None:
    job = job_in(app.store, State.HELD)
    answer = act(client, job, "done", result="receipt 7")
    assert answer.status_code == 422
    assert "write" in answer.text
    assert row(app.store, job.id) == job


def test_a_note_is_asked_for_where_the_server_wants_one(serve: Callable[..., Client], app: App) -> None:
    client, job = serve(require_note=True), job_in(app.store, State.HELD)
    assert re.search(r"<textarea name=.note.[^>]* required", client.get(f"/jobs/{job.id}", headers=HTML).text)
    assert act(client, job, "approve").status_code == 422
    assert row(app.store, job.id) == job
    assert act(client, job, "approve", note="paid by hand").status_code == 303


def test_only_an_administrator_deletes(serve: Callable[..., Client], app: App) -> None:
    job, client = job_in(app.store, State.DONE), serve(peer=PEER)
    given = {"act": "delete", "fence": job.fence, "state": job.state.value}
    operator, admin = add_token(app, "ann", "operator"), add_token(app, "root", "admin")
    assert client.post(f"/jobs/{job.id}/act", headers=HTML, data=given, token=operator).status_code == 403
    assert 'value="delete"' not in client.get(f"/jobs/{job.id}", headers=HTML, token=operator).text
    assert client.post(f"/jobs/{job.id}/act", headers=HTML, data=given, token=admin).status_code == 303
    assert app.store.get(job.id) is None


def test_a_viewer_sees_no_buttons(serve: Callable[..., Client], app: App) -> None:
    job, client = job_in(app.store, State.HELD), serve(peer=PEER)
    viewer = add_token(app, "eva", "viewer")
    for path in (f"/jobs/{job.id}", "/jobs?state=held", "/review"):
        page = client.get(path, headers=HTML, token=viewer).text
        assert job.id in page
        assert 'method="post"' not in page, path


@pytest.mark.parametrize("prefix", ["", "/ops/jobs"])
@pytest.mark.parametrize("name", ["a b?#%&'\"é..", "orders/42", "a%2Fb", "../x", "/"])
def test_an_id_of_any_characters_has_a_page(serve: Callable[..., Client], app: App, name: str, prefix: str) -> None:
    client, job = serve(prefix=prefix), add(app.store, id=name)
    [link] = re.findall(rf'href="({prefix}/jobs/[^"?]+)"', client.get(f"{prefix}/jobs", headers=HTML).text)
    assert client.get(link, headers=HTML).status_code == 200
    given = {"act": "cancel", "fence": job.fence}
    assert client.post(f"{link}/act", headers=HTML, data=given).status_code == 303
    assert row(app.store, job.id).state is State.CANCELLED


# ------------------------------------------------------------------------------------------- many jobs


def plan(client: Client, name: str, **fields: Any) -> tuple[httpx.Response, dict[str, Any]]:
    """Ask for the count; return the page, and the fields of its form."""
    answer = client.post("/jobs/plan", headers=HTML, data={"act": name, **fields})
    form = answer.text[answer.text.find('action="/jobs/act"') :]
    found: dict[str, Any] = {}
    for key, value in re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form):
        found.setdefault(key, []).append(value)
    return answer, found


def test_an_act_on_all_that_match_counts_first_and_changes_what_was_counted(client: Client, app: App) -> None:
    mine = [job_in(app.store, State.DEAD, queue="mail") for _ in range(3)]
    other = job_in(app.store, State.DEAD, queue="else")
    answer, form = plan(client, "retry", every="true", state="dead", queue="mail")
    assert "Run 3 jobs again?" in answer.text
    assert all(row(app.store, job.id).state is State.DEAD for job in mine)
    done = client.post("/jobs/act", headers=HTML, data={**form, "note": "fixed"})
    assert "3 jobs run again." in done.text
    assert all(row(app.store, job.id).state is State.READY for job in mine)
    assert row(app.store, other.id).state is State.DEAD
    assert said(app, mine[0]) == ("anonymous", "fixed")


def test_jobs_that_moved_on_since_the_count_change_nothing(client: Client, app: App) -> None:
    mine = [job_in(app.store, State.DEAD) for _ in range(3)]
    _, form = plan(client, "retry", every="true", state="dead")
    app.revive(mine[0].id, by="ann")
    answer = client.post("/jobs/act", headers=HTML, data=form)
    assert answer.status_code == 409
    assert "3 matched, and 2 match now" in answer.text
    assert all(row(app.store, job.id).state is State.DEAD for job in mine[1:])


def test_jobs_that_came_after_the_count_are_left_alone(client: Client, app: App, clock: Any) -> None:
    mine = [job_in(app.store, State.DEAD) for _ in range(2)]
    _, form = plan(client, "retry", every="true", state="dead")
    clock.advance(60)
    late = job_in(app.store, State.DEAD)
    assert "2 jobs run again." in client.post("/jobs/act", headers=HTML, data=form).text
    assert row(app.store, late.id).state is State.DEAD
    assert all(row(app.store, job.id).state is State.READY for job in mine)


def test_chosen_rows_that_moved_on_are_refused_one_by_one(client: Client, app: App) -> None:
    mine = [job_in(app.store, State.HELD) for _ in range(3)]
    chosen = [jobs.seen_text(job) for job in mine]
    app.resolve(mine[1].id, "fail", by="ann")
    _, form = plan(client, "approve", job=chosen)
    assert form["job"] == chosen
    answer = client.post("/jobs/act", headers=HTML, data=form)
    assert "2 jobs continue." in answer.text
    assert "1 had moved on" in answer.text
    assert row(app.store, mine[1].id).state is State.DEAD


def test_jobs_of_other_queues_are_never_acted_on(serve: Callable[..., Client], app: App) -> None:
    job = job_in(app.store, State.HELD, queue="secret", task="of-others")
    client, token = serve(peer=PEER), add_token(app, "ann", "operator", ("mail",))
    for fields in ({"job": jobs.seen_text(job)}, {"every": "true", "state": "held", "queue": "secret"}):
        data = {"act": "approve", "expect": 1, "at": 1e12, **fields}
        for path in ("/jobs/plan", "/jobs/act"):
            answer = client.post(path, headers=HTML, data=data, token=token)
            assert answer.status_code == (200 if "job" in fields else 404)
            assert "of-others" not in answer.text
    assert client.get(f"/jobs/{job.id}", headers=HTML, token=token).status_code == 404
    assert row(app.store, job.id) == job


# ----------------------------------------------------------------------------------------------- lists


def test_a_list_pages_by_key_and_shows_each_job_once(client: Client, app: App) -> None:
    ids = {add(app.store, id=f"job-{number:03}").id for number in range(jobs.SHOWN * 2 + 5)}
    seen: list[str] = []
    path = "/jobs?state=ready"
    while path:
        page = client.get(path, headers=HTML).text
        seen += re.findall(r'id="row-(job-\d+)"', page)
        found = re.search(r'href="([^"]+)" *>Next page|rel="next" href="([^"]+)"', page)
        path = (found[1] or found[2]).replace("&amp;", "&") if found else ""
    assert sorted(seen) == sorted(ids)


def test_a_search_finds_arguments_and_says_how_far_it_looked(
    client: Client, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "SCANNED", 5)
    wanted = add(app.store, payload='{"order": 4711}')
    for _ in range(7):
        add(app.store)
    page = client.get("/jobs?text=4711", headers=HTML).text
    assert "Nothing found so far" in page
    [older] = re.findall(r'href="([^"]+)">Search older', page)
    assert f'id="row-{wanted.id}"' in client.get(older.replace("&amp;", "&"), headers=HTML).text


def test_a_condition_on_an_argument_finds_it_by_its_value_and_not_by_its_digits(client: Client, app: App) -> None:
    wanted = add(app.store, payload='{"order": {"id": 42}}')
    text = add(app.store, payload='{"order": {"id": "42"}}')
    for payload in ('{"order": {"id": 420}}', '{"order": 42}', '{"id": 42}'):
        add(app.store, payload=payload)
    for asked, ids in (("args.order.id:42", {wanted.id, text.id}), ('args.order.id:"42"', {text.id})):
        page = client.get("/jobs", params={"text": asked}, headers=HTML).text
        assert set(re.findall(r'id="row-([^"]+)"', page)) == ids


def test_a_filter_that_cannot_be_read_says_what_to_write(client: Client) -> None:
    answer = client.get("/jobs?since=yesterday", headers=HTML)
    assert answer.status_code == 422
    assert "write 2h" in answer.text
    assert client.get("/jobs?state=asleep", headers=HTML).status_code == 422


def test_an_ended_workflow_is_forked_from_a_step_and_stays_as_it_is(client: Client, app: App) -> None:
    flow = start_flow(app.store, task="shop.order")
    record(app.store, flow, a_step(1, name="reserve"), a_step(2, name="charge"))
    assert "Start a copy from a step" not in client.get(f"/jobs/{flow.id}", headers=HTML).text, "it still runs"
    settle(app.store, flow, Succeeded('"ok"'))
    ended = row(app.store, flow.id)
    assert "Start a copy from a step" in client.get(f"/jobs/{flow.id}", headers=HTML).text
    assert act(client, ended, "fork").status_code == 422
    answer = act(client, ended, "fork", step="charge", note="the bank is back")
    assert answer.status_code == 303
    copy_id = answer.headers["location"].removeprefix("/jobs/").removesuffix("?said=fork")
    assert [(step.name, step.state) for step in app.store.steps(copy_id)] == [("reserve", "recorded")]
    assert row(app.store, copy_id).state is State.READY
    assert row(app.store, flow.id) == ended
    assert "the bank is back" in str([event.detail for event in app.store.journal(copy_id)])


def test_the_badge_of_review_counts_held_jobs_and_questions_that_the_user_sees(app: App) -> None:
    job_in(app.store, State.HELD, queue="mail")
    for queue in ("mail", "other"):
        park(app.store, start_flow(app.store, queue=queue), "approve:ship", question="Ship it?")
    token = add_token(app, "some", "operator", ("mail",))
    client = Client(app, peer=PEER)
    try:
        for given, number in ((add_token(app, "all", "operator"), 3), (token, 2)):
            page = client.get("/review", token=given, headers=HTML).text
            assert re.findall(r'class="badge b-review"[^>]*>(\d+)<', page) == [str(number)]
    finally:
        client.close()


def test_the_review_has_held_jobs_and_questions_the_oldest_first(client: Client, app: App, clock: Any) -> None:
    first = job_in(app.store, State.HELD, task="pay")
    clock.advance(60)
    second = job_in(app.store, State.HELD, task=EVIL)
    page = client.get("/review", headers=HTML).text
    assert page.index(f"card-{first.id}") < page.index(f"card-{second.id}")
    assert "the lease ran out" in page
    assert EVIL not in page
    answer = act(client, first, "approve", back="review")
    assert answer.headers["location"] == "/review?said=approve"
    assert f"card-{first.id}" not in client.get("/review", headers=HTML).text
