"""Compressed request bodies: every coding that is understood, bombs within their bound, and nonsense."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from collections.abc import Callable

import brotli
import pytest
import zstandard

from proxy.core.errors import BODY_TOO_LARGE, INVALID_BODY, UNSUPPORTED_ENCODING, ErrorCode, ProxyError
from proxy.edge.request_body import decode_body

BODY = b'{"model":"gpt-4o","messages":[]}' * 100
LIMIT_BYTES = 1024 * 1024


def raw_deflate(data: bytes) -> bytes:
    return zlib.compress(data)[2:-4]


CODINGS: dict[bytes, Callable[[bytes], bytes]] = {
    b"gzip": gzip.compress,
    b"x-gzip": gzip.compress,
    b"GZIP": gzip.compress,
    b"deflate": zlib.compress,
    b" deflate ": raw_deflate,
    b"zstd": zstandard.compress,
    b"br": brotli.compress,
    b"identity": bytes,
    b"": bytes,
}
EVERY_CODING = pytest.mark.parametrize("coding", CODINGS)


def refusal(body: bytes, coding: bytes, limit_bytes: int = LIMIT_BYTES) -> ErrorCode:
    with pytest.raises(ProxyError) as raised:
        decode_body(body, coding, limit_bytes)
    return raised.value.kind


@EVERY_CODING
def test_every_coding_is_read(coding: bytes) -> None:
    assert decode_body(CODINGS[coding](BODY), coding, LIMIT_BYTES) == BODY


def test_codings_are_removed_in_reverse_order() -> None:
    assert decode_body(gzip.compress(zlib.compress(BODY)), b"deflate, gzip", LIMIT_BYTES) == BODY
    assert refusal(gzip.compress(zlib.compress(BODY)), b"gzip, deflate") is INVALID_BODY


def test_members_one_after_another_are_one_body() -> None:
    assert decode_body(gzip.compress(BODY) + gzip.compress(BODY), b"gzip", LIMIT_BYTES) == BODY * 2
    assert decode_body(zstandard.compress(BODY) + zstandard.compress(BODY), b"zstd", LIMIT_BYTES) == BODY * 2


@pytest.mark.parametrize("coding", [b"gzip", b"deflate", b"zstd", b"br"])
def test_a_bomb_is_refused_in_little_memory(coding: bytes) -> None:
    bomb = CODINGS[coding](bytes(64 * 1024 * 1024))
    tracemalloc.start()
    try:
        assert refusal(bomb, coding) is BODY_TOO_LARGE
        assert tracemalloc.get_traced_memory()[1] < 16 * 1024 * 1024
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("coding", [b"gzip", b"deflate", b"zstd", b"br"])
def test_what_is_cut_off_or_no_such_coding_is_invalid(coding: bytes) -> None:
    assert refusal(CODINGS[coding](BODY)[:-5], coding) is INVALID_BODY
    assert refusal(b"no such thing", coding) is INVALID_BODY


def test_an_unknown_coding_is_named_as_such() -> None:
    assert refusal(BODY, b"compress") is UNSUPPORTED_ENCODING
    assert refusal(gzip.compress(BODY), b"gzip, snappy") is UNSUPPORTED_ENCODING


def test_the_bound_itself_still_passes() -> None:
    assert decode_body(gzip.compress(BODY), b"gzip", len(BODY)) == BODY
    assert refusal(gzip.compress(BODY), b"gzip", len(BODY) - 1) is BODY_TOO_LARGE
