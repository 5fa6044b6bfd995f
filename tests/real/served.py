"""A server with Weir in front of it, in the two ways that the tests look at, and what Weir logs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.real.install import ROOT
from tests.real.processes import Server
from tests.real.recorder import Recorder, recorded
from tests.support.raw_client import RawAnswer
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
"""All that Weir may add to an answer, and a step that reads every request: usage asked for and taken out
again, heartbeats and the timing comment between events, heads that go before the first token."""


@dataclass(frozen=True, slots=True)
class Setup:
    """A server, and Weir in front of it: as shipped, and with everything added.

    The recorder shows what the server is sent: by itself, and by Weir unless Weir has the server's
    connections for itself (a relay in between would hide when the server closes them).
    """

    server: Server
    recorder: Recorder
    shipped: WeirProcess
    everything: WeirProcess


def records(weir: WeirProcess, answers: Sequence[RawAnswer]) -> list[dict[str, Any]]:
    """Return the access log's records of these answers, in their order, once they are there."""
    wanted = [answer.header("x-weir-request-id") for answer in answers]
    deadline = time.monotonic() + LOG_SECONDS
    while True:
        lines = weir.log_file.read_text(encoding="utf-8").splitlines() if weir.log_file.exists() else []
        found = {record["request_id"]: record for record in map(json.loads, lines)}
        if all(request_id in found for request_id in wanted):
            return [found[request_id] for request_id in wanted if request_id is not None]
        assert time.monotonic() < deadline, f"{len(wanted)} answers, {len(found)} records"
        time.sleep(0.02)


def record(weir: WeirProcess, answer: RawAnswer) -> dict[str, Any]:
    """Return the access log's record of an answer."""
    return records(weir, [answer])[0]


def origin_of(weir: WeirProcess) -> str:
    """Return the URL of a Weir without a path."""
    host, port = weir.address
    return f"http://{host}:{port}"


@contextmanager
def served(
    server: Server, tmp_path_factory: pytest.TempPathFactory, is_recorded: bool = False
) -> Iterator[Setup]:
    """Put Weir in front of a server until the block ends."""
    with recorded(server.url) as recorder:
        upstream = f"{recorder.url if is_recorded else server.url}/v1"
        folders = tmp_path_factory.mktemp("shipped"), tmp_path_factory.mktemp("everything")
        with (
            weir_process(folders[0], upstream, "--policies", str(ROOT / "policies")) as shipped,
            weir_process(folders[1], upstream, policies=EVERYTHING_ADDED) as everything,
        ):
            yield Setup(server, recorder, shipped, everything)
