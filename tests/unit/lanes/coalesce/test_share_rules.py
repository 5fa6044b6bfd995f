"""Which requests may have one answer, and which forms of it one call serves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from proxy.core.clock import ManualClock
from proxy.dialects.chat import CHAT
from proxy.dialects.completions import COMPLETIONS
from proxy.dialects.dialect import Dialect
from proxy.dialects.embeddings import EMBEDDINGS
from proxy.dialects.messages import MESSAGES
from proxy.dialects.responses import RESPONSES
from proxy.lanes.coalesce.share_rules import Form, Serving, choices_asked, form_of, may_share, serving
from proxy.lanes.lane import Outgoing, Pooling
from proxy.policy.model import CoalescePolicy, Sharing
from proxy.upstream.pool import Pool
from tests.support.direct_lane import outgoing, pool

ALWAYS = CoalescePolicy(share=Sharing.ALWAYS)


@pytest.fixture
def connections() -> Iterator[Pool]:
    loop = asyncio.new_event_loop()
    yield pool(loop, ManualClock())
    loop.close()


def planned(connections: Pool, fields: str, dialect: Dialect = CHAT, **how: Any) -> tuple[Pooling, Outgoing]:
    sent = outgoing(
        connections, b'{"model":"m"%b}' % (f",{fields}" if fields else "").encode(), dialect, **how
    )
    assert sent.pooling is not None
    return sent.pooling, sent


@pytest.mark.parametrize(
    "fields",
    ['"temperature":0', '"temperature":0.0', '"temperature":-0e3', '"seed":7', '"seed":7,"temperature":2'],
)
@pytest.mark.parametrize("dialect", [CHAT, COMPLETIONS, RESPONSES, MESSAGES])
def test_what_is_deterministic_is_shared(connections: Pool, fields: str, dialect: Dialect) -> None:
    assert may_share(planned(connections, fields, dialect)[0])


@pytest.mark.parametrize(
    "fields",
    [
        "",
        '"temperature":1',
        '"temperature":null',
        '"temperature":0.001',
        '"seed":null',
        '"temperature":1,"temperature":0',
        '"temperature":0,"tools":[{"type":"web_search"}]',
        '"temperature":0,"tools":[7]',
        '"temperature":0,"web_search_options":{}',
        '"temperature":0,"plugins":[{"id":"web"}]',
        '"temperature":0,"mcp_servers":[{"type":"url","url":"https://example.com/mcp"}]',
    ],
)
def test_what_is_not_is_not(connections: Pool, fields: str) -> None:
    assert not may_share(planned(connections, fields)[0])


def test_a_callers_own_tools_are_no_reason_against_it(connections: Pool) -> None:
    fields = '"temperature":0,"tools":[{"type":"function","function":{"name":"f"}},{"name":"g"}]'
    assert may_share(planned(connections, fields)[0])


@pytest.mark.parametrize(
    "fields",
    ['"background":true', '"conversation":"c"', '"previous_response_id":"r"', '"container":"c"'],
)
@pytest.mark.parametrize("policy", [CoalescePolicy(), ALWAYS])
def test_what_changes_what_the_provider_keeps_is_never_shared(
    connections: Pool, fields: str, policy: CoalescePolicy
) -> None:
    assert not may_share(planned(connections, f'"temperature":0,{fields}', RESPONSES, policy=policy)[0])


def test_a_policy_may_share_everything(connections: Pool) -> None:
    assert may_share(planned(connections, "", policy=ALWAYS)[0])
    assert not may_share(planned(connections, "", EMBEDDINGS, policy=ALWAYS)[0])


@pytest.mark.parametrize(
    ("fields", "dialect", "choices"),
    [
        ("", CHAT, 1),
        ('"n":3', CHAT, 3),
        ('"n":null', CHAT, 1),
        ('"n":0', CHAT, 1),
        ('"n":"many"', CHAT, 1),
        ('"n":1e999', CHAT, 1),
        ('"n":2,"prompt":"a"', COMPLETIONS, 2),
        ('"n":2,"prompt":["a","b","c"]', COMPLETIONS, 6),
        ('"prompt":[1,2,3]', COMPLETIONS, 1),
        ('"prompt":[[1,2],[3]]', COMPLETIONS, 2),
        ('"prompt":[]', COMPLETIONS, 1),
        ('"input":["a","b"]', RESPONSES, 1),
    ],
)
def test_so_many_choices_make_a_whole_answer(
    connections: Pool, fields: str, dialect: Dialect, choices: int
) -> None:
    assert choices_asked(planned(connections, fields, dialect)[0]) == choices


def form(connections: Pool, fields: str, dialect: Dialect = CHAT) -> Form:
    return form_of(*planned(connections, fields, dialect))


@pytest.mark.parametrize(
    ("fields", "is_stream", "has_usage"),
    [
        ("", False, True),
        ('"stream":true', True, False),
        ('"stream":true,"stream_options":null', True, False),
        ('"stream":true,"stream_options":{"include_usage":false}', True, False),
        ('"stream":true,"stream_options":{"include_usage":true}', True, True),
        ('"stream":true,"stream_options":{"include_usage":true,"include_obfuscation":false}', True, True),
    ],
)
def test_a_form_is_streamed_or_not_and_with_usage_or_without(
    connections: Pool, fields: str, is_stream: bool, has_usage: bool
) -> None:
    found = form(connections, fields)
    assert (found.is_stream, found.has_usage, found.options) == (is_stream, has_usage, b"")


def test_some_apis_tell_usage_unasked(connections: Pool) -> None:
    assert form(connections, '"stream":true', RESPONSES).has_usage
    assert form(connections, '"stream":true', MESSAGES).has_usage


@pytest.mark.parametrize("options", ['{"include_usage":true,"continuous_usage_stats":true}', "[1]"])
def test_other_options_are_kept_apart(connections: Pool, options: str) -> None:
    odd = form(connections, f'"stream":true,"stream_options":{options}')
    plain = form(connections, '"stream":true,"stream_options":{"include_usage":true}')
    whole = form(connections, "")
    assert serving(odd, odd, "chat") is Serving.RAW
    assert {serving(*pair, "chat") for pair in [(odd, plain), (plain, odd), (odd, whole), (whole, odd)]} == {
        None
    }


WHOLE, TOLD, SILENT = Form(False, True), Form(True, True), Form(True, False)


@pytest.mark.parametrize(
    ("call", "asked", "expected"),
    [
        (WHOLE, WHOLE, Serving.RAW),
        (WHOLE, TOLD, Serving.EVENTS),
        (WHOLE, SILENT, Serving.EVENTS),
        (TOLD, TOLD, Serving.RAW),
        (TOLD, WHOLE, Serving.ASSEMBLED),
        (TOLD, SILENT, None),
        (SILENT, SILENT, Serving.RAW),
        (SILENT, WHOLE, None),
        (SILENT, TOLD, None),
    ],
)
def test_forms_are_served_from_forms(call: Form, asked: Form, expected: Serving | None) -> None:
    assert serving(call, asked, "chat") is expected


def test_sound_is_served_as_it_was_asked_for(connections: Pool) -> None:
    whole = form(connections, '"audio":{"voice":"v"}')
    stream = form(connections, '"stream":true,"stream_options":{"include_usage":true},"audio":{"voice":"v"}')
    assert serving(whole, stream, "chat") is None
    assert serving(stream, whole, "chat") is None
    assert serving(stream, stream, "chat") is Serving.RAW


@pytest.mark.parametrize(
    ("dialect", "stored", "unstored"),
    [
        (CHAT, ['"store":true'], ["", '"store":false', '"store":null']),
        (RESPONSES, ["", '"store":true', '"store":null'], ['"store":false']),
    ],
)
def test_what_is_kept_is_apart_from_what_is_not(
    connections: Pool, dialect: Dialect, stored: list[str], unstored: list[str]
) -> None:
    kept = {form(connections, fields, dialect) for fields in stored}
    forgotten = {form(connections, fields, dialect) for fields in unstored}
    assert len(kept) == len(forgotten) == 1
    assert serving(kept.pop(), forgotten.pop(), dialect.name) is None


def test_streams_asked_for_in_other_codings_are_apart() -> None:
    other = msgspec.structs.replace(TOLD, coding=b"identity")
    assert serving(TOLD, other, "chat") is None
