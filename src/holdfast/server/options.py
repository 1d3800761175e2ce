"""The options of the server, validated once."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.errors import UsageError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)*")
_HOST = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The options of `holdfast server`.

    allowed_hosts: names that requests may use, besides addresses and localhost; None: any, because another program
    checks them. open_metrics: `/metrics` needs no token. insecure: tokens may come over plain HTTP. threads: how many
    calls of the store run at once for programs, and half as many for people. waiting_max: how many more may wait; the
    server refuses others. dev: pages for developers of the pages. require_note: acts on pages need a note. language: of
    the pages.
    """

    prefix: str = ""
    read_only: bool = False
    allowed_hosts: tuple[str, ...] | None = ()
    trusted_proxies: tuple[Network, ...] = ()
    open_metrics: bool = False
    needs_token: bool = False
    insecure: bool = False
    reaper: bool = True
    grace_s: float = 0.0
    threads: int = 16
    waiting_max: int = 1_000
    body_max: int = 1 << 20
    bulk_body_max: int = 8 << 20
    dev: bool = False
    require_note: bool = False
    language: str = "en"

    def __post_init__(self) -> None:
        if not _PREFIX.fullmatch(self.prefix):
            raise UsageError(f"the prefix {self.prefix!r} must be a path such as /ops/jobs, without a slash at its end")
        for host in self.allowed_hosts or ():
            if not _HOST.fullmatch(host):
                raise UsageError(f"the host {host!r} must be a name such as jobs.example.org, without scheme or port")


def networks(addresses: Sequence[str]) -> tuple[Network, ...]:
    """Read addresses and networks, such as 10.0.0.7 or 10.0.0.0/8."""
    try:
        return tuple(ipaddress.ip_network(each.strip()) for each in addresses)
    except ValueError as error:
        raise UsageError(f"a trusted proxy is an address or a network, such as 10.0.0.0/8: {error}") from None


def is_loopback(host: str) -> bool:
    """Say whether only programs of this machine can reach a server that listens on this host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def address_in(address: str, among: Sequence[Network]) -> bool:
    """Say whether the address is in one of these networks."""
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = getattr(known, "ipv4_mapped", None)
    return any((mapped or known) in network for network in among)
