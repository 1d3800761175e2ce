"""Addresses of Redis and Valkey servers, and the options in them."""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from holdfast.errors import BadURL
from holdfast.stores.urls import shown_url

PORT = 6379
SENTINEL_PORT = 26379
ACK_S = 5.0  # how long a write waits for the replicas or the disk that `ack` asks for
_TLS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_VERIFY = {"none": False, "full": True}
_KNOWN = ("ack", "cluster", "db", "epoch", "prefix", "sentinel", "sentinel_password", "sentinel_username")

Host = tuple[str, int]
Ack = int | Literal["aof"] | None


class Options(NamedTuple):
    """An address of a store, and the options in it."""

    shown: str  # without its password
    prefix: str
    hosts: tuple[Host, ...]  # none: a socket
    settings: dict[str, Any]  # of each connection to a server
    sentinel: str | None = None  # the name of the service that the hosts, which are Sentinels, watch
    sentinel_login: tuple[str | None, str | None] = (None, None)  # user and password
    is_cluster: bool = False
    ack: Ack = None
    epoch: str = ""  # of the store that this address is for; empty: any

    @classmethod
    def parse(cls, url: str) -> Options:
        """Read an address; raise `BadURL` for one that cannot be read, and for an option that is not known."""
        try:
            parts = _split(url)
            given = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        except ValueError:
            raise BadURL("the options of the store address are not written NAME=VALUE&NAME=VALUE") from None
        is_tls = parts.scheme.lower() == "rediss"
        known = (*_KNOWN, *(_TLS if is_tls else ()), *(("ssl_verify",) if is_tls else ()))
        if parts.scheme.lower() == "unix":
            known = ("ack", "db", "epoch", "password", "prefix", "username")
        if unknown := sorted(given.keys() - set(known)):
            raise BadURL(f"the store address has the option {unknown[0]!r}; known are {', '.join(known)}")
        prefix = given.get("prefix", "holdfast")
        if not prefix.isprintable() or not prefix or set("{}") & set(prefix):
            raise BadURL("the option prefix= of the store address must be printable text without braces")
        sentinel, is_cluster = given.get("sentinel"), _yes_or_no(given.get("cluster", "no"))
        settings = _settings(parts.scheme.lower(), parts.netloc, parts.path, given)
        hosts: tuple[Host, ...] = ()
        if parts.scheme.lower() != "unix":
            hosts = _hosts(parts.netloc.rpartition("@")[2], PORT if sentinel is None else SENTINEL_PORT)
        if sentinel == "" or (sentinel is not None and is_cluster):
            raise BadURL("the option sentinel= of the store address names a service, and does not go with cluster=yes")
        if len(hosts) > 1 and sentinel is None and not is_cluster:
            raise BadURL("the store address names several servers; add ?sentinel=SERVICE or ?cluster=yes")
        if is_cluster and settings["db"]:
            raise BadURL("a Cluster has only database 0; give each store of a Cluster a ?prefix= of its own")
        return cls(
            shown=shown_url(url),
            prefix=f"{{{prefix}}}:",
            hosts=hosts,
            settings=settings,
            sentinel=sentinel,
            sentinel_login=(given.get("sentinel_username"), given.get("sentinel_password")),
            is_cluster=is_cluster,
            ack=_ack(given.get("ack")),
            epoch=given.get("epoch", ""),
        )


def _split(url: str) -> SplitResult:
    """Split an address that may name several servers: newer releases of Python allow brackets around a single one."""
    scheme, _, rest = url.partition("://")
    servers = re.match(r"[^/?#]*", rest)
    netloc = servers[0] if servers else ""
    return urlsplit(f"{scheme}://{rest[len(netloc) :]}")._replace(netloc=netloc)


def _settings(scheme: str, netloc: str, path: str, given: dict[str, str]) -> dict[str, Any]:
    user, _, password = netloc.rpartition("@")[0].partition(":")
    login = {"username": unquote(user) or None, "password": unquote(password) or None}
    if scheme == "unix":
        if not path.strip("/") or netloc:
            raise BadURL("the store address must name a socket: unix:///run/redis/redis.sock")
        login = {name: given.get(name) or None for name in ("username", "password")}
        return {**login, "db": _number("db", given.get("db", "0")), "unix_socket_path": unquote(path)}
    db = path.strip("/")
    if db and "db" in given:
        raise BadURL("the store address names a database twice: at its end, and as the option db=")
    settings = {**login, "db": _number("db", db or given.get("db", "0"))}
    if scheme == "rediss":
        verify = given.get("ssl_verify", "full")
        if verify not in _VERIFY:
            raise BadURL("the option ssl_verify= of the store address must be full or none")
        settings |= {
            "ssl": True,
            "ssl_cert_reqs": "required" if _VERIFY[verify] else "none",
            "ssl_check_hostname": _VERIFY[verify],
            **{name: given[name] for name in _TLS if name in given},
        }
    return settings


def _hosts(listed: str, port: int) -> tuple[Host, ...]:
    hosts = []
    for each in listed.split(","):
        name, colon, number = each.rpartition(":") if not each.endswith("]") else (each, "", "")
        if not colon:
            name, number = each, ""
        host = name.strip("[]")
        if not host:
            raise BadURL("the store address does not name a server; write redis://HOST:PORT")
        hosts.append((host, _number("port", number) if number else port))
    return tuple(hosts)


def _number(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65_535:
        raise BadURL(f"the {name} of the store address must be a number, not {text!r}")
    return int(text)


def _yes_or_no(text: str) -> bool:
    if text not in ("yes", "no"):
        raise BadURL("the option cluster= of the store address must be yes or no")
    return text == "yes"


def _ack(text: str | None) -> Ack:
    if text is None or text == "aof":
        return "aof" if text else None
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 100:
        raise BadURL("the option ack= of the store address must be aof, or the number of replicas that confirm a write")
    return int(text)
