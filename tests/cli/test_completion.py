"""holdfast completion: the script that a shell is given works in that shell."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.core.published import PublishedTask
from holdfast.stores.protocol import Store
from tests.cli.conftest import Run
from tests.factory import add, enrol, make_job

BASH = shutil.which("bash")
PRESS_TAB = """
eval "$(holdfast completion bash)"
complete -p holdfast
press_tab() {
    COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
    _holdfast_completion holdfast
    echo "${COMPREPLY[*]}"
}
press_tab holdfast zo
press_tab holdfast jobs ""
press_tab holdfast jobs list --st
press_tab holdfast jobs list --state he
press_tab holdfast workflows ro
press_tab holdfast completion f
"""


@pytest.fixture
def shell(folder: Path) -> dict[str, str]:
    """An environment in which `holdfast` is this very program."""
    program = folder / "holdfast"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m holdfast "$@"\n')
    program.chmod(0o700)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


@pytest.mark.skipif(BASH is None, reason="there is no bash here")
def test_a_real_bash_completes(shell: dict[str, str]) -> None:
    command = [str(BASH), "--norc", "-c", PRESS_TAB]
    done = subprocess.run(command, env=shell, capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    installed, *answers = done.stdout.splitlines()
    assert "-F _holdfast_completion holdfast" in installed
    assert answers[0] == "zombies"
    assert {"list", "show", "export"} <= set(answers[1].split())
    assert answers[2:] == ["--state", "held", "rollback", "fish"]


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_each_script_says_how_to_install_it(run: Run, name: str) -> None:
    script = run("completion", name).stdout
    [line] = [line for line in script.splitlines()[:2] if line.startswith("# To install: ")]
    assert f"holdfast completion {name}" in line
    assert f"{name}_complete" in script


def test_the_first_line_of_zsh_stays_the_first(run: Run) -> None:
    assert run("completion", "zsh").stdout.startswith("#compdef holdfast\n")


def test_the_shell_may_come_from_the_environment(run: Run) -> None:
    assert run("completion", env={"SHELL": "/usr/bin/fish"}).stdout == run("completion", "fish").stdout
    assert "say which shell" in run("completion", env={"SHELL": "/bin/tcsh"}, code=2).stderr
    assert "say which shell" in run("completion", env={"SHELL": ""}, code=2).stderr
    assert "powershell" in run("completion", "powershell", code=2).stderr


@pytest.mark.skipif(BASH is None, reason="there is no bash here")
def test_names_that_the_store_knows_are_completed(store: Store, shell: dict[str, str]) -> None:
    add(store, queue="media")
    enrol(store, name="box")
    store.publish([PublishedTask(job=make_job(id="", task="shop.mail.send"))])
    script = PRESS_TAB.split("press_tab holdfast zo")[0] + (
        "press_tab holdfast queues pause me\n"
        "press_tab holdfast jobs list --task shop\n"
        "press_tab holdfast jobs cancel --queue m\n"
        "press_tab holdfast workers drain b\n"
        "HOLDFAST_DB=sqlite:////nowhere/at/all.db press_tab holdfast workers drain b\n"
    )
    done = subprocess.run([str(BASH), "--norc", "-c", script], env=shell, capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    assert done.stdout.splitlines()[1:] == ["media", "shop.mail.send", "media", "box", ""]
