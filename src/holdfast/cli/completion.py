"""`holdfast completion`: make a shell complete commands, options and their values."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from holdfast.cli.base import Command
from holdfast.errors import UsageError

# How a shell loads it for good. Each takes effect in the next shell.
_INSTALL = {
    "bash": """echo 'eval "$(holdfast completion bash)"' >> ~/.bashrc""",
    "zsh": """echo 'eval "$(holdfast completion zsh)"' >> ~/.zshrc   (after compinit)""",
    "fish": "holdfast completion fish > ~/.config/fish/completions/holdfast.fish",
}


@click.command(
    cls=Command,
    epilog="""
    eval "$(holdfast completion bash)"
    holdfast completion fish > ~/.config/fish/completions/holdfast.fish
    """,
)
@click.argument("shell", metavar="[bash|zsh|fish]", required=False, type=click.Choice([*_INSTALL]))
@click.pass_context
def completion(ctx: click.Context, shell: str | None) -> None:
    """Print the completion script of a shell.

    The script says in a comment how to install it. Without an argument the shell is the one that $SHELL names.
    """
    shell = shell or Path(os.environ.get("SHELL", "")).name
    made = get_completion_class(shell)
    if shell not in _INSTALL or made is None:
        raise UsageError("say which shell: holdfast completion bash, zsh or fish")
    script = made(ctx.find_root().command, {}, "holdfast", "_HOLDFAST_COMPLETE").source().strip()
    first, _, rest = script.partition("\n")
    lines = [first, rest] if first.startswith("#compdef") else ["", script]  # which zsh wants as the first line
    click.echo(f"{lines[0]}\n# To install: {_INSTALL[shell]}\n{lines[1]}".strip())
