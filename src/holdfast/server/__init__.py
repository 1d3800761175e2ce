"""The server: the HTTP API, metrics and health checks of a store as one ASGI application.

`holdfast server` runs it. `Server(app, user=…)` mounts it in an application of yours.
"""

from holdfast.core.access import User

try:
    from holdfast.server.asgi import Server
    from holdfast.server.options import ServerOptions
except ModuleNotFoundError as error:
    error.add_note("install the server: pip install 'holdfast[server]'")
    raise

__all__ = ["Server", "ServerOptions", "User"]
