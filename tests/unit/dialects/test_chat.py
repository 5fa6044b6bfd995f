from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.document import Document
from proxy.core.usage import Usage
from proxy.dialects.chat import CHAT
from proxy.dialects.dialect import NOTHING, EventFacts
from proxy.dialects.marking import is_marked


def body(**fields: Any) -> Document:
    return Document.parse(json.dumps(fields).encode())


def event(data: object) -> bytes:
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


def chunk(delta: object, finish_reason: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return event({"id": "c", "object": "chat.completion.chunk", "choices": [choice], **more})


USAGE = {
    "prompt_tokens": 10,
    "completion_tokens": 5,
    "total_tokens": 15,
    "prompt_tokens_details": {"cached_tokens": 4, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 3},
}
READ_USAGE = Usage(10, 5, 4, None, 3)


# --- caps --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "provider", "field"),
    [
        ("gpt-4o", "openai", "max_completion_tokens"),
        ("my-deployment", "azure", "max_completion_tokens"),
        ("o3-mini", "generic", "max_completion_tokens"),
        ("openai/gpt-5-mini", "generic", "max_completion_tokens"),
        ("ft:o4-mini:team", "generic", "max_completion_tokens"),
        ("gpt-4o", "generic", "max_tokens"),
        ("llama-3.3-70b", "groq", "max_tokens"),
        ("mistral-large", "mistral", "max_tokens"),
        ("deepseek-r1", "vllm", "max_tokens"),
        ("", "llamacpp", "max_tokens"),
    ],
)
def test_the_cap_goes_where_model_and_provider_take_it(model: str, provider: str, field: str) -> None:
    assert CHAT.cap_field(body(model=model), model, provider) == field
    assert CHAT.cap_field(body(model=model, max_tokens=None), model, provider) == field


def test_the_callers_own_field_wins() -> None:
    assert CHAT.cap_field(body(max_tokens=5), "o3", "openai") == "max_tokens"
    assert CHAT.cap_field(body(max_completion_tokens=5), "x", "vllm") == "max_completion_tokens"
    assert CHAT.cap_field(body(max_completion_tokens=None, max_tokens=5), "o3", "openai") == "max_tokens"


def test_prediction_forbids_a_cap() -> None:
    prediction = {"type": "content", "content": "x"}
    assert CHAT.cap_field(body(prediction=prediction), "gpt-4o", "openai") is None
    assert CHAT.cap_field(body(prediction=prediction, max_tokens=3), "gpt-4o", "openai") == "max_tokens"
    assert CHAT.cap_field(body(prediction=None), "gpt-4o", "openai") == "max_completion_tokens"


@pytest.mark.parametrize(
    "model", ["o1", "o3-mini", "o4-mini", "gpt-5", "GPT-5.1-codex", "openai/o3", "ft:o4-mini:x"]
)
def test_openai_reasoning_models_refuse_stop(model: str) -> None:
    assert CHAT.refuses_stop(model)


@pytest.mark.parametrize("model", ["gpt-4o", "deepseek-r1", "claude-opus", "", "gpt-4.1"])
def test_other_models_take_stop(model: str) -> None:
    assert not CHAT.refuses_stop(model)


@pytest.mark.parametrize(
    ("model", "fields", "reasoning"),
    [
        ("gpt-4o", {}, False),
        ("gpt-5", {}, True),
        ("gpt-5-chat-latest", {}, False),
        ("gpt-5", {"reasoning_effort": "minimal"}, False),
        ("gpt-5", {"reasoning_effort": "none"}, False),
        ("gpt-4o", {"reasoning_effort": "low"}, False),
        ("gpt-5-chat-latest", {"reasoning_effort": "high"}, False),
        ("x", {"reasoning_effort": "low"}, True),
        ("x", {"reasoning_effort": "very"}, False),
        ("x", {"reasoning": {"effort": "", "max_tokens": 0}}, False),
        ("x", {"thinking": {"type": "x"}}, False),
        ("x", {"thinking": {"type": ["enabled"]}}, False),
        ("deepseek/deepseek-r1", {}, True),
        ("qwen3-next-thinking", {}, True),
        ("x", {"reasoning": {"effort": "high"}}, True),
        ("x", {"reasoning": {"enabled": False}}, False),
        ("x", {"reasoning": {"max_tokens": 100}}, True),
        ("x", {"thinking": {"type": "enabled"}}, True),
        ("glm-4.6", {"thinking": {"type": "disabled"}}, False),
        ("qwq-32b", {"chat_template_kwargs": {"enable_thinking": False}}, False),
        ("x", {"enable_thinking": True}, True),
        ("x", {"reasoning": "odd", "thinking": 3, "chat_template_kwargs": []}, False),
    ],
)
def test_reasoning_is_what_the_request_says_or_its_model(
    model: str, fields: dict[str, Any], reasoning: bool
) -> None:
    assert CHAT.is_reasoning(body(model=model, **fields), model) is reasoning


# --- streams -----------------------------------------------------------------------------------------------


def test_only_true_asks_for_a_stream() -> None:
    assert CHAT.is_stream(body(stream=True))
    for value in (False, "true", 1, None):
        assert not CHAT.is_stream(body(stream=value))
    assert not CHAT.is_stream(body())


def test_usage_is_asked_for_once_and_never_against_the_caller() -> None:
    asked = CHAT.ask_usage(body(stream=True))
    assert asked.get("stream_options") == b'{"include_usage":true}'
    assert CHAT.ask_usage(asked) is asked
    kept = CHAT.ask_usage(body(stream=True, stream_options={"include_obfuscation": False}))
    assert kept.value("stream_options") == {"include_obfuscation": False, "include_usage": True}
    assert (
        CHAT.ask_usage(body(stream=True, stream_options=None)).get("stream_options")
        == b'{"include_usage":true}'
    )
    explicit: tuple[Any, ...] = (
        {"include_usage": False},
        {"include_usage": True},
        {"include_usage": None},
        "odd",
        [],
    )
    for options in explicit:
        document = body(stream=True, stream_options=options)
        assert CHAT.ask_usage(document) is document
    for document in (body(), body(stream=False), body(stream="true")):
        assert CHAT.ask_usage(document) is document


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "hi"},
        {"content": " "},
        {"reasoning_content": "hm"},
        {"reasoning": "hm"},
        {"reasoning_text": "hm"},
        {"refusal": "no"},
        {"content": [{"type": "text", "text": "hi"}]},
        {"tool_calls": [{"index": 0, "id": "call_1", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
        {"function_call": {"name": "f"}},
        {"audio": {"id": "a", "data": "AAAA"}},
        {"audio": {"transcript": "hi"}},
    ],
)
def test_content_of_every_kind_is_first_content(delta: dict[str, Any]) -> None:
    assert CHAT.read_event(chunk(delta)) == EventFacts(first_content=True)
    assert CHAT.read_event(chunk({"role": "assistant", **delta}, usage=None)).first_content


@pytest.mark.parametrize(
    "raw",
    [
        chunk({"role": "assistant", "content": ""}),
        chunk({"role": "assistant", "content": None}),
        chunk({"role": "assistant"}),
        chunk({}),
        chunk(None),
        chunk({"tool_calls": []}),
        chunk({"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": ""}}]}),
        chunk({"audio": {"id": "a", "transcript": ""}}),
        event({"choices": []}),
        event({"choices": None}),
        event({"choices": [], "prompt_filter_results": [{"prompt_index": 0}]}),
        event({"error": None, "choices": []}),
        event({}),
        event([]),
        b"data: null\n\n",
        b"data: \n\n",
        b"data\n\n",
        b": OPENROUTER PROCESSING\n\n",
        b": ping - 2\r\n\r\n",
        b"event: ping\n\n",
        b"retry: 3000\n\n",
        b"data: {broken\n\n",
        b"\n",
        b"",
    ],
)
def test_what_shows_nothing_is_nothing(raw: bytes) -> None:
    assert CHAT.read_event(raw) == NOTHING


def test_finish_reasons_usage_and_done_are_read() -> None:
    assert CHAT.read_event(chunk({}, "stop")) == EventFacts(finish_reason="stop")
    both = CHAT.read_event(chunk({"content": "x"}, "length", usage=USAGE))
    assert both == EventFacts(first_content=True, finish_reason="length", usage=READ_USAGE)
    assert CHAT.read_event(b"data: [DONE]\n\n") == EventFacts(terminal=True)
    assert CHAT.read_event(b"data:[DONE] trailing\r\n\r\n") == EventFacts(terminal=True)


@pytest.mark.parametrize("extra", [{"choices": []}, {"choices": None}, {}])
def test_a_chunk_of_usage_alone_says_so(extra: dict[str, Any]) -> None:
    assert CHAT.read_event(event({"usage": USAGE, **extra})) == EventFacts(usage=READ_USAGE, usage_only=True)


def test_usage_beside_a_choice_is_not_alone() -> None:
    assert not CHAT.read_event(chunk({"content": ""}, usage=USAGE)).usage_only


def test_usage_is_found_where_groq_and_deepseek_put_it() -> None:
    groq = CHAT.read_event(
        chunk({}, "stop", x_groq={"id": "r", "usage": {"prompt_tokens": 1, "completion_tokens": 2}})
    )
    assert groq.usage == Usage(1, 2)
    deepseek = CHAT.read_event(
        event({"choices": [], "usage": {"prompt_tokens": 9, "prompt_cache_hit_tokens": 8}})
    )
    assert deepseek.usage == Usage(9, None, 8)


@pytest.mark.parametrize(
    "usage", [{}, [], "x", {"prompt_tokens": "1"}, {"prompt_tokens": -1}, {"prompt_tokens": True}]
)
def test_what_is_no_count_is_no_usage(usage: object) -> None:
    assert CHAT.read_event(event({"choices": [], "usage": usage})).usage is None


@pytest.mark.parametrize(
    "raw",
    [
        event({"error": {"code": 400, "message": "no"}}),
        event({"error": "no"}),
        chunk({"content": ""}, "error", error={"code": 502, "message": "gone"}),
        chunk({"content": ""}, "error"),
        event({"object": "error", "message": "no", "code": 400}),
        b"event: error\ndata: {}\n\n",
        b"event: error\ndata: oops\n\n",
        b"event: error\r\n\r\n",
    ],
)
def test_errors_in_a_stream_are_errors(raw: bytes) -> None:
    facts = CHAT.read_event(raw)
    assert facts.error
    assert not facts.usage_only


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_any_line_end_comment_and_split_data_is_read(end: str) -> None:
    lines = [
        ": hb",
        "event: message",
        'data: {"choices":[{"delta":',
        'data: {"content":"x"}}]}',
        "id: 1",
        "",
        "",
    ]
    assert CHAT.read_event(end.join(lines).encode()).first_content
    assert CHAT.read_event(b"\xef\xbb\xbf" + end.join(lines[2:]).encode()).first_content


def test_odd_shapes_cost_only_what_is_odd() -> None:
    surrogate = b'data: {"choices":[{"delta":{"content":"\\ud83c"}}]}\n\n'
    assert CHAT.read_event(surrogate).first_content
    assert CHAT.read_event(b'data: {"choices":[{"delta":{"content":"x"}}],"x":NaN}\n\n') == NOTHING
    odd = event({"choices": "x", "usage": {"prompt_tokens": 3}})
    assert CHAT.read_event(odd).usage == Usage(3)
    assert CHAT.read_event(event({"choices": 3, "error": {"message": "no"}})).error


@given(st.binary(max_size=60) | st.text('data:{}[]"\r\n,choiesltn \\u', max_size=60).map(str.encode))
def test_no_bytes_make_reading_fail(raw: bytes) -> None:
    assert isinstance(CHAT.read_event(raw), EventFacts)
    assert isinstance(CHAT.read_event(b"data: " + raw + b"\n\n"), EventFacts)
    CHAT.read_body(raw)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3) | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "delta", "message", "content", "usage", "tool_calls", "function", "finish_reason"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["choices", "usage", "error", "object", "x_groq"]), JSON))
def test_no_shape_makes_reading_fail(value: dict[str, Any]) -> None:
    assert isinstance(CHAT.read_event(event(value)), EventFacts)
    CHAT.read_body(json.dumps(value).encode())
    CHAT.waits_for_person(Document.parse(json.dumps({"messages": value}).encode()))


def test_markers_stand_in_every_event_that_matters_and_in_no_plain_delta() -> None:
    def marked(raw: bytes) -> bool:
        return is_marked(raw, CHAT.markers, CHAT.end_key)

    spaced = b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n'
    usage = b'data: {"choices" : [] , "usage" : {"prompt_tokens" : 3}}\n\n'
    for raw in (
        chunk({}, "stop"),
        spaced,
        spaced.replace(b'": "', b'"\t:\ndata:  "'),
        spaced.replace(b'": "', b'"\ndata::"'),
        spaced.replace(b"finish_reason", b"finish\\u005freason"),
        spaced.replace(b"finish_reason", b"finish_\\u0072eason"),
        usage,
        event({"error": "x"}),
        b"data: [DONE]\n\n",
        b"event: error\n\n",
    ):
        assert marked(raw)
        assert CHAT.read_event(raw) != NOTHING
    assert not marked(chunk({"content": 'say "usage" and max_tokens.'}, usage=None))
    assert not marked(chunk({"content": "hi"}))
    assert not marked(b'data: {"choices":[{"delta":{"content":"\\u00e9"},"finish_reason":null}]}\n\n')
    assert not marked(b'data: {"choices": [{"delta": {"content": "x"}, "finish_reason": null}]}\n\n')


# --- bodies ------------------------------------------------------------------------------------------------


def answer(message: object, finish_reason: str | None = "stop", **more: Any) -> bytes:
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    return json.dumps({"object": "chat.completion", "choices": [choice], "usage": USAGE, **more}).encode()


def test_a_body_tells_usage_and_finish_reason() -> None:
    facts = CHAT.read_body(answer({"role": "assistant", "content": "hi"}))
    assert (facts.usage, facts.finish_reason, facts.error, facts.empty) == (READ_USAGE, "stop", False, False)


@pytest.mark.parametrize(
    ("message", "empty"),
    [
        ({"content": ""}, True),
        ({"content": None}, True),
        ({"content": "", "reasoning_content": "thought and thought"}, True),
        ({"content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}, False),
        ({"content": None, "refusal": "no"}, False),
        ({"content": None, "audio": {"data": "AA"}}, False),
    ],
)
def test_an_answer_without_anything_visible_is_empty(message: object, empty: bool) -> None:
    assert CHAT.read_body(answer(message, "length")).empty is empty


@pytest.mark.parametrize(
    "raw",
    [
        b'{"error":{"message":"no","code":400}}',
        b'[{"error":{"code":400}}]',
        b'{"object":"error","message":"no"}',
        answer({"content": ""}, "error"),
    ],
)
def test_error_bodies_are_errors(raw: bytes) -> None:
    assert CHAT.read_body(raw).error


@pytest.mark.parametrize("raw", [b"", b"<html>", b"null", b"[]", b'"x"', b"{}", b"\xff", b"[" * 5000])
def test_other_bodies_say_nothing(raw: bytes) -> None:
    facts = CHAT.read_body(raw)
    assert facts == type(facts)()


# --- the rest ----------------------------------------------------------------------------------------------


def test_an_error_event_is_what_sdks_raise() -> None:
    raw = CHAT.error_event('broke "midway" \ud800', "upstream_closed", None)
    assert raw.startswith(b"data: {")
    assert raw.endswith(b"\n\n")
    error = json.loads(raw.removeprefix(b"data: "))["error"]
    assert error == {
        "message": 'broke "midway" \ud800',
        "type": "upstream_error",
        "param": None,
        "code": "upstream_closed",
    }
    assert CHAT.read_event(raw).error
    assert b"[DONE]" not in raw


@pytest.mark.parametrize(
    ("messages", "waits"),
    [
        ([{"role": "user", "content": "hi"}], False),
        ([{"role": "tool", "tool_call_id": "1", "content": "4"}], True),
        ([{"role": "function", "name": "f", "content": "4"}], True),
        ([{"role": "tool", "content": "4"}, {"role": "user", "content": "and?"}], False),
        ([], False),
        ("text", False),
        ([3], False),
        (None, False),
    ],
)
def test_a_tools_result_at_the_end_is_a_loop(messages: object, waits: bool) -> None:
    assert CHAT.waits_for_person(body(messages=messages)) == ("tool loop in progress" if waits else None)
