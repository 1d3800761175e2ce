"""`holdfast tokens`: who may use the HTTP API."""

from __future__ import annotations

from typing import cast

import click

from holdfast import insight
from holdfast.acts import store as store_acts
from holdfast.cli.base import Group, say, show_result
from holdfast.cli.loading import opened_store
from holdfast.cli.output import Column, clean, show_json, show_table
from holdfast.cli.types import Duration, Text, WordList, json_option, person_options
from holdfast.core.access import ROLES, Role


@click.group(cls=Group, epilog="holdfast tokens list")
def tokens() -> None:
    """Make, list and revoke tokens of the HTTP API."""


@tokens.command(
    epilog="""
    holdfast tokens add ann --role operator
    holdfast tokens add edge-1 --role worker --queues mail,media --expires 90d
    """
)
@click.argument("name", type=Text())
@click.option(
    "--role",
    type=click.Choice(ROLES),
    required=True,
    help="viewer reads, operator acts, worker runs jobs, producer enqueues, admin may do all.",
)
@click.option("--queues", type=WordList(), metavar="A,B", default=(), help="Only these queues.  [default: all]")
@click.option("--expires", type=Duration(), metavar="TIME", help="Refuse it after this time, such as 90d.")
@person_options
@json_option
def add(
    name: str,
    role: str,
    queues: tuple[str, ...],
    expires: float | None,
    by: str,
    note: str | None,
    as_json: bool,
) -> None:
    """Make a token, and print it once.

    The store keeps only its SHA-256."""
    with opened_store() as store:
        token, secret = store_acts.new_token(store, name, cast(Role, role), queues or None, expires, by, note)
    if as_json:
        show_json({**insight.token_view(token, token.created_at), "token": secret})
    else:
        say("This is the only time that the token is shown:")
        click.echo(secret)


_COLUMNS = [
    Column("NAME", lambda view: view["name"], least=12),
    Column("ROLE", lambda view: view["role"], keep=True),
    Column("QUEUES", lambda view: "all" if view["queues"] is None else ", ".join(view["queues"]), rank=1),
    Column("LAST USED", lambda view: view["used_at"], rank=2),
    Column("EXPIRES", lambda view: "expired" if view["expired"] else view["expires_at"], rank=3),
]


@tokens.command(
    "list",
    epilog="""
    holdfast tokens list
    holdfast tokens list --json
    """,
)
@json_option
def list_(as_json: bool) -> None:
    """Show every token with its role and queues.

    Nobody can show its secret again."""
    with opened_store() as store:
        views = [insight.token_view(token, store.now().wall) for token in store.tokens.all()]
    if as_json:
        show_json(views)
    elif views:
        show_table(_COLUMNS, views)
    else:
        say("There are no tokens yet; `holdfast tokens add NAME --role ROLE` makes one.")


@tokens.command(epilog="holdfast tokens revoke ann")
@click.argument("name", type=Text())
@person_options
@json_option
def revoke(name: str, by: str, note: str | None, as_json: bool) -> None:
    """Refuse a token from now on. Servers do so within 5 seconds, for its cookies and streams, too."""
    with opened_store() as store:
        store_acts.revoke_token(store, name, by, note)
    show_result(as_json, {"name": name, "revoked": True}, f"{clean(name)} revoked")
