"""The words of the command line: where they may stand, what they mean, and that each is documented."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import click
import pytest

from holdfast.cli.base import variable
from holdfast.cli.main import COMMANDS, cli
from holdfast.cli.types import Duration, WordList
from holdfast.core.machine import State
from holdfast.stores.protocol import Store
from tests.cli.conftest import Run, lose
from tests.factory import add, job_in

MANUAL = (Path(__file__).parent.parent.parent / "docs" / "cli.md").read_text("utf-8")
OWN_OUTPUT = {
    "server",
    "worker",
    "reaper",
    "jobs export",
    "completion",
    "generate",  # a file of another system
    "dev",  # the output of its programs
    "rescue init",
    "rescue watch",
}  # a log, lines of a format of their own, a script
EVERYWHERE = {"--help", "--db", "--token-file", "--verbose", "--quiet"}


def commands() -> Iterator[tuple[str, click.Command, click.Context]]:
    """Every command with the words that call it."""
    root = click.Context(cli, info_name="holdfast", auto_envvar_prefix="HOLDFAST")
    waiting = [("", cli, root)]
    while waiting:
        words, command, ctx = waiting.pop(0)
        if isinstance(command, click.Group):
            for name in command.list_commands(ctx):
                inner = command.get_command(ctx, name)
                assert inner is not None
                waiting.append((f"{words} {name}".strip(), inner, click.Context(inner, ctx, name)))
        if words:
            yield words, command, ctx


ALL = list(commands())
EACH = pytest.mark.parametrize(("words", "command", "ctx"), ALL, ids=[words for words, _, _ in ALL])


@EACH
def test_every_command_has_help_with_an_example(words: str, command: click.Command, ctx: click.Context) -> None:
    text = command.get_help(ctx)
    assert command.help
    assert "Examples:" in text
    examples = text.split("Examples:")[1]
    assert f"holdfast {words}" in examples
    assert all(len(line) <= 80 for line in examples.splitlines())
    for param in command.params:
        assert not isinstance(param, click.Option) or param.help, f"{param.name} has no help"


@EACH
@pytest.mark.parametrize("columns", [80, 120])
def test_help_fits_the_terminal(words: str, command: click.Command, ctx: click.Context, columns: int) -> None:
    narrow = click.Context(command, ctx.parent, ctx.info_name, terminal_width=columns)
    lines = command.get_help(narrow).splitlines()
    assert [line for line in lines if len(line) > columns] == []
    assert [line for line in lines[1:] if line.endswith("...")] == [], "a summary is cut"
    assert not any(first == second == "" for first, second in pairwise(lines))


@EACH
def test_every_command_and_option_is_in_the_manual(words: str, command: click.Command, ctx: click.Context) -> None:
    if isinstance(command, click.Group):
        return
    section = re.search(rf"^### `holdfast {words}\b.*?(?=^##)", MANUAL + "\n##", re.MULTILINE | re.DOTALL)
    assert section, f"docs/cli.md has no section for holdfast {words}"
    assert re.search(rf"^(\w+=\S+ )?holdfast .*{words.split()[-1]}", section[0], re.MULTILINE), "no example"
    flags = {flag for param in command.params if isinstance(param, click.Option) for flag in param.opts}
    missing = [
        flag for flag in flags if flag.startswith("--") and flag not in EVERYWHERE and f"`{flag}" not in section[0]
    ]
    assert not missing


@EACH
def test_every_command_prints_json(words: str, command: click.Command, ctx: click.Context) -> None:
    has_it = "--json" in {flag for param in command.params for flag in param.opts}
    assert has_it or isinstance(command, click.Group) or words in OWN_OUTPUT


def test_the_list_of_commands_says_what_each_says_of_itself() -> None:
    told = {words: str(command.help).splitlines()[0] for words, command, _ in ALL if " " not in words}
    assert told == COMMANDS


def test_variables_are_named_by_the_words_that_people_type() -> None:
    names = {
        variable(ctx, param)
        for _, command, ctx in ALL
        for param in command.params
        if isinstance(param, click.Option) and param.allow_from_autoenv
    }
    wanted = {"HOLDFAST_WORKER_SLOTS", "HOLDFAST_WORKER_NO_REAPER", "HOLDFAST_SCAN_JSON", "HOLDFAST_JOBS_LIST_STATE"}
    assert wanted <= names
    assert all(re.fullmatch(r"HOLDFAST(_[A-Z]+)+", name) for name in names)


def test_an_option_may_come_from_the_environment(run: Run, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        add(store)
    monkeypatch.setenv("HOLDFAST_JOBS_LIST_LIMIT", "2")
    monkeypatch.setenv("HOLDFAST_JOBS_LIST_JSON", "1")
    assert run("jobs", "list").stdout.count('"id"') == 2
    assert run("jobs", "list", "--limit", "1").stdout.count('"id"') == 1
    job_in(store, State.DEAD)
    monkeypatch.setenv("HOLDFAST_JOBS_LIST_STATE", "dead held")
    assert run("jobs", "list").stdout.count('"id"') == 1


@pytest.mark.parametrize(
    "words",
    [
        ["--db", "URL", "jobs", "list"],
        ["jobs", "--db", "URL", "list"],
        ["jobs", "list", "--db", "URL"],
        ["jobs", "list", "--db=URL", "--limit", "5"],
        ["--db", "sqlite:///wrong.db", "jobs", "list", "--db", "URL"],
    ],
)
def test_db_may_stand_anywhere_and_the_last_one_counts(
    run: Run, store: Store, url: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = add(store)
    monkeypatch.setenv("HOLDFAST_DB", "sqlite:///elsewhere.db")
    assert job.id in run(*[word.replace("URL", url) for word in words]).stdout


def test_without_db_the_environment_decides_and_then_the_folder(
    run: Run, store: Store, url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = add(store)
    assert job.id in run("jobs", "list").stdout
    monkeypatch.delenv("HOLDFAST_DB")
    assert f"no store at {folder}/holdfast.db" in run("jobs", "list", code=3).stderr


def test_quiet_leaves_data_and_errors(run: Run, store: Store) -> None:
    lose(store)
    assert run("scan").stderr
    assert run("-q", "scan").stderr == run("scan", "--quiet").stderr == ""
    assert run("-q", "scan").stdout == run("scan").stdout
    assert run("-q", "jobs", "show", "nobody", code=5).stderr


@pytest.mark.parametrize(
    "words",
    [
        ("scan",),
        ("scan", "--fix"),
        ("scan", "--check"),
        ("zombies",),
        ("jobs", "list"),
        ("jobs", "export"),
        ("held", "list"),
        ("dead", "list"),
        ("dead", "purge", "-y", "--older-than", "1d"),
        ("dead", "revive", "--all", "-y"),
        ("queues", "list"),
        ("queues", "pause", "mail"),
        ("schedules", "list"),
        ("workers", "list"),
        ("db", "init"),
        ("db", "migrate"),
        ("db", "check"),
        ("db", "prune", "--older-than", "1d"),
    ],
)
def test_quiet_and_nothing_to_say_is_silence(run: Run, store: Store, words: tuple[str, ...]) -> None:
    assert run(*words).output or words[0] == "jobs"
    assert run(*words, "-q").output == ""


def test_quiet_acts_are_silent_and_json_stays(run: Run, store: Store) -> None:
    first, second = job_in(store, State.DEAD), job_in(store, State.DEAD)
    assert run("jobs", "retry", first.id, "-q").output == ""
    assert [job["id"] for job in json.loads(run("jobs", "retry", second.id, "-q", "--json").stdout)] == [second.id]
    assert json.loads(run("scan", "-q", "--json").stdout)["zombies_found"] == 0
    assert json.loads(run("db", "prune", "-q", "--older-than", "1d", "--json").stdout) == {"deleted": 0}


def test_verbose_shows_the_log(run: Run, store: Store, caplog: pytest.LogCaptureFixture) -> None:
    lose(store)
    run("scan", "--fix", "-v")
    assert "zombie: job" in caplog.text


def test_a_mistyped_command_gets_a_guess(run: Run) -> None:
    assert "Did you mean 'jobs'?" in run("job", code=2).stderr
    assert "No such command 'xyzzy'" in run("xyzzy", code=2).stderr
    for noun in ("held", "dead"):
        assert "Did you mean `holdfast jobs show ID`?" in run(noun, "show", "j1", code=2).stderr
        assert "No such command 'xyzzy'" in run(noun, "xyzzy", code=2).stderr


def test_version(run: Run) -> None:
    assert re.fullmatch(r"holdfast \d+\.\d+\.\d+\n", run("--version").stdout)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 30.0),
        ("0.5", 0.5),
        ("500ms", 0.5),
        ("90s", 90.0),
        ("15m", 900.0),
        ("15min", 900.0),
        ("1h30m", 5400.0),
        ("1h 30m", 5400.0),
        ("7d", 604_800.0),
        ("2W", 1_209_600.0),
        ("0", 0.0),
    ],
)
def test_lengths_of_time(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-5", "5x", "h", "1h30", "nan", "inf", "1e9", "99999999d", "٣s"])
def test_what_is_no_length_of_time(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Duration().convert(text, None, None)


def test_words_with_commas() -> None:
    assert WordList().convert("mail, media,,mail", None, None) == ("mail", "media")
    with pytest.raises(click.BadParameter):
        WordList().convert(" , ", None, None)
    with pytest.raises(click.BadParameter, match="done"):
        WordList(("done", "dead")).convert("done,gone", None, None)


def test_completion_knows_commands_options_and_choices(run: Run) -> None:
    from click.shell_completion import ShellComplete

    complete = ShellComplete(cli, {}, "holdfast", "_HOLDFAST_COMPLETE").get_completions
    assert "jobs" in [item.value for item in complete([], "j")]
    assert [item.value for item in complete(["jobs"], "sh")] == ["show"]
    assert "held" in [item.value for item in complete(["jobs", "list", "--state"], "h")]
