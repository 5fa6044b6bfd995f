"""aimock's faults and websockets behind Weir: a caller sees what it would have seen directly, or clearer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.real.processes import Server, aimock
from tests.real.served import record
from tests.support.raw_client import RawAnswer, RawClient
from tests.support.websocket import TEXT, FrameReader, frame, handshake_headers
from tests.support.weir_process import WeirProcess, weir_process

pytestmark = pytest.mark.xdist_group("aimock")

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
TEXT_OF_A_WEIR = "A weir is a low dam that regulates, diverts and measures a flow of water."
FIXTURES = [
    {"match": {"userMessage": "What is a weir?"}, "response": {"content": TEXT_OF_A_WEIR}},
    {
        "match": {"userMessage": "Break"},
        "response": {"content": TEXT_OF_A_WEIR},
        "truncateAfterChunks": 3,
        "latency": 20,
    },
    {"match": {"userMessage": "Slow"}, "response": {"content": TEXT_OF_A_WEIR}, "latency": 80},
    {
        "match": {"userMessage": "Tool"},
        "response": {"toolCalls": [{"name": "get_weather", "arguments": '{"city":"Ghent"}'}]},
    },
]
POLICY = """
version: 1
upstreams: {{aimock: {{base_url: "{url}/v1"}}}}
defaults: {{usage: ask, heartbeat: 30ms, commit_after: 50ms}}
routes:
  - {{name: chat, match: {{path: /v1/chat/completions}}}}
  - {{name: responses, match: {{path: /v1/responses}}}}
"""
ANEW = (
    (re.compile(rb'"(created|created_at)":\d+'), rb'"\1":0'),
    (
        re.compile(rb"(chatcmpl-|resp_|resp-|msg_|msg-|call_|fc_|fc-|req-|rs_|item_)[0-9A-Za-z_-]{8,}"),
        rb"\1anew",
    ),
)


@dataclass(frozen=True, slots=True)
class Behind:
    """aimock with Weir in front."""

    server: Server
    weir: WeirProcess

    def directly(self) -> RawClient:
        """Connect to aimock itself."""
        host, _, port = self.server.url.removeprefix("http://").partition(":")
        return RawClient((host, int(port)))

    def chaos(self, **rates: float) -> None:
        """Have all requests from now on meet these faults."""
        self.server.ask("POST", "/__aimock/chaos", json.dumps(rates).encode())


@pytest.fixture(scope="module")
def behind(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Behind]:
    folder = tmp_path_factory.mktemp("aimock")
    fixtures = folder / "fixtures.json"
    fixtures.write_text(json.dumps({"fixtures": FIXTURES}), encoding="utf-8")
    with (
        aimock(home, fixtures) as server,
        weir_process(folder, None, policies=POLICY.format(url=server.url)) as weir,
    ):
        yield Behind(server, weir)


@pytest.fixture(autouse=True)
def calm(behind: Behind) -> Iterator[None]:
    yield
    behind.server.ask("DELETE", "/__aimock/chaos")


def ask(client: RawClient, question: str = "What is a weir?", path: str = CHAT, **more: Any) -> RawAnswer:
    asked = (
        {"input": question} if path == RESPONSES else {"messages": [{"role": "user", "content": question}]}
    )
    body = json.dumps({"model": "gpt-4o", **asked, **more}).encode()
    return client.request("POST", path, body, (("Authorization", "Bearer any"),))


def settled(body: bytes) -> bytes:
    """Return a body without ids and times, and without comments between events."""
    for pattern, replacement in ANEW:
        body = pattern.sub(replacement, body)
    return b"\n\n".join(event for event in body.split(b"\n\n") if not event.startswith(b":"))


@pytest.mark.parametrize("question", ["What is a weir?", "Slow", "Tool"])
@pytest.mark.parametrize("path", [CHAT, RESPONSES])
@pytest.mark.parametrize("stream", [False, True])
def test_answers_pass_byte_for_byte(behind: Behind, question: str, path: str, stream: bool) -> None:
    with behind.directly() as client:
        direct = ask(client, question, path, stream=stream)
    through = ask(behind.weir.client(), question, path, stream=stream)
    assert direct.status == through.status == 200
    assert settled(through.body) == settled(direct.body)
    assert record(behind.weir, through)["error"] is None


def test_a_stream_that_breaks_ends_in_an_error(behind: Behind) -> None:
    with behind.directly() as client:
        direct = ask(client, "Break", stream=True)
    through = ask(behind.weir.client(), "Break", stream=True)
    assert not direct.is_whole
    assert not through.is_whole, "a broken stream must not have a well-formed end"
    assert b"[DONE]" not in through.body
    body, _, last = settled(through.body).removesuffix(b"\n\n").rpartition(b"\n\n")
    assert settled(direct.body).startswith(body)
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "upstream_closed"
    assert record(behind.weir, through)["error"] == "upstream_closed"


@pytest.mark.parametrize(
    ("rates", "status"), [({"dropRate": 1}, 500), ({"rateLimitRate": 1}, 429)], ids=["dropped", "rate limit"]
)
def test_refusals_pass_with_their_headers(behind: Behind, rates: dict[str, float], status: int) -> None:
    behind.chaos(**rates)
    with behind.directly() as client:
        direct = ask(client, stream=True)
    through = ask(behind.weir.client(), stream=True)
    assert (through.status, through.body) == (direct.status, direct.body)
    assert through.status == status
    for name in ("retry-after", "x-ratelimit-remaining-requests", "x-ratelimit-reset-tokens"):
        assert through.header(name) == direct.header(name)


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_no_json_passes_as_it_is(behind: Behind, stream: bool) -> None:
    behind.chaos(malformedRate=1)
    with behind.directly() as client:
        direct = ask(client, stream=stream)
    through = ask(behind.weir.client(), stream=stream)
    assert (through.status, through.body) == (direct.status, direct.body)
    assert through.header("content-type") == direct.header("content-type")


@pytest.mark.parametrize("stream", [False, True])
def test_a_connection_that_is_torn_is_an_error_of_the_gateway(behind: Behind, stream: bool) -> None:
    behind.chaos(disconnectRate=1)
    through = ask(behind.weir.client(), stream=stream)
    assert (through.status, json.loads(through.body)["error"]["code"]) == (502, "upstream_closed")
    behind.server.ask("DELETE", "/__aimock/chaos")
    assert ask(behind.weir.client(), stream=stream).status == 200


def _spoken(client: RawClient, question: str) -> list[dict[str, Any]]:
    """Ask over a websocket; return its events, ids and times made equal."""
    client.send_request("GET", RESPONSES, headers=[*handshake_headers(), ("Authorization", "Bearer any")])
    assert client.read_head().status == 101
    said = {"type": "response.create", "model": "gpt-4o", "input": [{"role": "user", "content": question}]}
    client.send(frame(TEXT, json.dumps(said).encode(), b"mask"))
    reader = FrameReader(client.receive)
    events: list[dict[str, Any]] = []
    while not events or events[-1]["type"] not in ("response.completed", "error"):
        received = reader.next()
        assert received is not None, events
        events.append(json.loads(settled(received.payload)))
    return events


def test_a_websocket_of_the_responses_api_is_the_servers(behind: Behind) -> None:
    with behind.directly() as client:
        direct = _spoken(client, "What is a weir?")
    through = _spoken(behind.weir.client(), "What is a weir?")
    assert through == direct
    text = "".join(event["delta"] for event in through if event["type"] == "response.output_text.delta")
    assert text == TEXT_OF_A_WEIR
