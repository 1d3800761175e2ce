"""The check of commit messages finds what it forbids, and passes where there is no history."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.commits import check, faults, without_git

FINE = [
    "Keep a recovered job's place in its queue",
    "Reaper: don't treat a long pass as a store outage",
    "Pass the fence on\n\nWhy: it was lost.",
    "Bring the old index back",
    "Feed the claim from one cursor",
    'Revert "Keep a recovered job\'s place in its queue"',
    "Re-read the row after a conflict",
    "x".capitalize() + "y" * 70,
]
WRONG = [
    ("Keep " + "x" * 68, "73 characters"),
    ("Review: tick checks its budget", "where the change comes from"),
    ("Keep the place.", "full stop"),
    ("keep the place", "capitalised verb"),
    ("Fixed the place", "not imperative"),
    ("Fixing the place", "not imperative"),
    ("Fixes the place", "not imperative"),
    ("Reaper: keeps the place", "not imperative"),
    ("Keep the place\nof a job", "blank line"),
    ("", "capitalised verb"),
]


@pytest.mark.parametrize("message", FINE)
def test_a_plain_imperative_subject_passes(message: str) -> None:
    assert list(faults(message)) == []


@pytest.mark.parametrize(("message", "words"), WRONG)
def test_each_fault_of_a_message_is_named(message: str, words: str) -> None:
    assert any(words in fault for fault in faults(message))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    try:
        git(tmp_path, "init", "-q")
    except FileNotFoundError:
        pytest.skip("git is not installed")
    commit(tmp_path, "fixed things.")
    return tmp_path


def test_only_commits_after_the_base_count(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = git(repository, "rev-parse", "HEAD")
    commit(repository, "Keep the place")
    assert check(repository, base) == 0
    assert "1 since" in capsys.readouterr().out
    commit(repository, "Fixed the place")
    assert check(repository, base) == 1
    assert "'Fixed' is not imperative" in capsys.readouterr().out


def test_a_git_hook_does_not_lead_the_check_to_another_repository(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base = git(repository, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(repository / "elsewhere"))
    assert check(repository, base) == 0
    assert "0 since" in capsys.readouterr().out


def test_nothing_is_checked_in_a_shallow_clone(
    repository: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    base = git(repository, "rev-parse", "HEAD")
    commit(repository, "Fixed the place")
    clone = tmp_path_factory.mktemp("clone")
    git(clone, "clone", "-q", "--depth=1", f"file://{repository}", ".")
    assert check(clone, base) == 0
    assert "not checked" in capsys.readouterr().out


def test_nothing_is_checked_in_a_source_archive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(tmp_path, "0" * 40) == 0
    assert "not checked" in capsys.readouterr().out


def test_nothing_is_checked_without_git(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert check(tmp_path, "0" * 40) == 0
    assert "not checked" in capsys.readouterr().out


def commit(folder: Path, message: str) -> None:
    git(folder, "commit", "-q", "--allow-empty", "-m", message)


def git(folder: Path, *words: str) -> str:
    me = {"GIT_AUTHOR_NAME": "Ann", "GIT_AUTHOR_EMAIL": "ann@example.org"}
    env = {**without_git(os.environ), **me, "GIT_COMMITTER_NAME": "Ann", "GIT_COMMITTER_EMAIL": "ann@example.org"}
    run = subprocess.run(["git", *words], cwd=folder, env=env, capture_output=True, check=True, text=True)
    return run.stdout.strip()
