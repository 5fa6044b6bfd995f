"""What callers may do with files: upload, list, look at, read and delete their own.

Somebody else's file is told like one that does not exist.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

import orjson

from proxy.batch_server.api_call import Answer, Streamed
from proxy.batch_server.creation import file_id as new_file_id
from proxy.batch_server.creation import is_file_id
from proxy.batch_server.incoming import IncomingBody
from proxy.batch_server.model import FilePurpose, StoredFile
from proxy.batch_server.objects import deleted_file, file_object, list_page
from proxy.batch_server.requests import FILE_SECONDS, read_file_listing, read_upload_wish
from proxy.batch_server.store import BatchStore, FileQuery
from proxy.batch_server.upload import read_form
from proxy.core.clock import Clock
from proxy.core.errors import (
    BATCH_STORE_UNAVAILABLE,
    FILE_NOT_FOUND,
    INVALID_VALUE,
    REQUEST_TIMEOUT,
    TOO_MANY_UPLOADS,
    UNSUPPORTED_ENCODING,
    ProxyError,
)
from proxy.http.head import RequestHead, ResponseHead
from proxy.jobs.store import Conflict, StoreError
from proxy.lanes.batch.answers import json_answer
from proxy.lanes.batch.identity import Identity

_FEW = 500
"""Objects that are put into JSON in a few milliseconds; more of them in a thread."""

_SHOWN_ID_CHARACTERS = 80

_RETRY_UPLOAD_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: `owner` is the digest that its files and batches are kept under."""

    identity: Identity
    owner: str


class Files:
    """Answers about files. Raises ProxyError, and what the store raises.

    At most `uploads_at_once` are taken at a time: each holds what its store has not kept yet.
    """

    def __init__(self, store: BatchStore, clock: Clock, uploads_at_once: int) -> None:
        self._store = store
        self._clock = clock
        self._free_uploads = uploads_at_once

    async def upload(self, caller: Caller, head: RequestHead, body: IncomingBody) -> Answer:
        """Keep a file as it comes. One too many is refused before it is read."""
        if not self._free_uploads:
            message = "As many files are being uploaded as this process takes at once."
            raise ProxyError(TOO_MANY_UPLOADS, message, retry_after_seconds=_RETRY_UPLOAD_SECONDS)
        self._free_uploads -= 1
        try:
            return await self._take(caller, head, body)
        finally:
            self._free_uploads += 1

    async def _take(self, caller: Caller, head: RequestHead, body: IncomingBody) -> Answer:
        if head.fields.get(b"content-encoding", b"identity").lower() != b"identity":
            raise ProxyError(UNSUPPORTED_ENCODING, "Files are uploaded uncompressed.")
        now = self._clock.wall()
        file = StoredFile(new_file_id(), caller.owner, FilePurpose.BATCH, "", now, now + FILE_SECONDS)
        has_begun = False

        async def keep(index: int, data: bytes) -> None:
            nonlocal has_begun
            if not has_begun:
                has_begun = True
                await self._store.create_file(file)
            await self._store.append_chunk(file.id, index, data)

        try:
            form = await read_form(head.fields.get(b"content-type", b"").decode("latin-1"), body, keep)
            wish = read_upload_wish(form.fields)
            file = replace(
                file,
                filename=form.filename,
                expires=now + wish.kept_seconds,
                size_bytes=form.size_bytes,
                chunk_count=form.chunk_count or 0,
                is_complete=True,
            )
            await self._store.complete_file(file)
        except Conflict:
            raise ProxyError(REQUEST_TIMEOUT, "The upload took so long that it was given up.") from None
        except (ProxyError, asyncio.CancelledError):
            # Of an upload that was refused or cut off nothing needs to lie around.
            if has_begun:
                await self._drop(file.id)
            raise
        return json_answer(200, orjson.dumps(file_object(file)))

    async def list(self, caller: Caller, query: str) -> Answer:
        """Return a page of the caller's files."""
        asked = read_file_listing(query)
        if asked.after is not None and not is_file_id(asked.after):
            raise unknown_after()
        files: tuple[StoredFile, ...] | None = ()
        if not caller.identity.is_anonymous and not asked.is_empty:
            files = await self._store.list_files(
                FileQuery(caller.owner, asked.purpose, asked.limit + 1, asked.after, asked.is_newest_first)
            )
        if files is None:
            raise unknown_after()

        def told() -> bytes:
            return page([file_object(file) for file in files], asked.limit)

        return json_answer(200, told() if len(files) <= _FEW else await asyncio.to_thread(told))

    async def show(self, caller: Caller, file_id: str) -> Answer:
        """Return what a file is."""
        return json_answer(200, orjson.dumps(file_object(await self.owned(caller, file_id))))

    async def content(self, caller: Caller, file_id: str, is_head_only: bool) -> Answer:
        """Return what a file holds."""
        file = await self.owned(caller, file_id)
        head = _content_head(file)
        if is_head_only:
            return head, b""
        # What cannot be read at all is told with a status.
        first = await self._store.chunk(file.id, 0) if file.chunk_count else b""
        if first is None:
            raise no_such_file(file_id)
        return Streamed(head, self._pieces(file, first))

    async def _pieces(self, file: StoredFile, first: bytes) -> AsyncIterator[bytes]:
        yield first
        for index in range(1, file.chunk_count):
            data = await self._store.chunk(file.id, index)
            if data is None:
                raise ProxyError(FILE_NOT_FOUND, "The file was deleted while it was read.")
            yield data

    async def delete(self, caller: Caller, file_id: str) -> Answer:
        """Erase a file."""
        file = await self.owned(caller, file_id)
        if not await self._store.delete_file(file.id):
            raise no_such_file(file_id)
        return json_answer(200, orjson.dumps(deleted_file(file.id)))

    async def owned(self, caller: Caller, file_id: str, param: str = "file_id") -> StoredFile:
        """Return a file of the caller's. Raises ProxyError (404)."""
        file = await self._store.file(file_id) if is_file_id(file_id) else None
        if file is None or not hmac.compare_digest(file.owner, caller.owner):
            raise no_such_file(file_id, param)
        return file

    async def _drop(self, file_id: str) -> None:
        try:
            await self._store.delete_file(file_id)
        except StoreError:
            # Incomplete as it is, it is purged before long.
            pass


def page(objects: list[dict[str, Any]], limit: int) -> bytes:
    """Return a page of at most `limit` objects, of which one more shows that there are more."""
    return orjson.dumps(list_page(objects[:limit], len(objects) > limit))


def unknown_after() -> ProxyError:
    """Return the refusal of a page that begins behind nothing."""
    return ProxyError(
        INVALID_VALUE, "Invalid value for 'after'. It must be an id of an earlier page.", "after"
    )


def store_away() -> ProxyError:
    """Return what is told while the store cannot be used."""
    message = "Files and batches cannot be reached now; they are not affected."
    return ProxyError(BATCH_STORE_UNAVAILABLE, message, retry_after_seconds=2)


def no_such_file(file_id: str, param: str = "file_id") -> ProxyError:
    """Return the refusal of a file that is not there, or not the caller's."""
    return ProxyError(FILE_NOT_FOUND, f"No such File object: {shown_id(file_id)}", param)


def shown_id(text: str) -> str:
    """Return an id as it may be repeated to whoever asked for it."""
    return text[:_SHOWN_ID_CHARACTERS].encode("utf-8", "backslashreplace").decode()


def _content_head(file: StoredFile) -> ResponseHead:
    name = quote(file.filename, safe="")
    fields = (
        (b"Content-Type", b"application/octet-stream"),
        (b"Content-Disposition", f"attachment; filename*=UTF-8''{name}".encode("ascii")),
        (b"Content-Length", b"%d" % file.size_bytes),
    )
    return ResponseHead(200, b"OK", [(field.lower(), field, value) for field, value in fields])
