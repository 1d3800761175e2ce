"""The task backend for Django: `django.tasks` where there is one, else the backport, each in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import django
import pytest

NEW = django.VERSION >= (6, 1)
PACKAGE = "django.tasks" if NEW else "django_tasks"
BACKEND = f"holdfast.integrations.django.{'backend' if NEW else 'backport'}.HoldfastBackend"

SETTINGS = f"""
SECRET_KEY = "test"
USE_TZ = True
DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": "jobs.db",
                          "OPTIONS": {{"transaction_mode": "IMMEDIATE"}}}}}}
INSTALLED_APPS = ["holdfast.integrations.django", "work"]
TASKS = {{"default": {{"BACKEND": "{BACKEND}", "QUEUES": ["default", "mail"], "OPTIONS": {{"timeout_s": 60}}}}}}
"""

TASKS = f"""
from {PACKAGE} import task
from holdfast import GiveUp, Retry

tries = []

class Declined(Exception):
    pass

@task
def add(a, b=2):
    return {{"sum": a + b}}

@task(queue_name="mail", priority=7)
async def aadd(a):
    return a + 1

@task(takes_context=True)
def says(context, word):
    return [word, context.attempt, context.task_result.id]

@task(retry=Retry(attempts_max=2, base_s=0, cap_s=0))
def fails(word):
    tries.append(word)
    raise Declined(word)

@task(on_crash="hold")
def dangerous():
    pass

@task
def unfit():
    return object()
"""

TESTS = f"""
import asyncio
from datetime import timedelta

from django.core.checks import run_checks
from django.db import transaction
from django.utils import timezone
from {PACKAGE} import TaskResultStatus, task_backends
from {PACKAGE}.exceptions import TaskResultDoesNotExist, TaskResultMismatch
from {PACKAGE}.signals import task_enqueued, task_finished, task_started
from holdfast.integrations.django import app
from holdfast.integrations.django.test import TestCase
from work import tasks

INVALID = __import__("{PACKAGE}.exceptions", fromlist=["x"])
INVALID = getattr(INVALID, "InvalidTask", None) or INVALID.InvalidTaskError


def outside(value):
    return value


class BackendTests(TestCase):
    def setUp(self):
        super().setUp()
        self.heard = []
        for signal, name in ((task_enqueued, "enqueued"), (task_started, "started"), (task_finished, "finished")):
            def hear(sender, task_result, name=name, **_):
                self.heard.append((name, sender.__name__, str(task_result.status)))
            signal.connect(hear)
            self.addCleanup(signal.disconnect, hear)

    def test_a_task_runs_and_its_result_is_found(self):
        result = tasks.add.enqueue(1, b=4)
        self.assertEqual((result.status, result.attempts, result.worker_ids), (TaskResultStatus.READY, 0, []))
        self.assertEqual((result.args, result.kwargs, result.backend), ([1], {{"b": 4}}, "default"))
        self.assertIsNotNone(result.enqueued_at)
        with self.assertRaises(ValueError):
            result.return_value
        self.jobs.drain()
        result.refresh()
        self.assertEqual((result.status, result.return_value), (TaskResultStatus.SUCCESSFUL, {{"sum": 5}}))
        self.assertEqual((result.attempts, len(result.worker_ids), result.errors), (1, 1, []))
        self.assertTrue(result.enqueued_at <= result.started_at <= result.finished_at)
        self.assertEqual(result.started_at, result.last_attempted_at)
        self.assertTrue(result.is_finished)
        self.assertEqual(self.heard, [("enqueued", "HoldfastBackend", "READY"),
                                      ("started", "HoldfastBackend", "RUNNING"),
                                      ("finished", "HoldfastBackend", "SUCCESSFUL")])

    def test_an_async_task_has_its_queue_and_priority(self):
        result = asyncio.run(tasks.aadd.aenqueue(1))
        self.jobs.drain()
        asyncio.run(result.arefresh())
        self.assertEqual(result.return_value, 2)
        row = app.get(result.id).row
        self.assertEqual((row.task, row.queue, row.priority), ("work.tasks.aadd", "mail", 7))
        self.assertEqual((result.task.queue_name, result.task.priority), ("mail", 7))

    def test_a_task_takes_its_context(self):
        result = tasks.says.enqueue("hello")
        self.jobs.drain()
        result.refresh()
        self.assertEqual(result.return_value, ["hello", 1, result.id])

    def test_each_failed_attempt_leaves_its_error(self):
        with self.assertLogs("{PACKAGE}", "ERROR") as logged:
            result = tasks.fails.enqueue("no")
            self.jobs.drain()
        self.assertIn("Declined: no", logged.output[-1])  # the handler has seen the exception
        result.refresh()
        self.assertEqual((result.status, result.attempts), (TaskResultStatus.FAILED, 2))
        self.assertEqual([each.exception_class for each in result.errors], [tasks.Declined] * 2)
        self.assertIn("Declined: no", result.errors[0].traceback)
        with self.assertRaisesRegex(ValueError, "Task failed"):
            result.return_value
        self.assertEqual([name for name, *_ in self.heard], ["enqueued", "started", "started", "finished"])

    def test_a_dead_worker_is_an_error_with_a_class(self):
        from holdfast.integrations.django.task_backend import WorkerLost

        result = tasks.dangerous.enqueue()
        self.jobs.crash(during=app.tasks["work.tasks.dangerous"])
        self.jobs.drain()
        result.refresh()
        self.assertEqual((result.status, result.attempts), (TaskResultStatus.READY, 1))  # held for a person
        self.assertEqual([each.exception_class for each in result.errors], [WorkerLost])
        app.resolve(result.id, "fail")
        result.refresh()
        self.assertEqual(result.status, TaskResultStatus.FAILED)

    def test_a_cancelled_task_has_failed(self):
        result = tasks.add.enqueue(1)
        app.cancel(result.id)
        result.refresh()
        self.assertEqual(result.status, TaskResultStatus.FAILED)

    def test_run_after_waits(self):
        result = tasks.add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1)
        self.jobs.run_due()
        result.refresh()
        self.assertEqual(result.status, TaskResultStatus.READY)
        self.jobs.advance(hours=2)
        result.refresh()
        self.assertEqual(result.status, TaskResultStatus.SUCCESSFUL)

    def test_what_cannot_be_enqueued_is_refused(self):
        backend = task_backends["default"]
        with self.assertRaises(TypeError):
            tasks.add.enqueue(object())
        with self.assertRaises(INVALID):
            tasks.add.using(queue_name="other")
        with self.assertRaises(INVALID):
            tasks.add.using(priority=101)
        with self.assertRaises(INVALID):
            backend.task_class(func=lambda: 1)
        with self.assertRaises(TaskResultDoesNotExist):
            backend.get_result("nothing")
        result = tasks.add.enqueue(1)
        with self.assertRaises(TaskResultMismatch):
            tasks.fails.get_result(result.id)
        other = app.task(name="other" + result.id)(outside).enqueue(1)
        with self.assertRaises(TaskResultDoesNotExist):
            backend.get_result(other.id)

    def test_a_result_that_is_not_json_fails_the_task(self):
        result = tasks.unfit.using().enqueue()
        app.get(result.id)
        self.jobs.run_due()
        result.refresh()
        self.assertEqual(result.errors[0].exception_class, TypeError)

    def test_an_enqueue_vanishes_with_its_atomic_block(self):
        with transaction.atomic():
            result = tasks.add.enqueue(1)
            transaction.set_rollback(True)
        with self.assertRaises(TaskResultDoesNotExist):
            task_backends["default"].get_result(result.id)

    def test_options_of_the_backend_and_of_a_task(self):
        self.assertEqual(app.tasks["work.tasks.dangerous"].policy.on_crash, "hold")
        self.assertEqual(app.tasks["work.tasks.add"].policy.timeout_s, 60)
        backend = task_backends["default"]
        self.assertTrue(backend.supports_defer and backend.supports_async_task)
        self.assertTrue(backend.supports_get_result and backend.supports_priority)
        self.assertEqual(list(backend.check()), [])
        backend.options = {{"timeout": 3}}
        self.addCleanup(setattr, backend, "options", {{"timeout_s": 60}})
        [error] = backend.check()
        self.assertIn("'timeout'", error.msg)
"""


@pytest.mark.slow  # it makes a test database and starts Python
def test_the_backend_keeps_each_line_of_the_contract(tmp_path: Path) -> None:
    package = tmp_path / "work"
    package.mkdir()
    (package / "__init__.py").touch()
    (tmp_path / "project_settings.py").write_text(SETTINGS)
    (package / "tasks.py").write_text(TASKS)
    (package / "tests.py").write_text(TESTS)
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "project_settings", "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-W", "error", "-m", "django", "test", "work"]
    ran = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert (ran.returncode, "\nOK\n" in ran.stderr) == (0, True), ran.stdout + ran.stderr
