"""The caller's side of Weir's own batch API, a lane: nothing that it carries goes anywhere else.

    POST   /v1/files                    upload a file           GET  /v1/files          list
    GET    /v1/files/{id}               what it is              DELETE                  erase it
    GET    /v1/files/{id}/content       what it holds
    POST   /v1/batches                  begin a batch           GET  /v1/batches        list
    GET    /v1/batches/{id}             how it stands
    POST   /v1/batches/{id}/cancel      have it end

Shapes are OpenAI's (`requests`, `objects`). Everything is its owner's: whoever shows other credentials is
told the same as for what does not exist; without credentials an id is the only key, and lists are empty.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from proxy.batch_server.api_call import Answer, ApiCall
from proxy.batch_server.batches import Batches
from proxy.batch_server.files import Caller, Files, shown_id, store_away
from proxy.batch_server.incoming import IncomingBody, too_large
from proxy.batch_server.store import BatchStore
from proxy.batch_server.upload import MAX_FORM_BYTES
from proxy.batch_server.webhook_choice import chosen_webhook
from proxy.core.clock import Clock
from proxy.core.errors import (
    BATCH_NOT_FOUND,
    FILE_NOT_FOUND,
    METHOD_NOT_ALLOWED,
    STORED_FILE_UNREADABLE,
    ProxyError,
)
from proxy.core.exchange import Exchange
from proxy.edge.errors import error_body
from proxy.edge.request_target import matched_path
from proxy.http.client import ResponseHandler
from proxy.jobs.sealing import SealError, Vault
from proxy.jobs.store import StoreUnavailable
from proxy.lanes.batch.answers import json_answer
from proxy.lanes.batch.identity import identity_of
from proxy.lanes.batch.task import OpenTasks
from proxy.lanes.lane import Call, Outgoing
from proxy.policy.model import PolicySet

MAX_QUESTION_BYTES = 64 * 1024
"""Of any body but an upload's: the largest that makes sense are sixteen pairs of metadata."""

_METHODS = {
    ("files", 1): "GET, HEAD, POST",
    ("files", 2): "GET, HEAD, DELETE",
    ("files", 3): "GET, HEAD",
    ("batches", 1): "GET, HEAD, POST",
    ("batches", 2): "GET, HEAD",
    ("batches", 3): "POST",
}
_THIRD = {"files": "content", "batches": "cancel"}


class BatchApi:
    """Answers requests below `/v1/files` and `/v1/batches`.

    `salt` is the job store's, `None` while it is away; `wake` is called when a batch has become due.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        store: BatchStore,
        salt: Callable[[], bytes | None],
        vault: Vault | None,
        policies: Callable[[], PolicySet],
        uploads_at_once: int,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self.tasks = OpenTasks()
        self._loop = loop
        self._salt = salt
        self._policies = policies
        self._files = Files(store, clock, uploads_at_once)
        self._batches = Batches(store, clock, self._files, vault, wake)

    def carry(self, outgoing: Outgoing, exchange: Exchange, reply: ResponseHandler) -> Call:
        """Answer in a task of its own, or at once what is too large to be read."""
        head = outgoing.head
        names = tuple(matched_path(head.target).split("/")[2:])
        is_upload = exchange.method == "POST" and len(names) == 1 and names[0].lower() == "files"
        most_bytes = MAX_FORM_BYTES if is_upload else MAX_QUESTION_BYTES
        body = IncomingBody(reply.upstream_writable, most_bytes)
        call = ApiCall(self._loop, exchange, reply, self.tasks, body)
        if (head.content_length or 0) > most_bytes:
            call.refuse(too_large(most_bytes))
        else:
            call.start(self._answer(names, outgoing, exchange, body))
        return call

    async def _answer(
        self, names: tuple[str, ...], outgoing: Outgoing, exchange: Exchange, body: IncomingBody
    ) -> Answer:
        try:
            salt = self._salt()
            if salt is None:
                raise store_away()
            identity = identity_of(outgoing.head.headers)
            caller = Caller(identity, identity.owner(salt))
            return await self._dispatch(names, caller, outgoing, exchange, body, salt)
        except StoreUnavailable:
            raise store_away() from None
        except SealError as problem:
            message = f"The stored file cannot be read: {problem}."
            raise ProxyError(STORED_FILE_UNREADABLE, message) from None

    async def _dispatch(
        self,
        names: tuple[str, ...],
        caller: Caller,
        outgoing: Outgoing,
        exchange: Exchange,
        body: IncomingBody,
        salt: bytes,
    ) -> Answer:
        head, method = outgoing.head, exchange.method
        if method == "POST" and len(names) == 1 and names[0].lower() == "files":
            return await self._files.upload(caller, head, body)
        question = await body.read_all()
        kind, *rest = names[0].lower(), *names[1:]
        allowed = _METHODS.get((kind, len(names)))
        if allowed is None or (len(rest) == 2 and rest[1].lower() != _THIRD[kind]):
            missing = FILE_NOT_FOUND if kind == "files" else BATCH_NOT_FOUND
            raise ProxyError(missing, f"There is no /v1/{shown_id('/'.join(names))} here.")
        if method not in allowed.split(", "):
            return _not_allowed(exchange, allowed)
        query = head.target.partition(b"?")[2].decode("latin-1")
        if (kind, method, len(rest)) == ("batches", "POST", 0):
            upstream = outgoing.pool.target.upstream
            webhook = chosen_webhook(head, exchange.route, upstream, self._policies())
            return await self._batches.create(caller, head, question, upstream, webhook, salt)
        return await (self._on_file if kind == "files" else self._on_batch)(caller, method, rest, query)

    async def _on_file(self, caller: Caller, method: str, rest: list[str], query: str) -> Answer:
        match method, rest:
            case "DELETE", [file_id]:
                return await self._files.delete(caller, file_id)
            case _, [file_id, _]:
                return await self._files.content(caller, file_id, is_head_only=method == "HEAD")
            case _, [file_id]:
                return await self._files.show(caller, file_id)
            case _:
                return await self._files.list(caller, query)

    async def _on_batch(self, caller: Caller, method: str, rest: list[str], query: str) -> Answer:
        match rest:
            case [batch_id, _]:
                return await self._batches.cancel(caller, batch_id)
            case [batch_id]:
                return await self._batches.show(caller, batch_id)
            case _:
                return await self._batches.list(caller, query)


def _not_allowed(exchange: Exchange, allowed: str) -> Answer:
    error = ProxyError(METHOD_NOT_ALLOWED, f"{exchange.method} is not answered here, only {allowed}.")
    exchange.error = error.kind.code
    return json_answer(error.kind.status, error_body(error), (("allow", allowed),))
