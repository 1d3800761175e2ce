"""The server of Holdfast inside an ASGI project of Django, for the users of that project.

application = with_server(get_asgi_application(), prefix="/ops/jobs")
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib import auth
from django.contrib.auth.views import redirect_to_login
from django.core.handlers.asgi import ASGIRequest
from django.utils.module_loading import import_string

from holdfast.app import App
from holdfast.core.access import Role, User
from holdfast.integrations.django.configuration import project_app
from holdfast.integrations.django.connections import in_own_thread
from holdfast.server import Server, ServerOptions
from holdfast.server.call import Receive, Scope, Send

FindRole = Callable[[Any], Role | None]


def role_of(user: Any) -> Role | None:
    """Return the role of a user of Django's: a superuser is an admin, staff are operators, others are refused."""
    if not user.is_active:
        return None
    return "admin" if user.is_superuser else "operator" if user.is_staff else None


def with_server(
    application: Any, *, prefix: str = "/holdfast", role: FindRole = role_of, app: App | None = None
) -> WithServer:
    """Return an ASGI application that gives requests below `prefix` to Holdfast, and all others to Django.

    role: returns the role of a user, or None to refuse. app: one of your own; the project's by default. A page that is
    asked for by nobody in particular leads to LOGIN_URL. Users come from the session, as in Django's own views.
    """
    return WithServer(application, prefix.rstrip("/"), role, app or project_app())


class WithServer:
    """See `with_server`."""

    def __init__(self, application: Any, prefix: str, role: FindRole, app: App) -> None:
        self._django = application
        self._prefix = prefix
        self._role = role
        options = ServerOptions(prefix=prefix, allowed_hosts=_allowed_hosts())
        self.server = Server(app, options=options, user=self._user)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or open and close with the program."""
        if scope["type"] == "lifespan":
            await self.server(scope, receive, send)
        elif not self._is_ours(str(scope["path"])):
            await self._django(scope, receive, send)
        elif _asks_for_a_page(scope) and await self._user(scope) is None:
            await _send_to_login(scope, send)
        else:
            await self.server(scope, receive, send)

    def _is_ours(self, path: str) -> bool:
        return path == self._prefix or path.startswith(f"{self._prefix}/")

    async def _user(self, scope: Scope) -> User | None:
        async with in_own_thread():
            found = await sync_to_async(_session_user)(scope)
            role = self._role(found) if found.is_authenticated else None
            return None if role is None else User(found.get_username(), role)


def _session_user(scope: Scope) -> Any:
    """Return the user whose session the cookie names."""
    request: Any = ASGIRequest(scope, io.BytesIO())
    store = import_string(f"{settings.SESSION_ENGINE}.SessionStore")
    request.session = store(request.COOKIES.get(settings.SESSION_COOKIE_NAME))
    return auth.get_user(request)


def _asks_for_a_page(scope: Scope) -> bool:
    accepted = next((value for name, value in scope.get("headers", ()) if name == b"accept"), b"")
    return scope["type"] == "http" and scope["method"] == "GET" and b"text/html" in accepted


async def _send_to_login(scope: Scope, send: Send) -> None:
    query = scope.get("query_string", b"").decode("latin-1")
    path = quote(str(scope["path"])) + (f"?{query}" if query else "")
    where = str(redirect_to_login(path)["Location"])
    headers = [(b"location", where.encode("latin-1")), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 302, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def _allowed_hosts() -> tuple[str, ...] | None:
    """Return the hosts of the project; None where it uses patterns, which Django checks on its own pages only."""
    hosts = tuple(settings.ALLOWED_HOSTS)
    return None if any("*" in host or host.startswith((".", "[")) for host in hosts) else hosts
