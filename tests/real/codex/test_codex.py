"""A coding agent's command line through Weir: its websocket attempt, its fallback, and HTTP from the start.

Not part of `make real`: the package is a binary of 400 MB. Run by `make real-codex`.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real.install import npm_folder
from tests.real.processes import Server, aimock, clean_environment
from tests.real.served import Setup, origin_of
from tests.support.weir_process import WeirProcess, weir_process

QUESTION = "What is a weir?"
TEXT = "A weir is a low dam."
KEY = "sk-test-of-a-client"
RUN_SECONDS = 60


def _binary() -> Path:
    return next(npm_folder("codex").glob("node_modules/@openai/codex-*/vendor/*/bin/codex"))


def codex(home: Path, *settings: str) -> list[dict[str, Any]]:
    """Ask one question; return the events that codex prints."""
    folder = home / "codex"
    folder.mkdir(exist_ok=True)
    options = [part for setting in settings for part in ("-c", setting)]
    command = [
        str(_binary()),
        "exec",
        "--skip-git-repo-check",
        "--json",
        "-m",
        "gpt-5-mini",
        *options,
        QUESTION,
    ]
    done = subprocess.run(
        command,
        cwd=folder,
        env=clean_environment(home, CODEX_HOME=str(folder), CODEX_API_KEY=KEY, OPENAI_API_KEY=KEY),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def spoken(events: list[dict[str, Any]]) -> list[str]:
    """Return what the agent said."""
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    return [item["text"] for item in items if item["type"] == "agent_message"]


def usage(events: list[dict[str, Any]]) -> dict[str, int]:
    """Return what the turn used."""
    (ended,) = [event for event in events if event["type"] == "turn.completed"]
    used: dict[str, int] = ended["usage"]
    return used


def _methods(weir: WeirProcess) -> list[tuple[str, int]]:
    """Return method and status of the exchanges on /v1/responses, in order."""
    lines = map(json.loads, weir.log_file.read_text(encoding="utf-8").splitlines())
    return [(one["method"], one["status"]) for one in lines if one["path"] == "/v1/responses"]


def test_falls_back_to_http_where_the_server_has_no_websockets(simulated: Setup, home: Path) -> None:
    direct = codex(home, f'openai_base_url="{simulated.server.url}/v1"')
    through = codex(home, f'openai_base_url="{origin_of(simulated.shipped)}/v1"')
    assert spoken(through)
    assert "Falling back from WebSockets" in json.dumps(through)
    *attempts, last = _methods(simulated.shipped)
    assert set(attempts) == {("GET", 405)}
    assert last == ("POST", 200)
    # Its prompt names the day and the folder, so texts may differ; what it found out about the server not.
    assert [event["type"] for event in through] == [event["type"] for event in direct]
    assert usage(through).keys() == usage(direct).keys()


def test_speaks_http_from_the_start_to_a_provider_that_it_is_given(simulated: Setup, home: Path) -> None:
    url = f"{origin_of(simulated.everything)}/v1"
    provider = f'{{name="weir", base_url="{url}", env_key="OPENAI_API_KEY", wire_api="responses"}}'
    events = codex(home, 'model_provider="weir"', f"model_providers.weir={provider}")
    assert spoken(events)
    assert usage(events)["output_tokens"] > 0
    assert _methods(simulated.everything) == [("POST", 200)]


@pytest.fixture(scope="module")
def speaking(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, WeirProcess]]:
    """aimock, which has websockets, with Weir in front."""
    folder = tmp_path_factory.mktemp("aimock")
    fixtures = folder / "fixtures.json"
    fixture = {"match": {"userMessage": "weir"}, "response": {"content": TEXT}}
    fixtures.write_text(json.dumps({"fixtures": [fixture]}), encoding="utf-8")
    with (
        aimock(home, fixtures) as server,
        weir_process(folder, f"{server.url}/v1") as weir,
    ):
        yield server, weir


def test_keeps_its_websocket_through_weir(speaking: tuple[Server, WeirProcess], home: Path) -> None:
    server, weir = speaking
    direct = codex(home, f'openai_base_url="{server.url}/v1"')
    host, port = weir.address
    through = codex(home, f'openai_base_url="http://{host}:{port}/v1"')
    assert spoken(through) == spoken(direct) == [TEXT]
    assert {one for one in _methods(weir) if one[0] == "GET"} == {("GET", 101)}
    assert ("POST", 200) not in _methods(weir)
