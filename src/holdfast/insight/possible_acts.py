"""The acts that a person may choose for a job, as values: the command line and pages render them in their own way."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from holdfast.core.records import Job

ActName = Literal[
    "approve",
    "done",
    "fail",
    "revive",
    "retry",
    "retry_from",
    "fork",
    "rollback",
    "cancel",
    "delete",
    "signal",
    "resume_queue",
    "resume_workers",
    "see_limits",
    "start_worker",
    "recover",
]

_CONSEQUENCES: dict[ActName, str] = {
    "approve": "it runs again, with fresh budgets",
    "done": "it counts as done, and is not run again",
    "fail": "it becomes dead, and nothing is undone",
    "revive": "it runs again, with fresh budgets",
    "retry": "it runs again, with fresh budgets",
    "retry_from": "that step and later ones run again",
    "fork": "a new workflow begins with what this one recorded before that step; this one stays as it is",
    "rollback": "a worker undoes its recorded steps, in the reverse order",
    "cancel": "it stops, and is not run again",
    "delete": "the job and its history are gone for good",
    "signal": "the workflow continues",
    "resume_queue": "workers claim from the queue again",
    "resume_workers": "workers of this name claim again",
    "see_limits": "nothing is changed",
    "start_worker": "the worker claims it",
    "recover": "its attempt counts as lost, and on_crash decides what follows",
}


class PossibleAct(msgspec.Struct, frozen=True):
    """An act that a person may choose.

    arguments: with the fence, so that the act counts only for the job that the person saw. needs: arguments that the
    person still has to give.
    """

    words: str
    act: ActName
    arguments: dict[str, Any] = {}
    needs: tuple[str, ...] = ()
    consequence: str = ""


def possible(words: str, act: ActName, *needs: str, consequence: str | None = None, **arguments: Any) -> PossibleAct:
    """Make one that is not about a job."""
    given = {name: value for name, value in arguments.items() if value is not None}
    return PossibleAct(words, act, given, needs, consequence or _CONSEQUENCES[act])


def on_job(
    job: Job, words: str, act: ActName, *needs: str, consequence: str | None = None, **arguments: Any
) -> PossibleAct:
    """Make one about a job as it is now."""
    return possible(words, act, *needs, consequence=consequence, id=job.id, fence=job.fence, **arguments)


def act_view(choice: PossibleAct) -> dict[str, Any]:
    """Show an act that a person may choose."""
    return {**msgspec.structs.asdict(choice), "needs": list(choice.needs)}
