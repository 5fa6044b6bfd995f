"""docs/clients.md names every client and server with the version that is installed."""

from __future__ import annotations

import json
import re

import pytest

from tests.real.install import HERE, REQUIREMENTS, ROOT
from tests.real.registry import CLIENTS, Client

TEXT = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")


def _pinned(environment: str, package: str) -> str:
    folder = HERE / environment / "package.json"
    if folder.exists():
        source = json.loads(folder.read_text(encoding="utf-8"))
        version: str = source["dependencies"][package]
        return version.rpartition("@")[2]
    pins = (REQUIREMENTS / f"{environment}.txt").read_text(encoding="utf-8")
    found = re.search(rf"^{re.escape(package)}==(\S+)", pins, re.MULTILINE)
    assert found, f"{package} is not pinned in {environment}"
    return found[1]


@pytest.mark.parametrize("client", [pytest.param(client, id=client.name) for client in CLIENTS])
def test_each_client_has_a_row_with_its_versions_and_its_variable(client: Client) -> None:
    versions = [_pinned(client.environment, package) for package in client.packages]
    rows = [line for line in TEXT.splitlines() if line.startswith("| ") and f"`{client.variable}`" in line]
    assert [row for row in rows if all(version in row for version in versions)], versions


@pytest.mark.parametrize(
    ("environment", "package"),
    [
        ("servers", "xllamacpp"),
        ("servers", "gguf"),
        ("servers", "llmock"),
        ("node", "@copilotkit/aimock"),
        ("codex", "@openai/codex"),
    ],
)
def test_each_server_is_named_with_its_version(environment: str, package: str) -> None:
    assert _pinned(environment, package) in TEXT


def test_node_is_named_with_its_version() -> None:
    pinned = (REQUIREMENTS / "node.in").read_text(encoding="utf-8").strip()
    assert f"node is {pinned.partition('==')[2]}" in TEXT
