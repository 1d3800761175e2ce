"""The table of all pages. A new section is one line here, and one module with `ROUTES`.

The order is that of the navigation.
"""

from __future__ import annotations

from holdfast.core.access import ROLES
from holdfast.server.pages import (
    alerts,
    audit,
    errors,
    job,
    jobs,
    login,
    overview,
    queues,
    review,
    schedules,
    settings,
    style,
    workers,
    workflows,
    zombies,
)
from holdfast.server.pages.page import Form, Page
from holdfast.server.pages.pulse import pulse
from holdfast.server.pages.static_files import send_static
from holdfast.server.routes import OPEN, Route

SECTIONS: tuple[tuple[Page | Form, ...], ...] = (
    overview.ROUTES,
    jobs.ROUTES,
    job.ROUTES,
    review.ROUTES,
    workflows.ROUTES,
    zombies.ROUTES,
    errors.ROUTES,
    queues.ROUTES,
    schedules.ROUTES,
    workers.ROUTES,
    alerts.ROUTES,
    audit.ROUTES,
    settings.ROUTES,
    login.ROUTES,
    style.ROUTES,
)

PAGES: tuple[Page, ...] = tuple(each for section in SECTIONS for each in section if isinstance(each, Page))
PAGE_ROUTES: tuple[Route, ...] = (
    *(each.route() for section in SECTIONS for each in section),
    Route(
        *("GET", "/static/{name}", "Send a script or a style", send_static, OPEN, "none"),
        media_type="text/plain",
        internal=True,
        is_page=True,
    ),
    Route(
        *("GET", "/pulse", "Tell open pages that something has changed", pulse, frozenset(ROLES), "none"),
        media_type="text/event-stream",
        internal=True,
    ),
)
