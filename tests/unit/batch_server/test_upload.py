"""Bounds of a form that no test should have to fill to the brim."""

from __future__ import annotations

import asyncio

import pytest

from proxy.batch_server.incoming import IncomingBody
from proxy.batch_server.upload import CHUNK_BYTES, Form, read_form
from proxy.core.errors import BODY_TOO_LARGE, ProxyError
from tests.support.forms import CONTENT_TYPE, upload_form


def _read(content: bytes, most_file_bytes: int) -> tuple[Form, list[tuple[int, bytes]]]:
    kept: list[tuple[int, bytes]] = []

    async def keep(index: int, data: bytes) -> None:
        kept.append((index, data))

    async def run() -> Form:
        body = IncomingBody(lambda is_writable: None, 100 * CHUNK_BYTES)
        body.feed(upload_form(content))
        body.end()
        return await read_form(CONTENT_TYPE, body, keep, most_file_bytes)

    return asyncio.run(run()), kept


@pytest.mark.parametrize("size", [1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES])
def test_a_file_is_kept_in_chunks_of_one_size(size: int) -> None:
    content = bytes(number % 251 for number in range(size))
    form, kept = _read(content, size)
    assert b"".join(data for _, data in kept) == content
    assert [index for index, _ in kept] == list(range(len(kept)))
    assert all(len(data) == CHUNK_BYTES for _, data in kept[:-1])
    assert (form.size_bytes, form.chunk_count) == (size, len(kept))


def test_a_file_that_is_too_large_is_refused() -> None:
    with pytest.raises(ProxyError) as refused:
        _read(b"x" * 1001, 1000)
    assert refused.value.kind is BODY_TOO_LARGE
