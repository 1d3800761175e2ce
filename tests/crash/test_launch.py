"""What a handler changes in its process does not reach the processes that the worker starts later."""

from pathlib import Path

import pytest

from holdfast import App
from tests.stores.test_protected import worker

WANDERER = """
import os
from holdfast import App

app = App("sqlite:///jobs.db")

@app.task
def wander(folder: str) -> str:
    os.chdir(folder)
    os.environ["WANDERED"] = "yes"
    os.environ.pop("HOME", None)
    return os.getcwd()

@app.task(isolate=True)
def report() -> list:
    written.enqueue()
    return [os.getcwd(), os.environ.get("WANDERED"), "HOME" in os.environ, App("sqlite:///jobs.db").url]

@app.task
def written() -> None: ...
"""


@pytest.mark.slow
def test_a_handler_that_changes_its_folder_or_environment_changes_only_its_own_process(tmp_path: Path) -> None:
    """Slow: a worker is started. Its isolated processes used to make a second store in the new folder."""
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    for folder in (project, elsewhere):
        folder.mkdir()
    (project / "wanderer.py").write_text(WANDERER)
    with App(f"sqlite:///{project}/jobs.db") as app:

        @app.task(name="wanderer.wander")
        def wander(folder: str) -> str:
            return folder

        @app.task(name="wanderer.report")
        def report() -> list[object]:
            return []

        with worker(project, "wanderer:app", "--recycle-jobs", "1"):
            assert wander.enqueue(str(elsewhere)).result(60) == str(elsewhere)
            for _ in range(3):  # the first processes may have been started before
                assert report.enqueue().result(60) == [str(project), None, True, f"sqlite:///{project}/jobs.db"]
        assert len(app.find(task="wanderer.written")) == 3
    assert list(elsewhere.iterdir()) == []
