"""`holdfast tokens`: who may use the HTTP API."""

from __future__ import annotations

from typing import Any, cast

import click

from holdfast import store_acts
from holdfast.cli.base import Group, say, show_result
from holdfast.cli.loading import opened_store
from holdfast.cli.output import Column, clean, show_json, show_table
from holdfast.cli.types import Duration, Text, WordList, json_option, person_options
from holdfast.core.access import ROLES, Role, Token, digest_of
from holdfast.core.durations import iso
from holdfast.core.text import check_storable
from holdfast.errors import UsageError
from holdfast.ids import new_secret

NAME_MAX = 100


@click.group(cls=Group, epilog="holdfast tokens list")
def tokens() -> None:
    """Make, list and revoke tokens of the HTTP API."""


def token_view(token: Token, now: float) -> dict[str, Any]:
    """Show a token; nobody can show its secret again."""
    return {
        "name": token.name,
        "role": token.role,
        "queues": None if token.queues is None else list(token.queues),
        "created_at": iso(token.created_at),
        "used_at": iso(token.used_at),
        "expires_at": iso(token.expires_at),
        "expired": not token.is_valid(now),
    }


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
    check_storable(NAME_MAX, name=name)
    if not name.strip() or any(char.isspace() or char == "," for char in name):
        raise UsageError(f"the name {name!r} must be one word without commas")
    secret = new_secret()
    with opened_store() as store:
        now = store.now().wall
        token = Token(
            name=name,
            role=cast(Role, role),
            queues=queues or None,
            sha256=digest_of(secret),
            created_at=now,
            expires_at=None if expires is None else now + expires,
        )
        store_acts.add_token(store, token, by, note)
    if as_json:
        show_json({**token_view(token, now), "token": secret})
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
        views = [token_view(token, store.now().wall) for token in store.tokens.all()]
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
