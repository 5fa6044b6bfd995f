"""What a batch keeps of the request that created it."""

from __future__ import annotations

import pytest

from proxy.batch_server.creation import (
    batch_id,
    file_id,
    is_batch_id,
    is_file_id,
    kept_headers,
    named_batch_id,
)
from proxy.core.errors import HEADERS_TOO_LARGE, ProxyError
from proxy.http.head import RequestHead


def _head(*fields: tuple[str, str]) -> RequestHead:
    headers = [(name.lower().encode(), name.encode(), value.encode()) for name, value in fields]
    return RequestHead(b"POST", b"/v1/batches", "1.1", headers)


def _kept(*fields: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    head = _head(*fields)
    return kept_headers(head.headers, head.fields)


def test_keeps_what_routes_match_and_upstreams_read() -> None:
    fields = (("User-Agent", "OpenAI/Python"), ("X-Team", "a"), ("X-Team", "b"), ("OpenAI-Beta", "x=1"))
    assert _kept(*fields) == fields


@pytest.mark.parametrize(
    "name",
    [
        "Authorization",
        "api-key",
        "X-Api-Key",
        "Cookie",
        "OpenAI-Organization",
        "X-Auth-Token",
        "X-Session",
        "X-Amz-Security-Token",
        "X-Client-Secret",
        "Proxy-Authorization",
        "X-Signature",
        "Host",
        "Connection",
        "Transfer-Encoding",
        "Content-Length",
        "Content-Type",
        "Accept",
        "Accept-Encoding",
        "Expect",
        "Prefer",
        "Idempotency-Key",
        "X-Stainless-Retry-Count",
        "x-weir-urgency",
        "x-weir-webhook",
    ],
)
def test_keeps_no_secret_and_nothing_of_this_one_request(name: str) -> None:
    assert _kept((name, "v"), ("X-Team", "a")) == (("X-Team", "a"),)


def test_keeps_nothing_that_belongs_to_the_connection() -> None:
    assert _kept(("Connection", "x-hop"), ("X-Hop", "1")) == ()


@pytest.mark.parametrize(
    "fields", [[(f"X-{n}", "v") for n in range(65)], [("X-Long", "v" * 17_000)]], ids=["many", "long"]
)
def test_refuses_more_than_it_keeps(fields: list[tuple[str, str]]) -> None:
    with pytest.raises(ProxyError) as refused:
        _kept(*fields)
    assert refused.value.kind is HEADERS_TOO_LARGE


def test_an_id_follows_from_key_owner_and_body_alone() -> None:
    first = named_batch_id(b"salt", "owner", b"key", b"body", 0)
    assert first == named_batch_id(b"salt", "owner", b"key", b"body", 0)
    others = {
        named_batch_id(b"other", "owner", b"key", b"body", 0),
        named_batch_id(b"salt", "other", b"key", b"body", 0),
        named_batch_id(b"salt", "owner", b"other", b"body", 0),
        named_batch_id(b"salt", "owner", b"key", b"other", 0),
        named_batch_id(b"salt", "owner", b"key", b"body", 1),
    }
    assert len({first} | others) == 6
    assert all(map(is_batch_id, {first} | others))


def test_new_ids_are_ids() -> None:
    assert is_file_id(file_id())
    assert is_batch_id(batch_id())
    assert file_id() != file_id()


@pytest.mark.parametrize("text", ["", "file-", "file-" + "0" * 31, "file-" + "0" * 33, "file-{" + "0" * 31])
def test_what_could_be_no_id_is_told_from_one(text: str) -> None:
    assert not is_file_id(text)
    assert not is_file_id(f"{file_id()}\n")
    assert not is_batch_id(text.replace("file-", "batch_"))
