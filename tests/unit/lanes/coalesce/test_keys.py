"""What keeps requests apart, and what may differ."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.core.document import Document
from proxy.http.head import Header, RequestHead
from proxy.lanes.coalesce.keys import KEY_BYTES, request_key

BODY = b'{"model":"m","input":"a","dimensions":8,"user":"u"}'


def head(*lines: tuple[str, str], target: bytes = b"/v1/embeddings", method: bytes = b"POST") -> RequestHead:
    headers: list[Header] = [(n.lower().encode(), n.encode(), v.encode()) for n, v in lines]
    return RequestHead(method, target, "1.1", headers)


def key(*lines: tuple[str, str], body: bytes = BODY, **changes: Any) -> bytes:
    made: dict[str, Any] = {"strategy": "merge", "pool_id": 1, "model": "m", "without": ("input",)} | changes
    made.setdefault("head", head(*lines))
    return request_key(document=Document.parse(body), **made)


def test_a_key_is_short_and_the_same_for_the_same_request() -> None:
    assert len(key()) == KEY_BYTES
    assert key() == key()


@pytest.mark.parametrize(
    "name",
    [
        "Authorization",
        "api-key",
        "x-api-key",
        "x-goog-api-key",
        "Cookie",
        "OpenAI-Organization",
        "OpenAI-Project",
        "OpenAI-Beta",
        "anthropic-beta",
        "anthropic-version",
        "Accept",
        "Accept-Language",
        "Content-Type",
        "Content-Encoding",
        "Prefer",
        "x-anything-that-nobody-knows",
    ],
)
def test_who_pays_who_asks_and_what_may_change_the_answer_keeps_requests_apart(name: str) -> None:
    assert len({key((name, "a")), key((name, "b")), key()}) == 3


@pytest.mark.parametrize(
    "name",
    [
        "User-Agent",
        "traceparent",
        "tracestate",
        "X-Request-Id",
        "x-client-request-id",
        "Idempotency-Key",
        "x-stainless-retry-count",
        "x-stainless-anything",
        "Content-Length",
        "Date",
        "Host",
        "X-Forwarded-For",
        "Connection",
        "Keep-Alive",
        "x-weir-urgency",
    ],
)
def test_what_belongs_to_one_request_or_hop_may_differ(name: str) -> None:
    assert key((name, "a")) == key((name, "b")) == key()


def test_compression_keeps_requests_apart_unless_none_is_asked_for_anyway() -> None:
    lines = ("Accept-Encoding", "gzip"), ("Accept-Encoding", "br")
    assert key(lines[0]) != key(lines[1])
    assert key(lines[0], any_coding=True) == key(lines[1], any_coding=True)


def test_the_order_of_headers_does_not_matter_but_that_of_one_name_does() -> None:
    a, b, other = ("a", "1"), ("a", "2"), ("b", "3")
    assert key(a, other) == key(other, a)
    assert key(a, b) != key(b, a)


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","input":"a","dimensions":16,"user":"u"}',
        b'{"model":"m","input":"a","dimensions":8.0,"user":"u"}',
        b'{"model":"m","input":"a","dimensions":8,"user":"v"}',
        b'{"model":"m","input":"a","dimensions":8}',
        b'{"model":"m","input":"a","dimensions":8,"user":"u","encoding_format":"base64"}',
        b'{"model":"m","input":"a","dimensions":8,"user":"u","unknown":1}',
    ],
)
def test_every_other_member_of_the_body_keeps_requests_apart(body: bytes) -> None:
    assert key(body=body) != key()


def test_order_and_spacing_of_members_do_not_matter() -> None:
    assert key(body=b'{ "user": "u", "input": "other",\n "model": "m", "dimensions": 8 }') == key()


def test_upstream_target_method_model_strategy_and_kind_keep_requests_apart() -> None:
    changed = [
        key(pool_id=2),
        key(strategy="share"),
        key(model="n"),
        key(kind=b"tokens"),
        key(head=head(target=b"/v1/embeddings?api-version=1")),
        key(head=head(method=b"PUT")),
    ]
    assert len({key(), *changed}) == 7


def test_parts_cannot_be_mistaken_for_each_other() -> None:
    assert key(("ab", "c")) != key(("a", "bc"))
    assert key(body=b'{"a":"x","bc":1}') != key(body=b'{"a":"xb","c":1}')
    header_like_a_member = key(("a", '"x"'), body=b"{}")
    assert header_like_a_member != key(body=b'{"a":"x"}')


def test_without_a_body_only_head_and_model_count() -> None:
    ways: dict[str, Any] = {"strategy": "pace", "pool_id": 1, "head": head(), "document": None}
    assert request_key(model="m", **ways) == request_key(model="m", **ways)
    assert request_key(model="m", **ways) != request_key(model="n", **ways)
