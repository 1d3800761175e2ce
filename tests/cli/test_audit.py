"""holdfast audit: who did what, when, on what, and why; every command that acts leaves its line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import pytest

from holdfast.cli.main import cli
from holdfast.core.continuity import Doubt
from holdfast.core.machine import State
from holdfast.core.published import PublishedTask
from holdfast.core.records import Schedule
from holdfast.stores.protocol import Store
from tests.cli.conftest import Run
from tests.factory import add, enrol, job_in, make_job, park, start_flow

ME = ("--by", "ann", "--note", "so it goes")


@pytest.fixture
def things(store: Store) -> dict[str, str]:
    """One of everything that a person can act on."""
    store.declare([Schedule(key="nightly", spec="0 3 * * *", tz="UTC", job=make_job(id="", task="report"))])
    store.publish([PublishedTask(job=make_job(id="", task="old"))])
    enrol(store, name="box")
    asks = park(store, start_flow(store), "signal:approve:1", question="Ship it?")
    jobs = {state.value: job_in(store, state).id for state in (State.READY, State.HELD, State.DEAD, State.DONE)}
    return {**jobs, "asks": asks.id, "flow": start_flow(store, on_crash="rollback").id}


@pytest.mark.parametrize(
    ("command", "act", "on"),
    [
        ("jobs cancel {ready}", "cancel", "{ready}"),
        ("jobs cancel {flow}", "cancel", "{flow}"),
        ("jobs move {ready} --to-queue slow", "move", "{ready}"),
        ("jobs set {ready} --priority 3", "set", "{ready}"),
        ("jobs retry {dead}", "revive", "{dead}"),
        ("jobs delete {done} -y", "delete", "store"),
        ("jobs delete --state done --all -y", "delete", "store"),
        ("held approve {held}", "revive", "{held}"),
        ("held done {held}", "done", "{held}"),
        ("held fail {held}", "fail", "{held}"),
        ("held approve {asks}", "approve", "{asks}"),
        ("held fail {asks}", "fail", "{asks}"),
        ("dead revive {dead}", "revive", "{dead}"),
        ("dead purge --older-than 1h -y", "purge", "store"),
        ("workflows rollback {flow}", "rollback", "{flow}"),
        ("queues pause mail", "pause", "queue mail"),
        ("schedules pause nightly", "pause", "schedule nightly"),
        ("schedules resume nightly", "resume", "schedule nightly"),
        ("schedules fire nightly", "fire", "schedule nightly"),
        ("schedules forget nightly", "forget", "schedule nightly"),
        ("tasks forget old", "forget", "task old"),
        ("workers drain box", "drain", "worker box"),
        ("workers stop box", "stop", "worker box"),
        ("tokens add eve --role viewer", "add token", "token eve"),
        ("db prune --older-than 1h", "purge", "store"),
    ],
)
def test_every_act_has_its_person_its_reason_and_its_object(
    run: Run, store: Store, things: dict[str, str], command: str, act: str, on: str
) -> None:
    before = run.json("audit")
    run(*command.format(**things).split(), *ME)
    new = [each for each in run.json("audit") if each not in before]
    assert len(new) == 1, new
    [each] = new
    named = each["job"] or " ".join(filter(None, (each["about"], each["name"])))
    assert (each["act"], named) == (act, on.format(**things))
    assert (each["by"], each["note"]) == ("ann", "so it goes")
    assert each["at"] is not None


def test_a_resume_an_accept_and_a_limit_are_acts_too(run: Run, store: Store) -> None:
    run("queues", "pause", "mail", *ME)
    run("queues", "resume", "mail", *ME)
    run("queues", "limit", "mail", "3", *ME)
    store.doubt(1, Doubt("rewound", "beats", "2", "1", "w"))
    run("db", "accept", *ME)
    run("tokens", "add", "eve", "--role", "viewer", *ME)
    run("tokens", "revoke", "eve", *ME)
    told = [each["act"] for each in run.json("audit", "--by", "ann")]
    assert told == ["revoke token", "add token", "accept", "limit", "resume", "pause"]
    assert {each["note"] for each in run.json("audit")} == {"so it goes"}


def test_who_declared_a_worker_dead_and_why(run: Run, store: Store) -> None:
    worker = enrol(store, name="box")
    run("workers", "forget", "box", *ME)
    [act] = run.json("audit")
    named = {name: act[name] for name in ("by", "act", "about", "name", "note", "detail")}
    assert named == {
        "by": "ann",
        "act": "forget",
        "about": "worker",
        "name": "box",
        "note": "so it goes",
        "detail": {"worker": "box", "id": worker},
    }
    assert store.workers() == []


def commands(group: click.Group, *words: str) -> Iterator[tuple[str, set[str]]]:
    """Walk over the commands with their options."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        if isinstance(command, click.Group):
            yield from commands(command, *words, name)
        elif command is not None:
            yield " ".join((*words, name)), {option for each in command.params for option in each.opts}


def test_every_command_that_takes_a_person_takes_a_reason(run: Run) -> None:
    found = {name: options for name, options in commands(cli) if "--by" in options}
    without = {name for name, options in found.items() if "--note" not in options}
    assert without == {"audit", "db copy"}, "one reads; the other gives its own reason"
    assert len(found) > 30


def test_acts_are_listed_newest_first_by_person_time_and_page(run: Run, store: Store) -> None:
    jobs = [add(store) for _ in range(3)]
    for job, who in zip(jobs, ("ann", "bob", "ann"), strict=True):
        run("jobs", "cancel", job.id, "--by", who)
    assert [each["job"] for each in run.json("audit", "--by", "ann")] == [jobs[2].id, jobs[0].id]
    first = run.json("audit", "--limit", "2")
    rest = run.json("audit", "--before", str(first[-1]["seq"]))
    assert [each["job"] for each in first + rest] == [job.id for job in reversed(jobs)]
    assert run.json("audit", "--since", "2999-01-01T00:00") == []
    assert run("audit", "--by", "eve").stdout == "No acts of people.\n"


def test_people_read_it_in_a_table(run: Run, things: dict[str, str]) -> None:
    run("jobs", "cancel", things["ready"], *ME)
    run("queues", "pause", "mail", *ME)
    head, pause, cancel = run("audit").stdout.splitlines()[:3]
    assert head.split() == ["AT", "BY", "ACT", "ON", "WHY"]
    assert "queue mail" in pause
    assert pause.endswith("so it goes")
    assert things["ready"] in cancel


def test_a_paused_queue_says_who_paused_it_and_why(run: Run, store: Store) -> None:
    add(store, queue="mail")
    run("queues", "pause", "mail", *ME)
    [view] = run.json("queues", "list")
    told: dict[str, Any] = {name: view[name] for name in ("paused", "paused_by", "paused_note")}
    assert told == {"paused": True, "paused_by": "ann", "paused_note": "so it goes"}
    assert view["paused_at"] is not None
    assert "so it goes" in run("queues", "list").stdout
    run("queues", "resume", "mail")
    [view] = run.json("queues", "list")
    assert (view["paused_by"], view["paused_at"], view["paused_note"]) == (None, None, None)
