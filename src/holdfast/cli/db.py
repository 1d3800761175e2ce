"""`holdfast db`: make, migrate, check, copy and prune the store."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import click

from holdfast import insight
from holdfast.acts import store as store_acts
from holdfast.cli.base import Group, acknowledge, complain, say, settings, show_result
from holdfast.cli.exit_codes import Exit
from holdfast.cli.leaving import noting
from holdfast.cli.loading import open_existing, opened_store, require_schema
from holdfast.cli.output import Progress, clean, show_json
from holdfast.cli.types import Duration, Text, WordList, by_option, json_option, older_than_option, person_options
from holdfast.core.machine import ENDED, State
from holdfast.core.text import counted
from holdfast.errors import UsageError
from holdfast.insight.findings import TO_RECOVER_ORPHANS
from holdfast.stores import open_store
from holdfast.stores.protocol import Schema, Store, in_words
from holdfast.stores.sqlite.backup import check_target
from holdfast.stores.sqlite.store import SqliteStore

_ENDED = tuple(state.value for state in State if state in ENDED)


@click.group(cls=Group, epilog="holdfast db init --db sqlite:///jobs.db")
def db() -> None:
    """Make, migrate, check, copy and prune the store."""


@db.command(epilog="holdfast db init --db sqlite:///jobs.db")
@json_option
def init(as_json: bool) -> None:
    """Make the store, or bring it up to date. Safe to repeat."""
    with closing(open_store(settings().db)) as store:
        _migrate(store, as_json)


@db.command(epilog="holdfast db migrate --db sqlite:///jobs.db")
@json_option
def migrate(as_json: bool) -> None:
    """Bring the schema of an existing store up to date. Safe to run from many places at once."""
    with closing(open_existing()) as store:
        if store.schema().found == 0:
            require_schema(store)
        _migrate(store, as_json)


def _migrate(store: Store, as_json: bool) -> None:
    before = store.migrate()
    url = insight.shown_url(store.url)
    if before.found >= before.wanted:
        what = f"is up to date (schema {before.found})"
    elif before.found == 0:
        what = f"made (schema {before.wanted})"
    else:
        what = f"migrated from schema {before.found} to {before.wanted}"
    view = {"url": url, "schema": max(before.found, before.wanted), "schema_before": before.found}
    show_result(as_json, view, f"{clean(url)} {what}")


@db.command(
    epilog="""
    holdfast db status
    holdfast db status --json
    """
)
@json_option
def status(as_json: bool) -> None:
    """Show the store's address, its schema, and what it holds. Exits with 4 when the schema does not fit."""
    with closing(open_existing()) as store:
        schema = store.schema()
        found, wanted = schema.found, schema.wanted
        view: dict[str, Any] = {"url": insight.shown_url(store.url), "schema": found, "schema_wanted": wanted}
        if schema.is_stale or schema.is_too_new:
            if as_json and found:
                show_json({**view, "jobs": None, "workers": None, "paused": None})
            require_schema(store)
        view |= {"jobs": insight.totals(store), "workers": len(store.workers()), "paused": store.paused()}
    if as_json:
        show_json(view)
        return
    jobs = ", ".join(f"{number} {state}" for state, number in view["jobs"].items() if number) or "none"
    rows = [("store", view["url"]), ("schema", _standing(schema)), ("jobs", jobs), ("workers", view["workers"])]
    if view["paused"]:
        rows.append(("paused", ", ".join(view["paused"])))
    for name, value in rows:
        click.echo(f"{name:<8} {clean(value)}")


@db.command(
    epilog="""
    holdfast db check
    holdfast db check --json
    """
)
@json_option
@click.pass_context
def check(ctx: click.Context, as_json: bool) -> None:
    """Verify that the store is sound. Exits with 7 when it is not."""
    with opened_store() as store:
        damage = store.damage() if isinstance(store, SqliteStore) else store.check()
        rows = [str(row) for row in store.unreadable()] if isinstance(store, SqliteStore) else []
        look: Any = getattr(store, "orphans", list)
        orphans: list[str] = [] if store.missing() else look()
        doubts = [] if store.missing() else list(dict.fromkeys(map(in_words, store.doubts())))
    damage = [each for each in damage if each not in orphans]
    findings = damage + rows + orphans + doubts
    if as_json:
        show_json({"ok": not findings, "findings": findings})
    elif not findings:
        acknowledge("ok")
    for finding in findings:
        complain(finding)
    if damage:
        complain("the store is damaged; stop the workers and restore it from a backup")
    if orphans:
        complain(f"nothing to restore: {TO_RECOVER_ORPHANS}")
    if doubts:
        complain("workers claim no jobs until you run: holdfast db accept --by NAME --note TEXT")
    if findings:
        ctx.exit(Exit.UNHEALTHY)


@db.command(epilog="holdfast db accept --by ann --note 'restored the backup of Monday'")
@by_option
@click.option("--note", type=Text(), required=True, help="Why; kept in the store.")
@json_option
def accept(by: str, note: str, as_json: bool) -> None:
    """Accept a store that was replaced, rewound or emptied as it is. Its workers claim again.

    Look first what has become of the jobs: those that ended after the backup was made are live again, and will run
    again. Exits with 6 when there is nothing to accept.
    """
    with opened_store() as store:
        number = store_acts.accept(store, by, note)
    show_result(as_json, {"incarnation": number}, f"accepted; this is incarnation {number} of the store")


@db.command(
    epilog="""
    holdfast db backup backup.db --db sqlite:///jobs.db
    holdfast db backup /backups/jobs-2026-03-01.db
    """
)
@click.argument("target", metavar="FILE", type=click.Path(path_type=Path))
@json_option
def backup(target: Path, as_json: bool) -> None:
    """Copy a SQLite store to a new file.

    Workers and other programs may use the store meanwhile. FILE is one consistent snapshot, made by SQLite's online
    backup. It must not exist yet, and appears when it is
    complete. A PostgreSQL store is copied with pg_dump.
    """
    with opened_store() as store:
        if not isinstance(store, SqliteStore):
            raise UsageError(f"{insight.shown_url(store.url)} is not a SQLite store; PostgreSQL has pg_dump")
        facts = store.condition()
        check_target(facts.path, target)  # before the bar is drawn
        with Progress("copying", facts.file_bytes) as progress:
            written = store.backup(target, progress.advance)
    words = f"{clean(target)} written ({insight.size(written)})"
    show_result(as_json, {"file": str(target), "bytes": written}, words)


@db.command(
    epilog="""
    holdfast db copy --from sqlite:///jobs.db --to postgresql://user@host/database
    holdfast db copy --to redis://localhost:6379 --drain
    """
)
@click.option("--from", "source_url", metavar="URL", type=Text(), help="The store to copy; otherwise that of --db.")
@click.option("--to", "target_url", metavar="URL", type=Text(), required=True, help="An empty store, or none yet.")
@click.option("--drain", is_flag=True, help="Ask the workers of the source to stop, and wait for them.")
@click.option(
    "--drain-within",
    type=Duration(),
    metavar="TIME",
    default="5m",
    show_default=True,
    help="With --drain: give up after this time, and copy nothing.",
)
@by_option
@json_option
def copy(source_url: str | None, target_url: str, drain: bool, drain_within: float, by: str, as_json: bool) -> None:
    """Copy a store into another one, to move a fleet.

    Each may be on SQLite, PostgreSQL or Redis.

    Jobs, their histories, steps, signals, keys, schedules, limits and counters are the same afterwards, with their
    fences. Jobs that run are lost attempts in the copy, at no cost: their workers must have stopped. The copy is
    compared with the source, and complete when nothing differs. If it is interrupted, run the same command again.

    From the beginning of the copy no worker claims from the source any more, until a person accepts it with
    `holdfast db accept`. Workers of the target claim when the copy is complete. Exits with 6 when the source is in use,
    or the target has jobs of its own.
    """
    from holdfast.acts.copy import StoreCopy, prepare

    settings().db_given = source_url or settings().db_given
    with opened_store(bulk=True) as source, closing(open_store(target_url, bulk=True)) as target:
        prepare(source, target)
        copying = StoreCopy(source, target)
        if drain:
            copying.drain(by, drain_within, lambda alive: say(f"waiting for {counted(len(alive), 'worker')} to stop"))
        copying.check()
        with Progress("copying", copying.total()) as progress:
            copying.advance = progress.advance
            report = copying.run(by)
    tables = [{"table": each.name, "rows": each.rows, "sha256": each.sha256} for each in report.tables]
    data = {"from": insight.shown_url(source.url), "to": insight.shown_url(target.url), "written": report.written}
    jobs = next(each.rows for each in report.tables if each.name == "job")
    rows = sum(each.rows for each in report.tables)
    words = (
        f"{counted(jobs, 'job')} copied, {counted(rows, 'row')} compared and the same; "
        f"{counted(report.lost, 'running job')} settled as lost; workers of {clean(data['to'])} may claim"
    )
    show_result(as_json, {**data, "lost": report.lost, "tables": tables}, words)


@db.command(
    epilog="""
    holdfast db prune --older-than 30d
    holdfast db prune --older-than 12h --states done
    """
)
@older_than_option
@click.option(
    "--states",
    type=WordList(_ENDED),
    metavar="A,B",
    default="done,cancelled,rolled_back",
    show_default=True,
    help="Which ended jobs; dead ones only if named.",
)
@person_options
@json_option
def prune(older_than: float, states: tuple[str, ...], by: str, note: str | None, as_json: bool) -> None:
    """Delete jobs that ended long ago, with their history. In small steps, so that workers are not held up.

    A workflow reads the result of a child from the child's row: keep children for longer than their workflows take.
    """
    with opened_store(bulk=True) as store:
        number = purge(store, [State(state) for state in states], older_than, by, note)
    show_result(as_json, {"deleted": number}, f"{number} deleted")
    if not number:
        say(f"No {' or '.join(states)} job ended longer than {insight.duration(older_than)} ago.")


def _standing(schema: Schema) -> str:
    if schema.found == schema.wanted:
        return f"{schema.found}, up to date"
    return f"{schema.found}; this program knows {schema.wanted}, and may continue"


def purge(store: Store, states: list[State], older_than_s: float, actor: str, note: str | None) -> int:
    """Delete ended jobs page by page; return how many."""
    totals = insight.totals(store)
    deleted = 0
    how_far = noting(lambda: f"at least {insight.counted(deleted, 'job')} deleted")
    with Progress("pruning", sum(totals[state.value] for state in states)) as progress, how_far:
        for page in store_acts.purge_pages(store, states, older_than_s, actor, note):
            deleted += page
            progress.advance(page)
    return deleted
