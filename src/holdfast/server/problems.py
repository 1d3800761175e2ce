"""Problem documents (RFC 9457): every error that the API answers with, and its stable code.

Each code stands for one exit code of the command line, so that a script reacts to both alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast import errors

PROBLEM_JSON = "application/problem+json"


class Kind(NamedTuple):
    """A kind of problem."""

    status: int
    title: str
    exit: int  # the exit code of the command line that means the same


CODES: dict[str, Kind] = {
    "not_json": Kind(400, "The body is not JSON", 2),
    "unauthenticated": Kind(401, "A valid token is needed", 1),
    "forbidden": Kind(403, "The token's role does not allow this", 1),
    "cross_site": Kind(403, "The request comes from another site", 1),
    "read_only": Kind(403, "The server is read-only", 6),
    "not_found": Kind(404, "There is no such thing", 5),
    "method_not_allowed": Kind(405, "The path has no such method", 2),
    "too_slow": Kind(408, "The request came too slowly", 3),
    "state_changed": Kind(409, "The state does not allow this, or has changed", 6),
    "fence_stale": Kind(409, "The lease is not the current one", 6),
    "key_taken": Kind(409, "Another live job has the key", 6),
    "worker_gone": Kind(409, "The worker is not enrolled, or was declared dead", 6),
    "no_app": Kind(409, "The server was started without APP", 6),
    "busy": Kind(409, "The same is under way already", 6),
    "too_large": Kind(413, "The request is too large", 2),
    "unsupported_media": Kind(415, "The body must be application/json", 2),
    "wrong_host": Kind(421, "The server does not go by this name", 2),
    "invalid": Kind(422, "The request is not valid", 2),
    "id_reused": Kind(422, "The id belongs to another request", 2),
    "unknown_task": Kind(422, "No worker has published the task", 2),
    "rate_limited": Kind(429, "Too many failed logins", 1),
    "internal": Kind(500, "The server failed", 1),
    "unsupported": Kind(501, "The store cannot do this", 3),
    "overloaded": Kind(503, "The server has too much to do", 3),
    "store_down": Kind(503, "The store cannot be used", 3),
    "schema_stale": Kind(503, "The store's schema does not fit this program", 4),
}

# The first that fits; so the narrow ones stand before the broad ones.
_ERRORS: tuple[tuple[type[BaseException], str], ...] = (
    (errors.UnknownTask, "unknown_task"),
    (errors.UsageError, "invalid"),
    (errors.SchemaMismatch, "schema_stale"),
    (errors.StoreUnsupported, "unsupported"),
    (errors.StoreError, "store_down"),
    (errors.NotFound, "not_found"),
    (errors.KeyTaken, "key_taken"),
    (errors.DutyLost, "fence_stale"),
    (errors.LeaseLost, "fence_stale"),
    (errors.Refused, "state_changed"),
    (errors.WorkerGone, "worker_gone"),
    (errors.TransactionExpired, "fence_stale"),
)
RETRY_AFTER_S = 2


class Problem(Exception):
    """An answer that refuses a request. `more`: further members of the document."""

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        pointer: str | None = None,
        **more: Any,
    ) -> None:
        super().__init__(detail)
        self.code, self.detail = code, detail
        self.kind = CODES[code]
        self.headers = dict(headers or {})
        if self.kind.status == 503:
            self.headers.setdefault("retry-after", str(RETRY_AFTER_S))
        self.more = more
        if pointer is not None:
            self.more["errors"] = [{"pointer": pointer, "detail": detail}]

    def document(self, request_id: str, prefix: str = "") -> dict[str, Any]:
        """Return the body of the answer."""
        return {
            "type": f"{prefix}/problems/{self.code}",
            "title": self.kind.title,
            "status": self.kind.status,
            "detail": self.detail,
            "code": self.code,
            "request_id": request_id,
            **self.more,
        }


def problem_of(error: BaseException) -> Problem:
    """Return the problem that an error of Holdfast means. Any other error is the server's own, and not shown."""
    if isinstance(error, Problem):
        return error
    for kind, code in _ERRORS:
        if isinstance(error, kind):
            more: dict[str, Any] = {"error": type(error).__name__}
            if isinstance(error, errors.IllegalMove) and error.needs:
                more["needs"] = error.needs
            return Problem(code, str(error), **more)
    return Problem("internal", "the server failed; its log has the reason under this request_id")
