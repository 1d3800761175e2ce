"""The commands for the acts that a person may choose."""

from __future__ import annotations

from shlex import quote

from holdfast.insight.possible_acts import ActName, PossibleAct

_WORDS: dict[ActName, str] = {
    "approve": "held approve",
    "done": "held done",
    "fail": "held fail",
    "revive": "dead revive",
    "retry": "jobs retry",
    "retry_from": "workflows retry",
    "fork": "workflows fork",
    "rollback": "workflows rollback",
    "cancel": "jobs cancel",
    "delete": "jobs delete",
    "signal": "workflows signal",
    "resume_queue": "queues resume",
    "resume_workers": "workers resume",
    "see_limits": "queues limit",
    "start_worker": "worker APP",
    "recover": "scan --fix",
}
_NEEDS = {"result": "--result JSON", "step": "--from-step NAME", "value": "JSON"}


def command_of(choice: PossibleAct) -> str:
    """Return the command that carries out an act; what a person has to fill in stands in capitals."""
    given = choice.arguments
    words = ["holdfast", _WORDS[choice.act]]
    if "id" in given:
        words.append(quote(given["id"]))
    if choice.act in ("signal", "resume_workers"):
        words.append(quote(given["name"]))
    elif "fence" in given and choice.act != "fork":  # a fork leaves the job as it is
        words.append(f"--fence {given['fence']}")
    if "queue" in given:
        words.append(f"--queues {quote(given['queue'])}" if choice.act == "start_worker" else quote(given["queue"]))
    if "group" in given:
        words.append(f"--group {quote(given['group'])}")
    if given.get("repeat_step"):
        words.append("--repeat-step")
    return " ".join([*words, *(_NEEDS[each] for each in choice.needs)])
