"""The installed app: it imports the `tasks.py` of every app of the project, and checks the setting HOLDFAST."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.db.models.signals import post_migrate
from django.utils.module_loading import autodiscover_modules

from holdfast.errors import HoldfastError
from holdfast.integrations.django.configuration import alias_of, configuration, is_testing, project_app


class HoldfastConfig(AppConfig):  # type: ignore[misc]  # Django brings no types
    """`holdfast.integrations.django` in INSTALLED_APPS."""

    name = "holdfast.integrations.django"
    label = "holdfast"
    verbose_name = "Holdfast"

    def ready(self) -> None:
        """Import the tasks: Django is set up now."""
        checks.register(check_configuration)
        try:
            project_app()
        except HoldfastError:
            return  # the check says what is wrong, and so does the first use of the app
        autodiscover_modules("tasks")
        post_migrate.connect(make_tables, sender=self)


def make_tables(using: str, **_: Any) -> None:
    """Make or migrate the tables of the jobs with those of the project: `manage.py migrate`."""
    given = configuration()
    if not given.get("URL") and using == alias_of(given) and not is_testing():
        project_app().counts()


def check_configuration(**_: Any) -> Sequence[Any]:
    """Return what is wrong with the setting HOLDFAST."""
    try:
        project_app()
    except HoldfastError as error:
        return [checks.Error(str(error), id="holdfast.E001")]
    return []
