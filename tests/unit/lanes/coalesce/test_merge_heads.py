"""Whose headers a merged call carries, and which an answer made from it has."""

from __future__ import annotations

from proxy import __version__
from proxy.http.head import RequestHead, ResponseHead
from proxy.lanes.coalesce.merge_heads import merged_request_head, own_response_head


def head(**values: str) -> RequestHead:
    named = {name.replace("_", "-"): value for name, value in values.items()}
    return RequestHead(
        b"POST",
        b"/v1/embeddings",
        "1.1",
        [(n.encode(), n.title().encode(), v.encode()) for n, v in named.items()],
    )


def sent(*heads: RequestHead) -> dict[bytes, bytes]:
    return merged_request_head(heads).fields


def test_what_all_say_alike_is_sent() -> None:
    both = {
        "host": "h",
        "authorization": "Bearer k",
        "user_agent": "OpenAI/Python 1",
        "x_stainless_os": "Linux",
    }
    assert sent(head(**both), head(**both)) == {
        b"host": b"h",
        b"authorization": b"Bearer k",
        b"user-agent": b"OpenAI/Python 1",
        b"x-stainless-os": b"Linux",
    }


def test_what_differs_is_nobodys_and_the_user_agent_becomes_weirs() -> None:
    first = head(user_agent="a", traceparent="00-1", x_forwarded_for="10.0.0.1", x_stainless_retry_count="0")
    second = head(user_agent="b", traceparent="00-2", x_forwarded_for="10.0.0.2")
    assert sent(first, second) == {b"user-agent": f"weir/{__version__}".encode()}


def test_names_of_one_request_are_never_sent_not_even_equal_ones() -> None:
    same = {"x_request_id": "1", "idempotency_key": "2", "x_client_request_id": "3"}
    assert sent(head(**same), head(**same)) == {}


def test_an_answer_has_what_is_about_the_service_and_an_id_of_its_own() -> None:
    names = {
        "content-type": "application/json",
        "content-length": "900",
        "x-request-id": "req_upstream",
        "x-ratelimit-remaining-requests": "3",
        "set-cookie": "__cf_bm=1",
        "openai-version": "2020-10-01",
        "retry-after": "2",
        "cf-ray": "1",
        "etag": "x",
    }
    upstream = ResponseHead(200, b"OK", [(n.encode(), n.encode(), v.encode()) for n, v in names.items()])
    own = own_response_head(upstream, "abc1", 12)
    assert own.fields == {
        b"content-type": b"application/json",
        b"openai-version": b"2020-10-01",
        b"retry-after": b"2",
        b"x-request-id": b"abc1",
        b"content-length": b"12",
    }
    assert b"content-length" not in own_response_head(upstream, "abc1", None).fields


def test_an_error_or_redirection_keeps_what_it_cannot_be_read_without() -> None:
    names = {"location": "/v2", "content-encoding": "gzip", "set-cookie": "a=1", "content-type": "text/plain"}
    headers = [(n.encode(), n.encode(), v.encode()) for n, v in names.items()]
    kept = {b"location", b"content-encoding", b"content-type", b"x-request-id", b"content-length"}
    for status in (307, 429):
        assert own_response_head(ResponseHead(status, b"", list(headers)), "id", 3).fields.keys() == kept
    assert b"location" not in own_response_head(ResponseHead(200, b"", list(headers)), "id", 3).fields
