"""The backend for `django.tasks` of Django 6.1 and newer.

TASKS = {"default": {"BACKEND": "holdfast.integrations.django.backend.HoldfastBackend"}}
"""

from __future__ import annotations

from dataclasses import dataclass

from django.tasks.backends.base import BaseTaskBackend  # pyright: ignore[reportMissingImports]
from django.tasks.base import (  # pyright: ignore[reportMissingImports]
    Task,
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultStatus,
)
from django.tasks.exceptions import TaskResultDoesNotExist  # pyright: ignore[reportMissingImports]
from django.tasks.signals import task_enqueued, task_finished, task_started  # pyright: ignore[reportMissingImports]
from django.utils.json import normalize_json  # pyright: ignore[reportMissingImports]

from holdfast.integrations.django.task_backend import Api, BackendMixin, Policies


@dataclass(frozen=True, kw_only=True)
class HoldfastTask(Policies, Task):  # type: ignore[misc]  # Django brings no types
    """A task of Django's with the options of `Policies`."""


class HoldfastBackend(BackendMixin, BaseTaskBackend):  # type: ignore[misc]  # as above
    """Stores tasks of Django's as jobs of the project's app."""

    task_class = HoldfastTask
    api = Api(
        *(TaskResult, TaskResultStatus, TaskError, TaskContext, TaskResultDoesNotExist),
        *(task_enqueued, task_started, task_finished, normalize_json),
    )
