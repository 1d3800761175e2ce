"""The backend for the backport `django-tasks`, on older versions of Django.

TASKS = {"default": {"BACKEND": "holdfast.integrations.django.backport.HoldfastBackend"}}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django_tasks.backends.base import BaseTaskBackend  # pyright: ignore[reportMissingImports]
from django_tasks.base import (  # pyright: ignore[reportMissingImports]
    Task,
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultStatus,
)
from django_tasks.exceptions import TaskResultDoesNotExist  # pyright: ignore[reportMissingImports]
from django_tasks.signals import task_enqueued, task_finished, task_started  # pyright: ignore[reportMissingImports]
from django_tasks.utils import normalize_json  # pyright: ignore[reportMissingImports]

from holdfast.integrations.django.task_backend import Api, BackendMixin, Policies


@dataclass(frozen=True, kw_only=True)
class HoldfastTask(Policies, Task[..., Any]):
    """A task of Django's with the options of `Policies`."""


class HoldfastBackend(BackendMixin, BaseTaskBackend):
    """Stores tasks of Django's as jobs of the project's app."""

    task_class = HoldfastTask  # type: ignore[assignment]  # it is generic there
    api = Api(
        *(TaskResult, TaskResultStatus, TaskError, TaskContext, TaskResultDoesNotExist),
        *(task_enqueued, task_started, task_finished, normalize_json),
    )
