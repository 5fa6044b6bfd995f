"""llmock judges whoever calls it: here Weir, with a policy that retries, for a caller that does not.

Its findings: Retry-After ignored, hopeless errors retried, storms, no back-off, cut streams taken for whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.real.processes import Server, llmock
from tests.real.served import record
from tests.support.raw_client import RawAnswer
from tests.support.weir_process import WeirProcess, weir_process

pytestmark = pytest.mark.xdist_group("llmock")

CHAT = "/v1/chat/completions"
POLICY = """
version: 1
upstreams:
  llmock: {{base_url: "{url}/v1", retry: {{statuses: [429, 503], attempts: 2}}, timeouts: {{idle: 1s}}}}
routes:
  - {{name: chat, match: {{path: /v1/chat/completions}}}}
"""


@dataclass(frozen=True, slots=True)
class Judged:
    """Weir before its judge."""

    judge: Server
    weir: WeirProcess

    def faults(self, *behaviours: dict[str, Any]) -> None:
        """Forget everything and have the next requests met by these."""
        self.judge.ask("POST", "/_llmock/reset")
        if behaviours:
            self.judge.ask("POST", "/_llmock/scenario", json.dumps({"behaviors": behaviours}).encode())

    def ask(self, stream: bool = False, patience_seconds: float = 60) -> RawAnswer:
        """Ask for a chat, once, with so much patience."""
        asked = {
            "model": "gpt-4o",
            "messages": [{"role": "user", "content": "What is a weir?"}],
            "stream": stream,
        }
        headers = (("x-stainless-read-timeout", str(patience_seconds)), ("Authorization", "Bearer any"))
        return self.weir.client(30.0).request("POST", CHAT, json.dumps(asked).encode(), headers)

    def attempts(self) -> int:
        """Return how often Weir has called."""
        return int(self._verdict()["attempts"])

    def findings(self) -> set[str]:
        """Return what the judge has found, warnings included."""
        return {finding["code"] for finding in self._verdict()["findings"]}

    def _verdict(self) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(self.judge.ask("GET", "/_llmock/verdict"))
        return said


@pytest.fixture(scope="module")
def judged(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judged]:
    folder = tmp_path_factory.mktemp("judged")
    with (
        llmock(home) as judge,
        weir_process(folder, None, policies=POLICY.format(url=judge.url)) as weir,
    ):
        yield Judged(judge, weir)


def test_an_untroubled_call_is_made_once(judged: Judged) -> None:
    judged.faults()
    assert (judged.ask().status, judged.ask(stream=True).status) == (200, 200)
    assert (judged.attempts(), judged.findings()) == (2, set())


@pytest.mark.parametrize("stream", [False, True])
def test_waits_as_long_as_retry_after_says(judged: Judged, stream: bool) -> None:
    judged.faults({"type": "fail", "status": 429, "retry_after": 0.4, "times": 2})
    answer = judged.ask(stream)
    assert answer.status == 200
    assert (judged.attempts(), judged.findings()) == (3, set())
    logged = record(judged.weir, answer)
    assert logged["retries"] == 2
    assert logged["queue_ms"] >= 800


def test_backs_off_where_nothing_is_said(judged: Judged) -> None:
    judged.faults({"type": "fail", "status": 503, "times": 2})
    assert judged.ask().status == 200
    assert (judged.attempts(), judged.findings()) == (3, set())


def test_gives_up_in_time(judged: Judged) -> None:
    judged.faults({"type": "fail", "status": 503, "retry_after": 0.1, "times": 20})
    answer = judged.ask()
    assert (answer.status, answer.header("retry-after")) == (503, "1")
    assert (judged.attempts(), judged.findings()) == (3, set())


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_a_hopeless_error_is_not_retried(judged: Judged, status: int) -> None:
    judged.faults({"type": "fail", "status": status, "times": 20})
    answer = judged.ask()
    assert (answer.status, judged.attempts(), judged.findings()) == (status, 1, set())


@pytest.mark.parametrize(
    ("fault", "patience_seconds"),
    [({"status": 500}, 60), ({"status": 529, "retry_after": 2}, 60), ({"status": 429, "retry_after": 30}, 5)],
    ids=["not listed", "not known", "beyond the caller's patience"],
)
def test_what_is_not_retried_is_left_to_the_caller(
    judged: Judged, fault: dict[str, Any], patience_seconds: float
) -> None:
    """`gave_up` is a remark on a client that never retries at all: here that is up to the caller."""
    judged.faults({"type": "fail", "times": 20} | fault)
    answer = judged.ask(patience_seconds=patience_seconds)
    assert answer.status == fault["status"]
    assert answer.header("retry-after") == (str(fault["retry_after"]) if "retry_after" in fault else None)
    assert (judged.attempts(), judged.findings()) == (1, {"gave_up"})


@pytest.mark.parametrize(
    ("kind", "error"),
    [("disconnect", "upstream_closed"), ("truncate", "upstream_closed"), ("stall", "upstream_idle_timeout")],
)
def test_a_stream_that_breaks_ends_in_an_error_for_the_caller(judged: Judged, kind: str, error: str) -> None:
    """After its first token nobody may repeat it, so the caller must not take it for a whole answer."""
    judged.faults({"type": "stream_fault", "kind": kind, "after_chunks": 3, "stall_seconds": 4})
    answer = judged.ask(stream=True)
    assert b"[DONE]" not in answer.body
    last = json.loads(answer.body.rstrip(b"\n").rpartition(b"\n")[2].removeprefix(b"data: "))
    assert last["error"]["code"] == error
    assert record(judged.weir, answer)["error"] == error
    assert judged.attempts() == 1


def test_a_malformed_event_is_passed_on(judged: Judged) -> None:
    judged.faults({"type": "stream_fault", "kind": "malformed", "after_chunks": 2})
    answer = judged.ask(stream=True)
    assert answer.is_whole
    events = answer.body.split(b"\n\n")
    broken = [event for event in events if event.startswith(b"data: {") and not _is_json(event)]
    assert len(broken) == 1


def _is_json(event: bytes) -> bool:
    try:
        json.loads(event.removeprefix(b"data: "))
    except ValueError:
        return False
    return True
