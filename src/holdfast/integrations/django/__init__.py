"""Django: put `holdfast.integrations.django` into INSTALLED_APPS, and declare tasks in the `tasks.py` of your apps.

    from holdfast.integrations.django import app

    @app.task
    def ship(order_id: int) -> None:
        Order.objects.filter(pk=order_id).update(shipped=True)

`manage.py holdfast worker` runs them. The jobs are stored in the project's own database, and an enqueue inside
`atomic()` commits with the rows that the block writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.integrations.django.configuration import project_app
from holdfast.integrations.django.instrument import instrument
from holdfast.integrations.django.orm import transaction

if TYPE_CHECKING:
    from holdfast.app import App

    app: App

__all__ = ["app", "instrument", "transaction"]


def __getattr__(name: str) -> Any:
    """Make `app` when it is asked for: that needs the settings of the project, and other names do not."""
    if name == "app":
        return project_app()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
