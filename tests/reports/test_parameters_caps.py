"""Output caps of a policy: which field, which value, what the caller learns (reports B30, B31, B43-B46)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.chat import DONE, PATH, chat_policy, delta, finish
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.weir import weir

FIELDS = ("max_tokens", "max_completion_tokens")


def answer_ok(call: Call) -> None:
    call.json(b'{"choices":[]}')


def refusing(field: str) -> Callable[[Call], None]:
    """Return a script that answers 400 to a field, as OpenAI does."""

    def script(call: Call) -> None:
        if field in json.loads(call.body):
            error = {"message": f"Unsupported parameter: '{field}'.", "type": "invalid_request_error"}
            body = {"error": error | {"param": field, "code": "unsupported_parameter"}}
            call.json(json.dumps(body).encode(), b"400 Bad Request")
        else:
            answer_ok(call)

    return script


def request(more: str = "", model: str = "m") -> bytes:
    return f'{{"model":"{model}","messages":[{{"role":"user","content":"hi"}}]{more}}}'.encode()


def sent(tmp_path: Path, step: str, body: bytes, upstream_lines: str = "") -> bytes:
    """Return what an upstream gets for a body under a policy of one step."""
    with RawUpstream(answer_ok) as upstream:
        policies = chat_policy(f"steps: [{step}]", base_url=upstream.url, upstream=upstream_lines)
        with weir(tmp_path, None, policies) as proxy:
            assert proxy.client().request("POST", PATH, body).status == 200
        assert len(upstream.calls) == 1
        return upstream.calls[0].body


# B30
@pytest.mark.parametrize(
    ("model", "provider", "parameter", "field"),
    [
        ("m", "generic", "auto", "max_tokens"),
        ("m", "vllm", "auto", "max_tokens"),
        ("gpt-4o", "openai", "auto", "max_completion_tokens"),
        ("my-deployment", "azure", "auto", "max_completion_tokens"),
        ("my-deployment", "azure", "max_tokens", "max_tokens"),
        ("m", "generic", "max_completion_tokens", "max_completion_tokens"),
    ],
)
def test_a_default_goes_into_the_field_that_provider_or_route_names(
    tmp_path: Path, model: str, provider: str, parameter: str, field: str
) -> None:
    step = f"cap_output: {{default: 256, parameter: {parameter}}}"
    body = sent(tmp_path, f"{{{step}}}", request(model=model), f"provider: {provider}")
    assert body == request(f',"{field}":256', model)


# B30
@pytest.mark.parametrize("refused", FIELDS)
@pytest.mark.parametrize("parameter", FIELDS)
def test_a_field_that_the_upstream_refuses_costs_one_call_and_is_remembered(
    tmp_path: Path, refused: str, parameter: str
) -> None:
    policies = chat_policy(f"steps: [{{cap_output: {{default: 256, parameter: {parameter}}}}}]")
    with RawUpstream(refusing(refused)) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        for _ in range(3):
            assert proxy.client().request("POST", PATH, request()).status == 200
        bodies = [call.body for call in upstream.calls]
    other = next(field for field in FIELDS if field != refused)
    if parameter == refused:
        with_other = request(f',"{other}":256')
        assert bodies == [request(f',"{refused}":256'), request(), with_other, with_other]
    else:
        assert bodies == [request(f',"{parameter}":256')] * 3


# B30, B31
@pytest.mark.parametrize(
    ("more", "edited"),
    [
        (',"max_completion_tokens":4000', ',"max_completion_tokens":1000'),
        (',"max_tokens":4000', ',"max_tokens":1000'),
        (
            ',"max_tokens":4000,"max_completion_tokens":5000',
            ',"max_tokens":1000,"max_completion_tokens":1000',
        ),
        (',"max_tokens":4000,"max_completion_tokens":5', ',"max_tokens":1000,"max_completion_tokens":5'),
        (',"max_completion_tokens" : 4000 ,"x":1', ',"max_completion_tokens" : 1000 ,"x":1'),
        (
            ',"max_tokens":null,"max_completion_tokens":4000',
            ',"max_tokens":null,"max_completion_tokens":1000',
        ),
        (',"max_completion_tokens":1000', ',"max_completion_tokens":1000'),
    ],
)
@pytest.mark.parametrize("provider", ["openai", "generic"])
@pytest.mark.parametrize("default", ["", "default: 20, "])
def test_the_callers_own_field_is_lowered_and_no_second_one_added(
    tmp_path: Path, more: str, edited: str, provider: str, default: str
) -> None:
    step = f"{{cap_output: {{{default}max: 1000}}}}"
    assert sent(tmp_path, step, request(more), f"provider: {provider}") == request(edited)


# B43
def test_a_maximum_alone_gives_nobody_a_cap(tmp_path: Path) -> None:
    assert sent(tmp_path, "{cap_output: {max: 1024}}", request()) == request()


# B43
@pytest.mark.parametrize("reason", ["length", "content_filter", "stop"])
@pytest.mark.parametrize("is_stream", [False, True])
def test_a_finish_reason_is_the_upstreams_and_the_cap_is_told(
    tmp_path: Path, reason: str, is_stream: bool
) -> None:
    whole = b'{"choices":[{"message":{"content":"cut of"},"finish_reason":"%b"}]}' % reason.encode()
    stream = delta("cut of") + finish(reason) + DONE

    def script(call: Call) -> None:
        if not is_stream:
            call.json(whole)
            return
        call.stream_head()
        call.chunk(stream)
        call.end_chunks()

    policies = chat_policy("steps: [{cap_output: {default: 5}}]")
    with RawUpstream(script) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        answer = proxy.client().request("POST", PATH, request(',"stream":true' if is_stream else ""))
        record = proxy.log(1)[0]
    assert answer.body == (stream if is_stream else whole)
    assert answer.header("x-weir-steps") == "cap_output;set=5"
    assert (record["finish_reason"], record["steps"]) == (reason, ["cap_output;applied;set=5"])


# B44
@pytest.mark.parametrize(
    ("model", "more", "floor", "cap"),
    [
        ("m", "", "", 200),
        ("deepseek-r1", "", "", None),
        ("vendor/qwq-32b", "", "", None),
        ("m", ',"reasoning_effort":"high"', "", None),
        ("m", ',"enable_thinking":true', "", None),
        ("m", ',"thinking":{"type":"enabled"}', "", None),
        ("deepseek-r1", "", ", floor_reasoning: 9000", 9000),
        ("m", ',"reasoning_effort":"high"', ", floor_reasoning: 9000", 9000),
        ("m", "", ", floor_reasoning: 9000", 200),
        ("deepseek-r1", ',"thinking":{"type":"disabled"}', ", floor_reasoning: 9000", 200),
    ],
)
def test_a_model_that_thinks_first_gets_no_cap_that_only_its_thoughts_would_fill(
    tmp_path: Path, model: str, more: str, floor: str, cap: int | None
) -> None:
    body = sent(tmp_path, f"{{cap_output: {{default: 200{floor}}}}}", request(more, model))
    assert body == request(more + (f',"max_tokens":{cap}' if cap is not None else ""), model)


# B44
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("reason", "content", "count"), [("length", "", 1), ("length", "x", 0), ("stop", "", 0)]
)
def test_answers_that_a_cap_left_empty_are_counted(
    tmp_path: Path, is_stream: bool, reason: str, content: str, count: int
) -> None:
    details = b'"completion_tokens_details":{"reasoning_tokens":2001}'
    usage = b'"usage":{"prompt_tokens":9,"completion_tokens":2001,%b}' % details

    def script(call: Call) -> None:
        if is_stream:
            call.stream_head()
            call.chunk((delta(content) if content else b"") + finish(reason))
            call.chunk(b'data: {"choices":[],%b}\n\n' % usage + DONE)
            call.end_chunks()
            return
        message = b'{"message":{"content":"%b"},"finish_reason":"%b"}' % (content.encode(), reason.encode())
        call.json(b'{"choices":[%b],%b}' % (message, usage))

    policies = chat_policy("steps: [{cap_output: {max: 2001}}]")
    with RawUpstream(script) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        proxy.client().request(
            "POST", PATH, request(',"max_tokens":9999' + (',"stream":true' if is_stream else ""))
        )
        proxy.log(1)
        assert proxy.metric("weir_capped_and_empty_total") == count
        assert proxy.metric("weir_tokens_total", kind="reasoning") == 2001


# B45
@pytest.mark.parametrize(
    "value", ["0", "-1", "true", "false", '"100"', '"many"', "1e2", "100", "[]", "{}", "0.5", '""']
)
@pytest.mark.parametrize("field", FIELDS)
def test_an_odd_cap_is_the_upstreams_to_judge(tmp_path: Path, value: str, field: str) -> None:
    body = request(f',"{field}":{value}')
    assert sent(tmp_path, "{cap_output: {default: 50, max: 100}}", body) == body


# B45
def test_null_is_as_good_as_no_cap(tmp_path: Path) -> None:
    body = request(',"max_tokens":null')
    assert sent(tmp_path, "{cap_output: {max: 100}}", body) == body
    assert sent(tmp_path, "{cap_output: {default: 50, max: 100}}", body) == request(',"max_tokens":50')


# B45
@pytest.mark.parametrize("value", ["101", "1e3", '"1000"', "100.5", "1e400", "9" * 5000])
def test_a_cap_above_the_limit_is_lowered_however_it_is_spelt(tmp_path: Path, value: str) -> None:
    body = sent(tmp_path, "{cap_output: {max: 100}}", request(f',"max_tokens":{value}'))
    assert body == request(',"max_tokens":100')


# B46
@pytest.mark.parametrize("stream", ["", ',"stream":false', ',"stream":null', ',"stream":"true"'])
def test_stream_options_are_added_to_streams_only(tmp_path: Path, stream: str) -> None:
    step = "{set_params: {stream_options.include_usage: {default: true}}}"
    assert sent(tmp_path, step, request(stream)) == request(stream)
