"""The servers that these tests share: one of each for a worker, with Weir in front of it in two ways."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.real.install import ROOT
from tests.real.processes import Server, llama, simulator
from tests.real.registry import KEY
from tests.real.recorder import Recorder, recorded
from tests.support.weir_process import WeirProcess, weir_process

LOG_SECONDS = 5.0
EVERYTHING_ADDED = """
version: 1
defaults: {usage: ask, headers: full, timing_comment: true, heartbeat: 50ms, commit_after: 100ms}
routes:
  - name: chat
    match: {path: /v1/chat/completions}
    steps: [cap_output: {max: 100000}]
  - {name: completions, match: {path: /v1/completions}}
  - {name: responses, match: {path: /v1/responses}}
  - {name: messages, match: {path: /v1/messages}}
  - {name: embeddings, match: {path: /v1/embeddings}}
"""
"""All that Weir may add to an answer, and a step that reads every request: usage asked for and taken out again,
heartbeats and the timing comment between events, heads that go before the first token."""


@dataclass(frozen=True, slots=True)
class Setup:
    """A server, what it was sent, and Weir in front of it: as shipped, and with everything added."""

    server: Server
    recorder: Recorder
    shipped: WeirProcess
    everything: WeirProcess


class Log:
    """What a Weir's access log gets from now on."""

    def __init__(self, weir: WeirProcess) -> None:
        self._file = weir.log_file
        self._seen = len(self._lines())

    def _lines(self) -> list[str]:
        return self._file.read_text(encoding="utf-8").splitlines() if self._file.exists() else []

    def records(self, count: int) -> list[dict[str, Any]]:
        """Return the records so far, once there are `count`."""
        deadline = time.monotonic() + LOG_SECONDS
        while len(lines := self._lines()[self._seen :]) < count:
            assert time.monotonic() < deadline, f"only {len(lines)} of {count} records"
            time.sleep(0.02)
        return [json.loads(line) for line in lines]


def origin_of(weir: WeirProcess) -> str:
    """Return the URL of a Weir without a path."""
    host, port = weir.address
    return f"http://{host}:{port}"


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what programs write."""
    return tmp_path_factory.mktemp("home")


def _setup(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    with recorded(server.url) as recorder:
        upstream = f"{recorder.url}/v1"
        folders = tmp_path_factory.mktemp("shipped"), tmp_path_factory.mktemp("everything")
        with (
            weir_process(folders[0], upstream, "--policies", str(ROOT / "policies")) as shipped,
            weir_process(folders[1], upstream, policies=EVERYTHING_ADDED) as everything,
        ):
            yield Setup(server, recorder, shipped, everything)


@pytest.fixture(scope="session")
def simulated(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    """The simulated provider with Weir in front."""
    with simulator(home) as server:
        yield from _setup(server, tmp_path_factory)


@pytest.fixture(scope="session")
def llama_chat(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    """llama.cpp's server with a tiny model and Weir in front."""
    with llama(home) as server:
        yield from _setup(server, tmp_path_factory)


@pytest.fixture(scope="session")
def llama_alone(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    """One that asks for a key, works on one request at a time, and keeps prompts that it has read."""
    with llama(home, "--slots", "1", "--key", KEY, "--cache") as server:
        yield from _setup(server, tmp_path_factory)


@pytest.fixture(scope="session")
def llama_embedding(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    """One that embeds."""
    with llama(home, "--embedding") as server:
        yield from _setup(server, tmp_path_factory)
