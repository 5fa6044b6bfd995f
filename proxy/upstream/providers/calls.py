"""What every adapter does on the wire: calls under one credential, files up, result lines down.

Owns multipart, the announced length of what is uploaded, and lines that come whole whatever the pieces. One
error leaves it where there is no complete answer: `Unavailable`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from proxy.upstream.providers.answers import checked
from proxy.upstream.providers.batch_api import BatchInput, InputChanged, Unavailable
from proxy.upstream.providers.client import CallFailed, Fields, ProviderClient, Reply, Upload

JSON_TYPE = ("Content-Type", "application/json")
_BOUNDARY = "weir-5c1f0a9f4a6b4f5d8e0b7d1c2a3f4e5d"
_DIFFER = "a job was deleted while its line was on the way"


class Calls:
    """Calls to one upstream. `credential` are header fields of a caller, `headers` go with every call.

    `key_header` names the header that takes the key bare, where it is not the provider's usual one.
    """

    def __init__(
        self,
        client: ProviderClient,
        credential: Fields = (),
        headers: Fields = (),
        key_header: str | None = None,
    ) -> None:
        self._client = client
        self._credential = credential
        self._headers = tuple(headers)
        self._key_header = key_header

    @property
    def base_path(self) -> str:
        """The path of the upstream's base URL, without a slash at its end."""
        return self._client.target.base_path.decode("ascii")

    async def send(
        self, method: str, path: str, *, headers: Fields = (), body: bytes | Upload | None = None
    ) -> Reply:
        """Call and return the whole answer, whatever its status."""
        try:
            return await self._client.call(
                method,
                path,
                headers=(*self._headers, *headers),
                credential=self._credential,
                body=body,
                key_header=self._key_header,
            )
        except CallFailed as failed:
            raise Unavailable(str(failed), may_have_happened=failed.may_have_happened) from None

    async def send_json(self, method: str, path: str, value: Mapping[str, Any]) -> Reply:
        """Call with a JSON object, its keys in the order that they have."""
        return await self.send(method, path, headers=[JSON_TYPE], body=json.dumps(value).encode())

    async def lines(self, path: str) -> AsyncIterator[bytes]:
        """Yield the lines of a file without their ends; what no answer means is `checked`'s."""
        rest = bytearray()
        try:
            async with self._client.stream(
                "GET",
                path,
                headers=self._headers,
                credential=self._credential,
                key_header=self._key_header,
            ) as (reply, pieces):
                if reply.status != 200:
                    body = b"".join([piece async for piece in pieces])
                    checked(Reply(reply.status, reply.headers, body))
                async for piece in pieces:
                    rest += piece
                    if b"\n" in piece:
                        *lines, last = rest.split(b"\n")
                        rest = bytearray(last)
                        for line in lines:
                            yield bytes(line)
        except CallFailed as failed:
            raise Unavailable(str(failed), may_have_happened=failed.may_have_happened) from None
        if rest.strip():
            yield bytes(rest)

    async def upload(
        self, path: str, batch: BatchInput, form: Mapping[str, str], part_type: str = "application/jsonl"
    ) -> Reply:
        """Send a batch's lines as `file` of a form. Raises `InputChanged` where they are not as announced."""
        head, tail = _form(form, batch.file_name, part_type)
        return await self.upload_between(
            path, batch, head, tail, f"multipart/form-data; boundary={_BOUNDARY}"
        )

    async def upload_between(
        self, path: str, batch: BatchInput, head: bytes, tail: bytes, content_type: str, headers: Fields = ()
    ) -> Reply:
        """Send a batch's lines between two pieces of text, as `upload` does."""
        lines = _Counted(batch)
        body = Upload(len(head) + batch.size_bytes + len(tail), lines.between(head, tail))
        try:
            return await self.send(
                "POST", path, headers=[("Content-Type", content_type), *headers], body=body
            )
        except Unavailable:
            if lines.differ:
                raise InputChanged(_DIFFER) from None
            raise


def related(metadata: Mapping[str, Any]) -> tuple[bytes, bytes, str]:
    """Return what stands before and after the lines of a `multipart/related` upload, and its content type."""
    parts = (
        f"--{_BOUNDARY}",
        "Content-Type: application/json",
        "",
        json.dumps(metadata),
        f"--{_BOUNDARY}",
        "Content-Type: application/jsonl",
        "",
        "",
    )
    return "\r\n".join(parts).encode(), _end(), f"multipart/related; boundary={_BOUNDARY}"


async def whole_input(batch: BatchInput) -> bytes:
    """Return the lines of a small batch. Raises `InputChanged` where they are not as announced."""
    pieces = b"".join([piece async for piece in batch.lines()])
    if len(pieces) != batch.size_bytes:
        raise InputChanged(_DIFFER)
    return pieces


class _Counted:
    """Sends exactly as many bytes as were announced, or notices that it cannot."""

    def __init__(self, batch: BatchInput) -> None:
        self._batch = batch
        self.differ = False

    async def between(self, head: bytes, tail: bytes) -> AsyncIterator[bytes]:
        yield head
        left = self._batch.size_bytes
        async for piece in self._batch.lines():
            left -= len(piece)
            if left < 0:
                break
            yield piece
        if left:
            self.differ = True
            raise InputChanged("the lines are not those that were announced")
        yield tail


def _form(fields: Mapping[str, str], file_name: str, part_type: str) -> tuple[bytes, bytes]:
    parts: list[str] = []
    for name, value in fields.items():
        parts += [f"--{_BOUNDARY}", f'Content-Disposition: form-data; name="{name}"', "", value]
    parts += [
        f"--{_BOUNDARY}",
        f'Content-Disposition: form-data; name="file"; filename="{file_name}"',
        f"Content-Type: {part_type}",
        "",
        "",
    ]
    return "\r\n".join(parts).encode(), _end()


def _end() -> bytes:
    return f"\r\n--{_BOUNDARY}--\r\n".encode()
