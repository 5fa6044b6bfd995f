"""What callers may do with batches: create, list, look at and cancel their own."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from itertools import count

import orjson

from proxy.batch_server.api_call import Answer
from proxy.batch_server.creation import (
    IDEMPOTENCY_HEADER,
    IDEMPOTENT_SECONDS,
    file_id,
    is_batch_id,
    kept_headers,
    named_batch_id,
)
from proxy.batch_server.creation import batch_id as new_batch_id
from proxy.batch_server.credential import seal_caller
from proxy.batch_server.files import Caller, Files, page, shown_id, unknown_after
from proxy.batch_server.model import BatchStatus, FilePurpose, ServedBatch
from proxy.batch_server.objects import batch_object, shown_status
from proxy.batch_server.requests import FILE_SECONDS, BatchWish, read_batch_listing, read_batch_wish
from proxy.batch_server.store import BatchStore
from proxy.core.clock import Clock
from proxy.core.errors import (
    BATCH_HAS_ENDED,
    BATCH_NEEDS_SECRET_KEY,
    BATCH_NOT_FOUND,
    INVALID_VALUE,
    ProxyError,
)
from proxy.core.upstream import Upstream
from proxy.http.head import RequestHead
from proxy.jobs.sealing import Vault
from proxy.jobs.store import Conflict
from proxy.lanes.batch.answers import json_answer


class Batches:
    """Answers about batches. Raises ProxyError, and what stores raise.

    `wake` is called when a batch has become due.
    """

    def __init__(
        self, store: BatchStore, clock: Clock, files: Files, vault: Vault | None, wake: Callable[[], None]
    ) -> None:
        self._store = store
        self._clock = clock
        self._files = files
        self._vault = vault
        self._wake = wake

    async def create(
        self, caller: Caller, head: RequestHead, body: bytes, upstream: Upstream, webhook: str, salt: bytes
    ) -> Answer:
        """Keep a new batch; it is worked on from now on."""
        wish = read_batch_wish(body)
        now = self._clock.wall()
        key = head.fields.get(IDEMPOTENCY_HEADER)
        named = await self._named(salt, caller.owner, key, body, now) if key else new_batch_id()
        if isinstance(named, ServedBatch):
            return _told(named)
        file = await self._files.owned(caller, wish.input_file_id, "input_file_id")
        if file.purpose is not FilePurpose.BATCH:
            message = "The input file must have been uploaded with purpose 'batch'."
            raise ProxyError(INVALID_VALUE, message, "input_file_id")
        headers = kept_headers(head.headers, head.fields)
        credential = self._credential(caller, upstream)
        batch = ServedBatch(
            id=named,
            owner=caller.owner,
            upstream=upstream.name,
            endpoint=wish.endpoint,
            input_file_id=file.id,
            window=wish.window,
            created=now,
            expires=now + wish.window_seconds,
            output_file_id=file_id(),
            error_file_id=file_id(),
            output_seconds=wish.output_seconds,
            purge_at=_purge_at(now, wish),
            metadata=wish.metadata,
            headers=headers,
            credential=credential,
            webhook=webhook,
            due=now,
        )
        await self._store.create_batch(batch)
        self._wake()
        # Of two with the same key at once, the other may have been first.
        return _told(await self._store.batch(batch.id) or batch)

    async def _named(self, salt: bytes, owner: str, key: bytes, body: bytes, now: float) -> ServedBatch | str:
        """Return the batch that an `Idempotency-Key` means, or the id for a new one."""
        for use in count():
            named = named_batch_id(salt, owner, key, body, use)
            known = await self._store.batch(named)
            if known is None:
                return named
            if now - known.created < IDEMPOTENT_SECONDS:
                return known
        raise AssertionError("batches are purged")

    def _credential(self, caller: Caller, upstream: Upstream) -> bytes | None:
        if upstream.api_key is not None or caller.identity.is_anonymous:
            return None
        if self._vault is None:
            message = (
                "The lines of a batch are sent with its caller's credentials, which are kept only sealed: "
                f"set WEIR_SECRET_KEY for Weir, or give the upstream {upstream.name} an api_key of its own."
            )
            raise ProxyError(BATCH_NEEDS_SECRET_KEY, message)
        return seal_caller(self._vault, caller.owner, caller.identity.credential)

    async def list(self, caller: Caller, query: str) -> Answer:
        """Return a page of the caller's batches."""
        asked = read_batch_listing(query)
        if asked.after is not None and not is_batch_id(asked.after):
            raise unknown_after()
        batches: tuple[ServedBatch, ...] | None = ()
        if not caller.identity.is_anonymous:
            batches = await self._store.list_batches(caller.owner, asked.limit + 1, asked.after)
        if batches is None:
            raise unknown_after()
        return json_answer(200, page([batch_object(batch) for batch in batches], asked.limit))

    async def show(self, caller: Caller, batch_id: str) -> Answer:
        """Return how a batch stands."""
        return _told(await self._owned(caller, batch_id))

    async def cancel(self, caller: Caller, batch_id: str) -> Answer:
        """Have a batch end soon. Again is no harm; one that ended otherwise is a 409, as it is at OpenAI."""
        batch = await self._owned(caller, batch_id)
        if batch.is_live:
            try:
                batch = await self._store.ask_to_cancel(batch.id, self._clock.wall())
            except Conflict:
                batch = await self._owned(caller, batch_id)
            else:
                self._wake()
        if not batch.is_live and batch.progress.status is not BatchStatus.CANCELLED:
            message = f"Cannot cancel a batch with status '{shown_status(batch)}'."
            raise ProxyError(BATCH_HAS_ENDED, message)
        return _told(batch)

    async def _owned(self, caller: Caller, batch_id: str) -> ServedBatch:
        batch = await self._store.batch(batch_id) if is_batch_id(batch_id) else None
        if batch is None or not hmac.compare_digest(batch.owner, caller.owner):
            raise ProxyError(BATCH_NOT_FOUND, f"No batch found with id '{shown_id(batch_id)}'.", "batch_id")
        return batch


def _purge_at(now: float, wish: BatchWish) -> float:
    """Return when nobody can want the batch any more: its files are gone by then."""
    return now + wish.window_seconds + max(wish.output_seconds, FILE_SECONDS)


def _told(batch: ServedBatch) -> Answer:
    return json_answer(200, orjson.dumps(batch_object(batch)))
