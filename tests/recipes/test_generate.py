"""`holdfast generate`: each file fits its system, its commands are real, and its metrics exist."""

from __future__ import annotations

import configparser
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner
from jsonschema import Draft202012Validator
from promql_parser import parse

from holdfast.cli.generate import KINDS, STOP_MARGIN_S
from holdfast.cli.main import cli
from holdfast.runtime.metrics import METRICS
from tests.recipes.schemas import ALERTS, COMPOSE, DASHBOARD, SCALED_OBJECT, UNIT_KEYS, Schema

KUBERNETES = "1.35"


def generate(*words: str) -> str:
    found = CliRunner().invoke(cli, ["generate", *words], prog_name="holdfast")
    assert found.exit_code == 0, found.output
    return str(found.output)


def refused(*words: str) -> str:
    found = CliRunner().invoke(cli, ["generate", *words], prog_name="holdfast", standalone_mode=True)
    assert found.exit_code == 2
    return str(found.output)


def fits(schema: Schema, data: Any) -> None:
    errors = [
        f"{'/'.join(map(str, each.path))}: {each.message}" for each in Draft202012Validator(schema).iter_errors(data)
    ]
    assert not errors, "\n".join(errors)


def manifests(*words: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(generate("kubernetes", *words)))


def one(kind: str, name: str, found: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return next(each for each in found or manifests() if each["kind"] == kind and each["metadata"]["name"] == name)


def containers(found: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for each in found:
        spec = each["spec"].get("jobTemplate", each)["spec"] if each["kind"] == "CronJob" else each["spec"]
        yield from spec.get("template", {}).get("spec", {}).get("containers", ())


# --- Commands ----------------------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every command of Holdfast in the files."""
    for line in generate("systemd").splitlines():
        if line.startswith("ExecStart="):
            yield "systemd", shlex.split(line.partition("=")[2])
    for line in generate("cron").splitlines():
        if found := re.match(r"[\d*/ ]+ +holdfast +(holdfast .*)", line):
            yield "cron", shlex.split(found[1])
    [command] = [line for line in generate("dockerfile").splitlines() if line.startswith("CMD ")]
    yield "dockerfile", json.loads(command.removeprefix("CMD "))
    for service in yaml.safe_load(generate("compose"))["services"].values():
        if service.get("command", [""])[0] == "holdfast":
            yield "compose", service["command"]
    for container in containers(manifests()):
        yield "kubernetes", container["args"]


@pytest.mark.parametrize(("kind", "words"), list(commands()))
def test_every_command_in_a_recipe_is_one_that_the_program_has(kind: str, words: list[str]) -> None:
    assert words[0].endswith("holdfast")
    group: click.Command = cli
    rest = list(words[1:])
    context = click.Context(cli, info_name="holdfast")
    while isinstance(group, click.Group):
        found = group.get_command(context, rest.pop(0))
        assert found is not None, words
        group = found
    group.make_context(str(group.name), rest, parent=context)


# --- systemd -----------------------------------------------------------------------------------------------


def unit() -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False, allow_no_value=False)
    parser.optionxform = str  # type: ignore[assignment]
    parser.read_string(generate("systemd", "--grace-period", "1m"))
    return parser


def test_the_unit_has_only_keys_that_systemd_knows() -> None:
    for section in unit().sections():
        assert set(unit()[section]) <= UNIT_KEYS[section]


def test_the_unit_stops_later_than_the_grace_period_and_restarts_only_where_that_helps() -> None:
    service = unit()["Service"]
    assert int(service["TimeoutStopSec"]) == 60 + STOP_MARGIN_S
    assert "--grace-period 60s" in service["ExecStart"]
    assert (service["Type"], service["KillMode"], service["Restart"]) == ("notify", "mixed", "always")
    assert service["RestartPreventExitStatus"].split() == ["2", "3", "4"]
    assert "ProcSubset" not in service, "the worker reads its boot id below /proc/sys"


# --- containers --------------------------------------------------------------------------------------------


def test_the_compose_file_fits_its_schema_and_gives_workers_time_to_stop() -> None:
    found = yaml.safe_load(generate("compose", "--grace-period", "90s"))
    fits(COMPOSE, found)
    worker = found["services"]["worker"]
    assert worker["stop_grace_period"] == f"{90 + STOP_MARGIN_S}s"
    assert {name for service in found["services"].values() for name in service.get("depends_on", ())} <= set(
        found["services"]
    )


def test_the_image_runs_the_worker_as_process_1_and_not_as_root() -> None:
    lines = generate("dockerfile").splitlines()
    [command] = [line for line in lines if line.startswith("CMD")]
    assert json.loads(command.removeprefix("CMD "))[:3] == ["holdfast", "worker", "jobs:app"]
    assert "USER 10001" in lines
    assert lines.index("USER 10001") < lines.index(command)
    assert {line.split()[0] for line in lines if line and not line.startswith("#")} == {
        "FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "STOPSIGNAL", "EXPOSE", "CMD"
    }  # fmt: skip


# --- Kubernetes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(len(manifests())))
def test_every_manifest_fits_the_api(number: int) -> None:
    found = manifests()[number]
    if found["kind"] == "ScaledObject":
        fits(SCALED_OBJECT, found)
    else:
        kubernetes_validate.validate(found, KUBERNETES, strict=True)


def test_the_api_notices_a_probe_that_is_misspelt() -> None:
    found = one("Deployment", "holdfast-worker")
    [container] = found["spec"]["template"]["spec"]["containers"]
    container["livenessprobe"] = container.pop("livenessProbe")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(found, KUBERNETES, strict=True)


def test_a_worker_pod_has_probes_and_may_stop_for_as_long_as_it_needs() -> None:
    found = one("Deployment", "mail-worker", manifests("--name", "mail", "--grace-period", "2m"))
    pod = found["spec"]["template"]["spec"]
    [worker] = pod["containers"]
    pre_stop = int(worker["lifecycle"]["preStop"]["exec"]["command"][-1])
    assert pod["terminationGracePeriodSeconds"] == pre_stop + 120 + STOP_MARGIN_S
    assert worker["args"][worker["args"].index("--grace-period") + 1] == "120s"
    for probe in ("startupProbe", "livenessProbe"):
        assert worker[probe]["httpGet"] == {"path": "/health/live", "port": "metrics"}
    assert "readinessProbe" not in worker, "no Service sends requests to a worker"
    assert one("Deployment", "mail-reaper", manifests("--name", "mail"))["spec"]["replicas"] == 2


def test_labels_selectors_and_names_belong_together() -> None:
    found = manifests("--name", "mail")
    pods = [each["spec"]["template"]["metadata"]["labels"] for each in found if each["kind"] == "Deployment"]
    for each in found:
        selector = each["spec"].get("selector")
        if selector is not None:
            wanted = selector.get("matchLabels", selector)
            assert sum(wanted.items() <= labels.items() for labels in pods) == 1, each["metadata"]["name"]
    [scaled] = [each for each in found if each["kind"] == "ScaledObject"]
    assert one("Deployment", scaled["spec"]["scaleTargetRef"]["name"], found)
    assert all(container["securityContext"]["readOnlyRootFilesystem"] for container in containers(found))
    assert all("resources" in container for container in containers(found))


# --- metrics -----------------------------------------------------------------------------------------------

LABELS = {"instance", "job", "le"}


def expressions() -> Iterator[tuple[str, str]]:
    for group in yaml.safe_load(generate("alerts"))["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    for panel in json.loads(generate("grafana"))["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for found in manifests():
        for trigger in found["spec"].get("triggers", ()) if found["kind"] == "ScaledObject" else ():
            yield "KEDA", trigger["metadata"]["query"]


def series_of(text: str) -> dict[str, set[str]]:
    """Return the series of an expression, with the labels that it compares."""
    found: dict[str, set[str]] = {}
    for name, matchers in re.findall(r"\b(holdfast_\w+)(?:\{([^}]*)\})?", text):
        found.setdefault(name, set()).update(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
    return found


def kept_labels(text: str) -> set[str]:
    return {word for words in re.findall(r"\bby \(([^)]*)\)", text) for word in re.split(r"[,\s]+", words) if word}


@pytest.mark.parametrize(("name", "text"), list(expressions()))
def test_every_expression_is_promql_and_names_only_series_that_exist(name: str, text: str) -> None:
    for variable, value in (("$__rate_interval", "5m"), ("$__range", "1h"), ("$queue", ".*"), ("$task", ".*")):
        text = text.replace(variable, value)
    assert "$" not in text
    parse(text)
    found = series_of(text)
    assert found
    allowed = set(LABELS)
    for series, labels in found.items():
        base = re.sub(r"_(bucket|sum|count)$", "", series)
        metric = METRICS.get(series) or METRICS[base]
        assert (series == base) != (metric.kind == "histogram"), f"{series} is a {metric.kind}"
        assert labels <= set(metric.labels) | LABELS, series
        allowed |= set(metric.labels)
        if metric.source == "store":
            assert not re.search(rf"sum by \((?!instance)[^)]*\) \((?:rate|increase)?\(?{series}", text), (
                "every server answers the same facts of the store: their sum would count them twice"
            )
    assert kept_labels(text) <= allowed


def test_a_wrong_expression_is_noticed() -> None:
    with pytest.raises(ValueError, match=r"unexpected|unclosed|parse"):
        parse("max(holdfast_store_up")


def test_the_rules_and_the_dashboard_fit_their_schemas() -> None:
    rules = yaml.safe_load(generate("alerts", "--server", "https://jobs.example.org/ops"))
    fits(ALERTS, rules)
    named = [rule["alert"] for group in rules["groups"] for rule in group["rules"]]
    assert len(set(named)) == len(named)
    for group in rules["groups"]:
        for rule in group["rules"]:
            assert rule["annotations"]["page"].startswith("https://jobs.example.org/ops/")
    fits(DASHBOARD, json.loads(generate("grafana", "--name", "mail")))


def test_panels_do_not_lie_on_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(generate("grafana"))["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells, panel["title"]
        assert all(x < 24 for x, _ in cells)
        taken |= cells


def test_each_rule_has_a_case_in_which_it_fires_and_one_in_which_it_stays_silent() -> None:
    cases = yaml.safe_load((Path(__file__).parent / "alerts_test.yaml").read_text())
    fires: dict[str, set[bool]] = {}
    for test in cases["tests"]:
        for case in test["alert_rule_test"]:
            fires.setdefault(case["alertname"], set()).add(bool(case.get("exp_alerts")))
    rules = [rule["alert"] for group in yaml.safe_load(generate("alerts"))["groups"] for rule in group["rules"]]
    assert fires == {rule: {True, False} for rule in rules}


# --- the command -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_no_placeholder_is_left_and_every_choice_is_used(kind: str) -> None:
    assert not re.search(r"@[A-Z_]+@", generate(kind))
    assert generate(kind).endswith("\n")


@pytest.mark.parametrize(
    "words",
    [
        ["jobs.app"],
        ["jobs:app; rm -rf /"],
        ["--name", "Mail\nevil: true"],
        ["--image", "x\nUSER root"],
        ["--queue", 'a"} or vector(1)'],
        ["--server", "javascript:alert(1)"],
        ["--grace-period", "2d"],
    ],
)
def test_a_value_that_a_format_could_misread_is_refused(words: list[str]) -> None:
    assert "must be" in refused("kubernetes", *words)


def test_a_file_that_is_there_is_never_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.service"
    generate("systemd", "-o", str(file))
    before = file.read_text()
    assert "is there already" in refused("systemd", "other:app", "-o", str(file))
    assert file.read_text() == before
    assert "cannot be written" in refused("systemd", "-o", str(tmp_path / "no" / "folder"))
