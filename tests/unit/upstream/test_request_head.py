"""The head that an upstream gets: the caller's, byte for byte, less what is not meant for it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.http.head import HOP_BY_HOP, Header, RequestHead
from proxy.http.limits import ServerLimits
from proxy.http.request_reader import RequestReader
from proxy.upstream.request_head import CREDENTIAL_HEADERS, BodyPlan, Sender, write_request_head

Pair = tuple[bytes, bytes]

OWN_KEY = Sender(b"up.test", (b"authorization", b"Authorization", b"Bearer own"))
NO_KEY = Sender(b"up.test")
REFUSED_TOGETHER = frozenset({b"host", b"content-length", b"transfer-encoding", b"expect"})

_own = {b"x-weir-urgency", b"X-Weir-Anything"}
_special = sorted(HOP_BY_HOP | CREDENTIAL_HEADERS | _own | {b"accept-encoding", b"content-encoding"})
_names = st.one_of(
    st.sampled_from(_special),
    st.sampled_from([b"X-A", b"x-a", b"User-Agent", b"OpenAI-Beta", b"traceparent", b"Host2"]),
    st.from_regex(rb"\A[A-Za-z0-9!#$%&'*+.^_`|~-]{1,8}\Z"),
).filter(lambda name: name.lower() not in REFUSED_TOGETHER)
_values = st.one_of(
    st.sampled_from([b"", b"x", b"close", b"X-A, keep-alive", b"Bearer caller", b"websocket"]),
    st.binary(max_size=10).map(lambda raw: bytes(0x21 + byte % 0x5E for byte in raw)),
)
_pairs = st.lists(st.tuples(_names, _values), max_size=12)
_plans = st.sampled_from(
    [
        BodyPlan(),
        BodyPlan(0),
        BodyPlan(7),
        BodyPlan(is_chunked=True),
        BodyPlan(7, replaced={b"accept-encoding": b"identity"}),
        BodyPlan(7, replaced={b"content-encoding": None}),
    ]
)


def request(pairs: Sequence[Pair], *more: Pair) -> RequestHead:
    headers: list[Header] = [(name.lower(), name, value) for name, value in (*pairs, *more)]
    return RequestHead(b"POST", b"/v1/x?a=%20", "1.1", headers)


def written(head: RequestHead, sender: Sender, plan: BodyPlan) -> list[Pair]:
    """Return the header lines that are sent; a strict server must be able to read them."""
    raw = write_request_head(head, b"/base/x?a=%20", sender, plan)
    reader = RequestReader(ServerLimits())
    reader.feed(raw)
    assert reader.failure is None, (reader.failure, raw)
    (incoming,) = reader.queue
    assert (incoming.head.method, incoming.head.target) == (b"POST", b"/base/x?a=%20")
    assert incoming.ended is ((plan.length_bytes or 0) == 0 and not plan.is_chunked)
    return [(name, value) for _, name, value in incoming.head.headers]


@given(_pairs, _plans, st.sampled_from([NO_KEY, OWN_KEY]), st.integers(0, 12), st.booleans())
def test_every_end_to_end_header_arrives_as_it_was_written_and_in_its_place(
    pairs: list[Pair], plan: BodyPlan, sender: Sender, host_at: int, has_length: bool
) -> None:
    own = [(b"HOST", b"weir.test"), (b"Content-Length", b"99")] if has_length else [(b"HOST", b"weir.test")]
    lines = [*pairs[:host_at], *own, *pairs[host_at:]]
    listed = b",".join(value for name, value in lines if name.lower() == b"connection")
    options = {option.strip().lower() for option in listed.split(b",")}
    dropped = HOP_BY_HOP | REFUSED_TOGETHER | plan.replaced.keys() | options
    if sender.credential is not None:
        dropped = dropped | CREDENTIAL_HEADERS

    def passes(name: bytes) -> bool:
        return name.lower() not in dropped and not name.lower().startswith(b"x-weir-")

    sent = written(request(lines), sender, plan)
    assert [pair for pair in sent if passes(pair[0])] == [pair for pair in lines if passes(pair[0])]
    names = [name.lower() for name, _ in sent]
    assert not any(name.startswith(b"x-weir-") for name in names)
    assert names.count(b"host") == 1
    assert names.count(b"content-length") == int(plan.length_bytes is not None)
    assert names.count(b"transfer-encoding") == int(plan.is_chunked)
    assert b"connection" not in names


@given(_pairs, _plans)
def test_an_upstream_with_a_key_gets_that_key_once_and_nothing_of_the_callers(
    pairs: list[Pair], plan: BodyPlan
) -> None:
    sent = written(request(pairs, (b"Host", b"weir.test")), OWN_KEY, plan)
    credentials = [(name.lower(), value) for name, value in sent if name.lower() in CREDENTIAL_HEADERS]
    assert credentials == [(b"authorization", b"Bearer own")]


def test_the_key_takes_the_place_and_the_spelling_of_the_callers() -> None:
    pairs = [(b"X-A", b"1"), (b"AUTHORIZATION", b"Bearer caller"), (b"X-B", b"2"), (b"Host", b"a")]
    sent = written(request(pairs), OWN_KEY, BodyPlan())
    assert sent == [(b"X-A", b"1"), (b"AUTHORIZATION", b"Bearer own"), (b"X-B", b"2"), (b"Host", b"up.test")]


@pytest.mark.parametrize("value", [b"", b"x", b"Bearer caller"])
def test_a_header_that_came_twice_is_replaced_once(value: bytes) -> None:
    pairs = [(b"Authorization", value), (b"Accept-Encoding", value)] * 2
    plan = BodyPlan(replaced={b"accept-encoding": b"identity"})
    sent = written(request(pairs, (b"Host", b"a")), OWN_KEY, plan)
    assert sent == [
        (b"Authorization", b"Bearer own"),
        (b"Accept-Encoding", b"identity"),
        (b"Host", b"up.test"),
    ]


def test_a_caller_without_a_host_or_a_length_gets_both() -> None:
    head = RequestHead(b"POST", b"/", "1.0", [])
    assert written(head, NO_KEY, BodyPlan(3)) == [(b"Host", b"up.test"), (b"Content-Length", b"3")]


@pytest.mark.parametrize(
    ("came", "plan", "goes"),
    [
        ((b"Content-Length", b"99"), BodyPlan(3), (b"Content-Length", b"3")),
        ((b"content-length", b"99"), BodyPlan(3), (b"content-length", b"3")),
        ((b"Transfer-Encoding", b"chunked"), BodyPlan(3), (b"Content-Length", b"3")),
        ((b"Transfer-Encoding", b"chunked"), BodyPlan(is_chunked=True), (b"Transfer-Encoding", b"chunked")),
        ((b"Content-Length", b"99"), BodyPlan(is_chunked=True), (b"Transfer-Encoding", b"chunked")),
    ],
)
def test_the_framing_stands_where_the_callers_stood(came: Pair, plan: BodyPlan, goes: Pair) -> None:
    sent = written(request([(b"X-A", b"1"), came, (b"Host", b"a")]), NO_KEY, plan)
    assert sent == [(b"X-A", b"1"), goes, (b"Host", b"up.test")]


def test_a_handshake_keeps_what_asks_for_the_other_protocol_and_nothing_else_does() -> None:
    pairs = [(b"Connection", b"keep-alive, Upgrade"), (b"Upgrade", b"websocket"), (b"Host", b"a")]
    head = request(pairs)
    kept = write_request_head(head, b"/", NO_KEY, BodyPlan(keeps_upgrade=True))
    assert b"\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n" in kept
    assert b"pgrade" not in write_request_head(head, b"/", NO_KEY, BodyPlan())


def test_a_forward_proxy_is_told_who_asks_and_never_with_the_callers_word() -> None:
    sender = Sender(b"up.test", None, (b"proxy-authorization", b"Proxy-Authorization", b"Basic own"))
    pairs = [(b"Proxy-Authorization", b"Basic caller"), (b"Host", b"a")]
    sent = written(request(pairs), sender, BodyPlan())
    assert [value for name, value in sent if name.lower() == b"proxy-authorization"] == [b"Basic own"]


def test_no_secret_shows_in_a_representation() -> None:
    assert "own" not in repr(OWN_KEY)
