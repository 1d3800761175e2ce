"""`holdfast port celery` reads a project, and runs none of it."""

from __future__ import annotations

from pathlib import Path

from holdfast.cli.celery_features import COUNTERPARTS, scan
from tests.cli.conftest import Run

PAGE = Path(__file__).parent.parent.parent / "docs" / "from-celery.md"
PROJECT = """
from celery import Celery, chord, shared_task
from celery.exceptions import Reject
from celery.signals import task_prerun

raise SystemExit("this code must not run")

app = Celery("shop")
app.conf.update(task_acks_late=True, accept_content=["json"])
app.conf.beat_schedule = {}
CELERY_TASK_TIME_LIMIT = 30
CELERY_MADE_UP = 1


@app.task(bind=True, max_retries=3)
def fetch(self, url):
    if not url:
        raise Reject("no", requeue=False)
    raise self.retry(countdown=5)


@shared_task(rate_limit="2/s")
def other(): ...


@task_prerun.connect
def before(**kwargs): ...


def send():
    fetch.apply_async(("x",), countdown=3)
    fetch.delay("y")
    chord([fetch.s("x")])(other.s())
"""


def test_a_project_is_listed_by_what_it_uses(run: Run, folder: Path) -> None:
    (folder / "tasks.py").write_text(PROJECT)
    (folder / "broken.py").write_text("def (")
    (folder / ".venv").mkdir()
    (folder / ".venv" / "theirs.py").write_text(PROJECT)
    found = run.json("port", "celery", ".")
    uses = {(use["kind"], use["name"]): use["fit"] for use in found["uses"]}
    assert uses == {
        ("setting", "task_acks_late"): "maps",
        ("setting", "accept_content"): "none",
        ("setting", "beat_schedule"): "maps",
        ("setting", "task_time_limit"): "maps",
        ("setting", "made_up"): "unknown",
        ("task option", "bind"): "maps",
        ("task option", "max_retries"): "maps",
        ("task option", "rate_limit"): "differs",
        ("exception", "Reject"): "maps",
        ("call", "retry"): "maps",
        ("call", "delay"): "maps",
        ("call", "apply_async"): "maps",
        ("call option", "countdown"): "maps",
        ("canvas", "chord"): "differs",
        ("signal", "task_prerun"): "maps",
    }
    assert found["unread"] == ["broken.py"]
    assert {use["file"] for use in found["uses"]} == {"tasks.py"}


def test_the_list_says_where_each_use_is(run: Run, folder: Path) -> None:
    (folder / "tasks.py").write_text(PROJECT)
    shown = run("port", "celery", "tasks.py", "--only", "none")
    assert "tasks.py:9" in shown.stdout
    assert "accept_content" in shown.stdout
    assert "max_retries" not in shown.stdout
    assert "1 has no counterpart; 1 is not known." in shown.stderr


def test_a_project_without_celery_has_nothing_to_port(run: Run, folder: Path) -> None:
    (folder / "app.py").write_text("queue = object()\nqueue.retry()\n")
    assert "Nothing of Celery was found." in run("port", "celery", ".").stderr
    assert "there is no nowhere" in run("port", "celery", "nowhere", code=2).stderr


def test_the_page_has_every_setting_of_the_table() -> None:
    page = PAGE.read_text("utf-8")
    missing = [name for kind, name in COUNTERPARTS if kind == "setting" and f"| `{name}` |" not in page]
    assert missing == []


def test_the_port_of_the_docs_is_read_without_a_fault() -> None:
    found, unread = scan(Path(__file__).parent.parent / "integrations" / "celery_shop.py")
    assert unread == []
    assert {use.name for use in found} >= {"task_acks_late", "autoretry_for", "bind"}
