"""`holdfast server`: the HTTP API, metrics and health checks of a store."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import click

from holdfast.app import App
from holdfast.cli.base import Command, say, settings
from holdfast.cli.loading import import_options, own_app
from holdfast.cli.logs import LogForm, log_to_stderr
from holdfast.cli.types import Text, WordList, app_argument, grace_option, log_format_option
from holdfast.errors import StoreUnsupported, UsageError
from holdfast.stores.urls import shown_url

DEFAULT_PORT = 8787
_INSTALL = "pip install 'holdfast[server]'"


@click.command(
    cls=Command,
    epilog="""
    holdfast server
    holdfast server jobs:app --port 9000
    holdfast server --host 0.0.0.0 --trusted-proxy 10.0.0.0/8
    holdfast server --prefix /ops/jobs --read-only
    """,
)
@app_argument
@click.option("--host", type=Text(), default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=DEFAULT_PORT, show_default=True, help="The port; 0: any free one."
)
@click.option("--prefix", type=Text(), default="", help="Answer below this path, such as /ops/jobs.")
@click.option("--read-only", is_flag=True, help="Change nothing: refuse every method but GET and HEAD.")
@click.option("--require-token", is_flag=True, help="Ask for a token also on loopback.")
@click.option(
    "--allowed-host",
    "allowed_hosts",
    type=Text(),
    multiple=True,
    metavar="NAME",
    help="A name that requests may use; addresses and localhost always may. May be repeated.",
)
@click.option(
    "--trusted-proxy",
    "proxies",
    type=WordList(),
    default=(),
    metavar="ADDRESS,…",
    help="Believe X-Forwarded-For, -Host and -Proto of these addresses or networks.",
)
@click.option("--insecure", is_flag=True, help="Take tokens over plain HTTP from other machines.")
@click.option("--open-metrics", is_flag=True, help="Answer /metrics without a token.")
@click.option("--require-note", is_flag=True, help="Ask for a note with each act on the pages.")
@click.option("--dev", is_flag=True, help="Serve /style, too: every component of the pages.")
@click.option("--no-reaper", is_flag=True, help="Leave the recovery of lost jobs to others.")
@grace_option
@click.option(
    "--threads", type=click.IntRange(1, 500), default=16, show_default=True, help="Calls of the store at once."
)
@import_options
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
    default="info",
    show_default=True,
    help="How much to log, on stderr.",
)
@log_format_option
def server(
    app: str | None,
    host: str,
    port: int,
    proxies: tuple[str, ...],
    no_reaper: bool,
    require_token: bool,
    log_level: str,
    log_format: LogForm,
    **given: Any,
) -> None:
    """Serve the pages for people, the HTTP API and health checks.

    It listens on 127.0.0.1 and needs no token there. On any other address it starts only if the store has a token: make
    one with `holdfast tokens add`. It makes the store if there is none.

    With APP (module:name) it publishes the app's tasks, and runs jobs in POST /v1/tick. The server also runs the
    reaper, the scheduler, timers and pruning for the whole fleet.
    """
    settings().serves = True
    try:
        from holdfast.runtime.metrics import Registry, measured
        from holdfast.server import Server, ServerOptions
        from holdfast.server.asgi import check_own_store
        from holdfast.server.options import is_loopback, networks
        from holdfast.server.serve import listen, run
    except ModuleNotFoundError as error:
        raise StoreUnsupported(f"{error}; install the server: {_INSTALL}") from None

    log_to_stderr(log_level.upper(), log_format)
    found, registry = own_app(app) or App(settings().db), Registry()
    if found.url.startswith(("http://", "https://")):
        raise UsageError(
            f"{shown_url(found.url)} is a server already; give this one the store behind it: sqlite:///…, "
            "postgresql://… or redis://…"
        )
    found.opener = measured(found.opener, found.clock, registry)
    is_local = is_loopback(host)
    options = ServerOptions(
        **given,
        trusted_proxies=networks(proxies),
        needs_token=require_token or not is_local or bool(proxies),
        reaper=not no_reaper,
    )
    with found:
        check_own_store(found.store)
        if options.needs_token and not found.store.tokens.all():
            raise UsageError(
                "the store has no token, and this server needs one; make it with "
                "`holdfast tokens add NAME --role admin`" + ("" if is_local else ", or listen on 127.0.0.1")
            )
        if not is_local and not options.insecure and not proxies:
            logging.getLogger("holdfast.server").warning(
                "this server listens on %s without TLS: put a proxy with TLS before it (--trusted-proxy)", host
            )
        run(
            Server(found, options=options, services=True, has_app=app is not None, registry=registry),
            listen(host, port),
            _announcer(log_format),
        )


def _announcer(log_format: LogForm) -> Callable[[str], None]:
    """Return what says that requests are answered: in the log, if a program reads that."""
    if log_format == "json":
        return lambda url: logging.getLogger("holdfast.server").info("listening on %s", url)
    return lambda url: say(f"listening on {url}")
