"""The table of all routes. The OpenAPI document and the tests of roles and scopes are made from it."""

from __future__ import annotations

from holdfast.core.access import ROLES, Role
from holdfast.server import health, sessions
from holdfast.server.routes import OPEN, Route

ANYBODY: frozenset[Role] = frozenset(ROLES)

ROUTES: tuple[Route, ...] = (
    Route("GET", "/health/live", "Say whether this process lives", health.live, OPEN, "none", reply=health.Health),
    Route("GET", "/health/ready", "Say whether the store can be used", health.ready, OPEN, "none", reply=health.Health),
    Route(
        "POST",
        "/v1/login",
        "Exchange a token for a cookie",
        sessions.login,
        OPEN,
        "none",
        body=sessions.Login,
        reply=sessions.Me,
        while_read_only=True,
        repeat="it gives another cookie",
    ),
    Route(
        "POST",
        "/v1/logout",
        "Take the cookie back",
        sessions.logout,
        OPEN,
        "none",
        while_read_only=True,
        repeat="nothing more happens",
    ),
    Route("GET", "/v1/me", "Show the user of this request", sessions.me, ANYBODY, "none", reply=sessions.Me),
)
