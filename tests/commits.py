"""Check the messages of new commits: `python -m tests.commits`, which `make check` runs.

A subject is an imperative sentence of at most 72 characters, and a blank line separates it from the body. The
imperative is a guess by the first word's ending. Only commits after BASE are checked. Without git or without BASE, as
in a source archive or a shallow clone, there is nothing to check.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BASE = "11b29005841908d3fce9070fc9bb19cf96538ff1"  # older commits follow other rules
SUBJECT_MAX = 72
CAPITALISED = re.compile(r"[A-Z][a-z]+(-[a-z]+|'t)?")
OTHER_FORM = re.compile(r"(?<!e)ed$|ing$|(?<![su])s$")
VERBS = {"Bring", "Cling", "Embed", "Fling", "Ping", "Ring", "Shed", "Shred", "Sling", "String", "Swing", "Wring"}


def faults(message: str) -> Iterator[str]:
    """Say what is wrong with a commit message."""
    subject, *rest = message.rstrip("\n").split("\n")
    if len(subject) > SUBJECT_MAX:
        yield f"the subject has {len(subject)} characters; at most {SUBJECT_MAX}"
    if subject.startswith("Review:"):
        yield "the subject says where the change comes from, not what it does"
    if subject.endswith("."):
        yield "the subject ends with a full stop"
    action = re.sub(r"^\w+: (\w)", lambda area: area[1].upper(), subject)  # "Reaper: don't …"
    word = re.split(r"[\s,;]", action)[0]
    if not CAPITALISED.fullmatch(word):
        yield f"the subject begins with {word!r}, not with a capitalised verb"
    elif word not in VERBS and OTHER_FORM.search(word):
        yield f"{word!r} is not imperative"
    if rest and rest[0].strip():
        yield "a blank line is missing after the subject"


def without_git(environment: Mapping[str, str]) -> dict[str, str]:
    """Leave out what a git hook sets: GIT_DIR would lead every command to the repository of the hook."""
    return {name: value for name, value in environment.items() if not name.startswith("GIT_")}


def new_commits(root: Path, base: str) -> list[tuple[str, str]] | None:
    """Return (id, message) of each commit after `base`, merges left out; None where git cannot tell."""
    git = ["git", "-c", "safe.directory=*", "log", "--no-merges", "--format=%h%x00%B%x01", f"{base}..HEAD"]
    try:
        run = subprocess.run(
            git,
            cwd=root,
            env=without_git(os.environ),
            capture_output=True,
            check=True,
            encoding="utf-8",
            errors="replace",
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    commits = (entry.strip("\n").partition("\0") for entry in run.stdout.split("\1"))
    return [(commit, message) for commit, _, message in commits if commit]


def check(root: Path, base: str) -> int:
    commits = new_commits(root, base)
    if commits is None:
        print(f"commit messages: not checked, because git or commit {base[:7]} is not here")
        return 0
    wrong = [f"{commit} {fault}: {message[:90]!r}" for commit, message in commits for fault in faults(message)]
    print("\n".join(wrong) if wrong else f"commit messages: {len(commits)} since {base[:7]}, all in order")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(check(ROOT, BASE))
