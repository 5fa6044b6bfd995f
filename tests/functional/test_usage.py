"""Usage that Weir asks for on its own behalf: known to Weir, invisible to callers, no harm to servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.chat import ANSWER, CHAT, CHAT_STREAM, PATH, chat_policy
from tests.support.raw_client import RawAnswer
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.served import served
from tests.support.shapes import CHAT as CHAT_SHAPE
from tests.support.shapes import COMPLETIONS, MESSAGES, RESPONSES, SHAPES, Shape, every_shape, usage_event
from tests.support.weir import RunningWeir, weir

ASKED = b',"stream_options":{"include_usage":true}'
SHAPES_THAT_ASK = (CHAT_SHAPE, COMPLETIONS)
EACH_ASKING_SHAPE = pytest.mark.parametrize("shape", SHAPES_THAT_ASK, ids=lambda shape: shape.name)


def unasked(shape: Shape) -> bytes:
    """Return the shape's request as a caller writes it that does not want usage."""
    return shape.request.replace(ASKED, b"")


def provider(call: Call) -> None:
    """Answer as OpenAI does: those who ask get the usage event, and `"usage":null` in every other."""
    shape = next(shape for shape in SHAPES if shape.path == call.target.decode())
    is_asked = ASKED in call.body
    call.stream_head()
    for event in (shape.opening, *shape.words, *shape.closing):
        if event != usage_event():
            null = b',"usage":null}\n\n' if is_asked and b"[DONE]" not in event else None
            call.chunk(event.replace(b"}\n\n", null) if null else event)
        elif is_asked:
            call.chunk(event)
    call.end_chunks()


def ask(proxy: RunningWeir, shape: Shape, body: bytes) -> RawAnswer:
    with proxy.client() as client:
        return client.request("POST", shape.path, body)


# --- what callers see ---------------------------------------------------------------------------------------


@EACH_ASKING_SHAPE
def test_a_caller_that_did_not_ask_sees_what_it_would_have_seen_without_weir(
    tmp_path: Path, shape: Shape
) -> None:
    with served(tmp_path, provider, every_shape()) as (proxy, upstream):
        answer = ask(proxy, shape, unasked(shape))
        (record,) = proxy.log(1)
        assert upstream.calls[0].body == unasked(shape)[:-1] + ASKED + b"}"
        assert proxy.metric("weir_tokens_total", route=shape.name, kind="output") == shape.usage[1]
    assert answer.body == shape.whole.replace(usage_event(), b"")
    assert (record["tokens_in"], record["tokens_out"]) == shape.usage
    assert record["tpot_ms"] is not None


@EACH_ASKING_SHAPE
def test_a_caller_that_asked_gets_it_and_its_request_is_untouched(tmp_path: Path, shape: Shape) -> None:
    with served(tmp_path, provider, every_shape()) as (proxy, upstream):
        answer = ask(proxy, shape, shape.request)
        (record,) = proxy.log(1)
        assert upstream.calls[0].body == shape.request
        direct = b"".join(
            event if event == usage_event() or b"[DONE]" in event else event[:-3] + b',"usage":null}\n\n'
            for event in (shape.opening, *shape.words, *shape.closing)
        )
    assert answer.body == direct
    assert (record["tokens_in"], record["tokens_out"]) == shape.usage


@pytest.mark.parametrize("shape", [RESPONSES, MESSAGES], ids=lambda shape: shape.name)
def test_apis_that_always_tell_are_not_asked(tmp_path: Path, shape: Shape) -> None:
    with served(tmp_path, provider, every_shape()) as (proxy, upstream):
        answer = ask(proxy, shape, shape.request)
        (record,) = proxy.log(1)
        assert upstream.calls[0].body == shape.request
    assert answer.body == shape.whole
    assert (record["tokens_in"], record["tokens_out"]) == shape.usage


@pytest.mark.parametrize("policies", [None, every_shape('usage: "off"')], ids=["unmatched", "off"])
@EACH_ASKING_SHAPE
def test_nobody_is_asked_where_no_route_says_so(tmp_path: Path, shape: Shape, policies: str | None) -> None:
    with served(tmp_path, provider, policies) as (proxy, upstream):
        answer = ask(proxy, shape, unasked(shape))
        (record,) = proxy.log(1)
        assert upstream.calls[0].body == unasked(shape)
    assert answer.body == shape.whole.replace(usage_event(), b"")
    assert record["tokens_out"] is None


def test_explaining_says_that_usage_is_asked_for(tmp_path: Path) -> None:
    policy = chat_policy("allow_caller: [x-weir-explain]")
    with served(tmp_path, provider, policy) as (proxy, upstream):
        client = proxy.client()
        for body, asks in ((CHAT_STREAM, True), (CHAT, False)):
            answer = client.request("POST", PATH, body, [("x-weir-explain", "dry-run")])
            told = json.loads(answer.body)
            assert told["asks_usage"] == asks
            assert ("stream_options" in told["body"]) == asks
        assert upstream.calls == []


# --- servers that refuse ------------------------------------------------------------------------------------

REFUSALS: dict[str, Any] = {
    "param": {"error": {"message": "Unknown parameter", "param": "stream_options"}},
    "param path": {"error": {"message": "Unknown parameter", "param": "stream_options.include_usage"}},
    "quoted": {"error": {"message": "Unknown parameter: 'stream_options'.", "param": None}},
    "unquoted": {"error": {"message": "Unrecognized request argument supplied: stream_options"}},
    "bare message": {"object": "error", "message": "[stream_options] Extra inputs are not permitted"},
    "detail": {"detail": "stream_options is not supported"},
    "error text": {"error": "extra field stream_options"},
}


def refusing(said: Any, model: bytes = b"") -> Any:
    """Return a script that refuses `stream_options` for the models that hold `model`."""

    def script(call: Call) -> None:
        if b"stream_options" in call.body and model in call.body:
            call.json(json.dumps(said).encode(), b"400 Bad Request")
        elif b'"stream":true' in call.body:
            call.stream_head()
            call.chunk(CHAT_SHAPE.whole.replace(usage_event(), b""))
            call.end_chunks()
        else:
            call.json(ANSWER)

    return script


STREAM = CHAT_SHAPE.whole.replace(usage_event(), b"")
CAPPED = chat_policy("steps: [{cap_output: {default: 50, max: 50}}]")


@pytest.mark.parametrize("policies", [chat_policy(), CAPPED], ids=["plain", "enforcing"])
@pytest.mark.parametrize("kind", REFUSALS)
def test_a_server_that_refuses_is_asked_once_without_and_not_again(
    tmp_path: Path, kind: str, policies: str
) -> None:
    with served(tmp_path, refusing(REFUSALS[kind]), policies) as (proxy, upstream):
        client = proxy.client()
        answers = [client.request("POST", PATH, CHAT_STREAM) for _ in range(3)]
        records = proxy.log(3)
        bodies = [call.body for call in upstream.calls]
    sent = bodies[1]
    assert bodies == [sent[:-1] + ASKED + b"}", sent, sent, sent]
    assert json.loads(sent).get("max_tokens") == (50 if policies is CAPPED else None)
    assert [(answer.status, answer.body) for answer in answers] == [(200, STREAM)] * 3
    assert [record["retries"] for record in records] == [1, 0, 0]
    assert {record["error"] for record in records} == {None}


def test_what_one_model_refuses_another_is_still_asked_for(tmp_path: Path) -> None:
    script = refusing(REFUSALS["param"], b'"model":"old"')
    with served(tmp_path, script, chat_policy()) as (proxy, upstream):
        client = proxy.client()
        for model in (b"old", b"old", b"new"):
            body = CHAT_STREAM.replace(b'"model":"m"', b'"model":"%b"' % model)
            assert client.request("POST", PATH, body).body == STREAM
        asked = [(json.loads(call.body)["model"], ASKED in call.body) for call in upstream.calls]
    assert asked == [("old", True), ("old", False), ("old", False), ("new", True)]


def test_what_one_upstream_refuses_another_is_still_asked_for(tmp_path: Path) -> None:
    with (
        RawUpstream(refusing(REFUSALS["param"])) as old,
        RawUpstream(refusing(REFUSALS["param"], b"none")) as new,
    ):
        policy = (
            f"version: 1\nupstreams: {{old: {{base_url: '{old.url}'}}, new: {{base_url: '{new.url}'}}}}\n"
            "defaults: {upstream: old}\nroutes:\n"
            f"  - {{name: new, match: {{path: {PATH}, headers: {{x-to: new}}}}, upstream: new}}\n"
            f"  - {{name: old, match: {{path: {PATH}}}, upstream: old}}\n"
        )
        with weir(tmp_path, None, policy) as proxy:
            for where in ("old", "old", "new"):
                got = proxy.client().request("POST", PATH, CHAT_STREAM, [("x-to", where)])
                assert got.body == STREAM
        assert [ASKED in call.body for call in old.calls] == [True, False, False]
        assert [ASKED in call.body for call in new.calls] == [True]


def test_the_callers_own_options_are_the_servers_to_refuse(tmp_path: Path) -> None:
    body = CHAT_STREAM[:-1] + b',"stream_options":{"include_obfuscation":false}}'
    with served(tmp_path, refusing(REFUSALS["param"]), chat_policy()) as (proxy, upstream):
        answer = proxy.client().request("POST", PATH, body)
        assert json.loads(answer.body) == REFUSALS["param"]
        assert upstream.calls[-1].body == body, "the refusal is of what the caller wrote"
        # Nothing was learnt about what Weir adds by itself.
        assert proxy.client().request("POST", PATH, CHAT_STREAM).body == STREAM
        assert ASKED in upstream.calls[-2].body
    assert answer.status == 400


@pytest.mark.parametrize(
    "said",
    [
        {"error": {"message": "The model does not exist", "param": "model"}},
        {"error": {"message": "no"}},
        [],
        7,
    ],
    ids=["names another", "names nothing", "list", "number"],
)
def test_a_refusal_of_something_else_is_passed_on_and_nothing_is_learnt(tmp_path: Path, said: Any) -> None:
    def script(call: Call) -> None:
        call.json(json.dumps(said).encode(), b"400 Bad Request")

    with served(tmp_path, script, chat_policy()) as (proxy, upstream):
        for _ in range(2):
            answer = proxy.client().request("POST", PATH, CHAT_STREAM)
            assert (answer.status, json.loads(answer.body)) == (400, said)
        bodies = [call.body for call in upstream.calls]
    asking = CHAT_STREAM[:-1] + ASKED + b"}"
    assert bodies == [asking, CHAT_STREAM] * 2, "first as changed, then as the caller wrote it"


def test_a_refusal_is_known_to_the_explanation(tmp_path: Path) -> None:
    policy = chat_policy("allow_caller: [x-weir-explain]")
    with served(tmp_path, refusing(REFUSALS["param"]), policy) as (proxy, _):
        client = proxy.client()
        dry = [("x-weir-explain", "dry-run")]
        told = [json.loads(client.request("POST", PATH, CHAT_STREAM, dry).body)["asks_usage"]]
        assert client.request("POST", PATH, CHAT_STREAM).status == 200
        told.append(json.loads(client.request("POST", PATH, CHAT_STREAM, dry).body)["asks_usage"])
    assert told == [True, False]
