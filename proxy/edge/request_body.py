"""Decode a compressed request body so that a route can read it, within a bound.

gzip and deflate are always understood, zstd and br where their packages are installed.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable

from proxy.core.errors import BODY_TOO_LARGE, INVALID_BODY, UNSUPPORTED_ENCODING, ProxyError
from proxy.http.head import RequestHead

MAX_PLAIN_BYTES = 64 * 1024 * 1024
"""What a compressed body may become on a route that does not limit bodies."""

_STEP_BYTES = 64 * 1024

_MAX_LAYERS = 3
_MAX_MEMBERS = 64
"""Each member is followed by a copy of the rest, and empty ones compress to nearly nothing."""


def plain_body(head: RequestHead, body: bytes, max_bytes: int, must_read: bool) -> bytes:
    """Return a request's body as a route reads it: `body` itself where it is not compressed.

    Empty where it cannot be read and need not be. Raises ProxyError where it must.
    """
    coding = head.fields.get(b"content-encoding", b"identity")
    if not body or coding.lower() == b"identity":
        return body
    try:
        return decode_body(body, coding, max_bytes)
    except ProxyError:
        if must_read:
            raise
        return b""


def decode_body(body: bytes, coding: bytes, max_bytes: int) -> bytes:
    """Return the plain body of a request with `Content-Encoding: coding`.

    Raises ProxyError: 415 for a coding that is not understood, 413 for more than `max_bytes` of plain body,
    400 for data that is not what it claims to be.
    """
    names = [part.strip().lower() for part in coding.split(b",")]
    if len(names) > _MAX_LAYERS:
        raise ProxyError(UNSUPPORTED_ENCODING, "The request's body has too many content codings.")
    for name in reversed(names):
        if name in (b"", b"identity"):
            continue
        decoder = _decoder(name)
        if decoder is None:
            raise ProxyError(UNSUPPORTED_ENCODING, "This route cannot read the request's content coding.")
        try:
            body = decoder(body, max_bytes)
        except ProxyError:
            raise
        except Exception:
            # Each decoder has error types of its own, two of them in packages that may not be there.
            raise ProxyError(INVALID_BODY, "The request body is not valid in its content coding.") from None
    return body


def _decoder(name: bytes) -> Callable[[bytes, int], bytes] | None:
    match name:
        case b"gzip" | b"x-gzip":
            return lambda body, limit: _inflate(body, limit, 16 + zlib.MAX_WBITS)
        case b"deflate":
            return _deflate
        case b"zstd":
            return _optional("zstandard", _zstd)
        case b"br":
            return _optional("brotli", _brotli)
        case _:
            return None


def _optional(package: str, decoder: Callable[[bytes, int], bytes]) -> Callable[[bytes, int], bytes] | None:
    try:
        importlib.import_module(package)
    except ImportError:
        return None
    return decoder


def _deflate(body: bytes, max_bytes: int) -> bytes:
    """Read zlib data, or the raw deflate that some senders mean (RFC 9110 section 8.4.1.2)."""
    try:
        return _inflate(body, max_bytes, zlib.MAX_WBITS)
    except zlib.error:
        return _inflate(body, max_bytes, -zlib.MAX_WBITS)


def _inflate(body: bytes, max_bytes: int, window_bits: int) -> bytes:
    plain = b""
    for _ in range(_MAX_MEMBERS):
        if not body:
            return plain
        inflater = zlib.decompressobj(window_bits)
        plain += inflater.decompress(body, max_bytes - len(plain) + 1)
        if len(plain) > max_bytes:
            raise _too_large()
        if not inflater.eof:
            raise zlib.error("truncated")
        body = inflater.unused_data
    raise ValueError("too many members")


def _zstd(body: bytes, max_bytes: int) -> bytes:
    zstandard = importlib.import_module("zstandard")
    decompressor = zstandard.ZstdDecompressor(max_window_size=2**27)
    plain = b""
    reader = decompressor.stream_reader(body, read_across_frames=True)
    while piece := reader.read(_STEP_BYTES):
        plain += piece
        if len(plain) > max_bytes:
            raise _too_large()
    # The bounded reader takes a cut-off frame for a whole one. Now that the size is known to be within the
    # bound, the reader that tells, and has none, may look.
    for _ in range(_MAX_MEMBERS):
        if not body:
            return plain
        frame = decompressor.decompressobj()
        frame.decompress(body)
        if not frame.eof:
            raise ValueError("truncated")
        body = frame.unused_data
    raise ValueError("too many frames")


def _brotli(body: bytes, max_bytes: int) -> bytes:
    brotli = importlib.import_module("brotli")
    decoder = brotli.Decompressor()
    plain = b""
    while not decoder.is_finished():
        piece = decoder.process(body, output_buffer_limit=_STEP_BYTES)
        plain += piece
        if len(plain) > max_bytes:
            raise _too_large()
        if not piece and not body:
            raise ValueError("truncated")
        body = b""
    return plain


def _too_large() -> ProxyError:
    return ProxyError(BODY_TOO_LARGE, "The decompressed request body is larger than this route reads.")
