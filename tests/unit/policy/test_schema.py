from __future__ import annotations

import json
import re
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from proxy.policy.findings import Finding, FindingList
from proxy.policy.format import ROUTE_SETTINGS
from proxy.policy.kinds import Place
from proxy.policy.load import check
from proxy.policy.model import MIB, Match, Route
from proxy.policy.records import Anything
from proxy.policy.schema import policy_schema, schema_text
from proxy.policy.starter import STARTER_POLICY
from proxy.policy.yaml_source import parse_yaml

ROOT = Path(__file__).resolve().parents[3]
SHIPPED = sorted((ROOT / "policies").rglob("*.yaml"))


def as_json(text: str) -> Any:
    """Read YAML as YAML 1.2 does, so that off is a word."""
    findings = FindingList()
    node = parse_yaml("f", text.replace(": off", ': "off"').encode(), findings)
    assert node is not None
    return Anything().read(node, Place("", findings))


def test_the_schema_in_the_repository_is_fresh() -> None:
    assert (ROOT / "policies" / "policy.schema.json").read_text() == schema_text(), "run: make schema"


def test_the_schema_is_valid() -> None:
    Draft202012Validator.check_schema(policy_schema())
    assert json.loads(schema_text()) == policy_schema()


def unexpected(paths: list[str]) -> list[Finding]:
    """Return findings, without those that two examples have on purpose: their lanes are yet to come."""
    found = check(paths, {"OPENAI_API_KEY": "sk-test"})
    return [finding for finding in found if not finding.problem.startswith("accepted, but this version")]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_policies_are_valid_by_schema_and_check(path: Path) -> None:
    Draft202012Validator(policy_schema()).validate(as_json(path.read_text()))
    assert unexpected([str(path)]) == []


def test_shipped_directories_are_sets() -> None:
    assert check([str(ROOT / "policies")], {}) == []
    assert unexpected([str(ROOT / "policies" / "examples")]) == []


def test_the_starter_is_valid_as_it_is_and_with_its_comments_taken_up(tmp_path: Path) -> None:
    Draft202012Validator(policy_schema()).validate(as_json(STARTER_POLICY))
    path = tmp_path / "p.yaml"
    path.write_text(STARTER_POLICY)
    assert check([str(path)], {}) == []
    lines = [
        line.replace("# ", "", 1)
        if line.lstrip().startswith(("# upst", "#   ", "#     ", "# - ", "# model", "# headers"))
        else line
        for line in STARTER_POLICY.splitlines()
    ]
    path.write_text("\n".join(lines) + "\n")
    assert "add_stop" in "".join(line for line in lines if not line.lstrip().startswith("#"))
    assert check([str(path)], {"OPENAI_API_KEY": "sk-test"}) == []


@pytest.mark.parametrize(
    "text",
    [
        "version: 2",
        "routes: []",
        "version: 1\nrouts: []",
        "version: 1\nroutes: [{name: r}]",
        "version: 1\nroutes: [{name: r, match: {model: []}}]",
        "version: 1\nroutes: [{name: r, match: {}, headers: loud}]",
        "version: 1\nroutes: [{name: r, match: {}, commit_after: 5}]",
        "version: 1\nroutes: [{name: r, match: {}, commit_after: soon}]",
        "version: 1\nroutes: [{name: r, match: {}, max_body: 64KB}]",
        "version: 1\nroutes: [{name: r, match: {}, max_concurrent: -1}]",
        "version: 1\nroutes: [{name: r, match: {}, steps: [no_such_step]}]",
        "version: 1\nroutes: [{name: r, match: {}, steps: [{cap_output: {most: 5}}]}]",
    ],
)
def test_refuses_what_check_refuses(write: Callable[..., str], text: str) -> None:
    assert not Draft202012Validator(policy_schema()).is_valid(as_json(text))
    assert check([write(text + "\n")], {}) != []


def test_every_key_of_the_format_is_documented() -> None:
    page = (ROOT / "docs" / "policies.md").read_text()

    def keys(schema: Any) -> set[str]:
        found: set[str] = set()
        if isinstance(schema, dict):
            found |= set(schema.get("properties", {}))
            for key, value in schema.items():
                # Steps have pages of their own.
                if key != "steps":
                    found |= keys(value)
        elif isinstance(schema, list):
            for value in schema:
                found |= keys(value)
        return found

    assert {key for key in keys(policy_schema()) if f"`{key}`" not in page} == set()


def _spelled(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case Enum():
            return str(value.value)
        case None:
            return "off"
        case float():
            return f"{value:g}s"
        case int() if value % MIB == 0 and value > 0:
            return f"{value // MIB}MiB"
        case _:
            return str(value)


def test_documented_defaults_of_route_settings_are_the_real_ones() -> None:
    page = (ROOT / "docs" / "policies.md").read_text()
    documented = dict(re.findall(r"^\| `(\w+)` \| (?:`([^`]*)`|none) \|", page, re.MULTILINE))
    route = Route("r", Match())
    real = {key: _spelled(getattr(route, field)) for key, (field, _) in ROUTE_SETTINGS.items()}
    real["allow_caller"] = ""
    assert {key: documented.get(key) for key in real} == real
