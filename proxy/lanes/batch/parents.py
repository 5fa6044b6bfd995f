"""Requests that continue a deferred response: sent once it has ended, under the provider's own id for it.

The caller knows a deferred response by an id of Weir's, which no provider knows. Whoever continues one that
is pending waits for it, within its patience; such a request is never deferred itself.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable

from proxy.core.clock import Clock
from proxy.core.document import Document, DocumentError
from proxy.core.errors import JOB_PENDING, ProxyError
from proxy.core.exchange import Exchange
from proxy.core.json_edits import quoted
from proxy.core.json_values import decode
from proxy.http.client import ResponseHandler
from proxy.http.head import RequestHead
from proxy.jobs.model import Answer, Job
from proxy.jobs.response_ids import job_id_of
from proxy.jobs.store import JobStore, StoreUnavailable
from proxy.lanes.batch.identity import identity_of
from proxy.lanes.batch.task import AnswerCall, OpenTasks, Result
from proxy.lanes.lane import Call, Lane, Outgoing
from proxy.policy.waiting import PATIENCE_HEADERS
from proxy.upstream.request_head import BodyPlan

_FIELD = "previous_response_id"
_DEFAULT_PATIENCE_SECONDS = 60.0
_LOOK_SECONDS = 5.0
_STORE_PAUSE_SECONDS = 0.5
_MARGIN_SECONDS = 5.0
_RETRY_SECONDS = 5


class Parents:
    """A lane for such requests."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        store: JobStore,
        direct: Lane,
        salt: Callable[[], bytes | None],
        tasks: OpenTasks,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._store = store
        self._direct = direct
        self._salt = salt
        self._tasks = tasks

    def carry(self, outgoing: Outgoing, exchange: Exchange, reply: ResponseHandler) -> Call:
        """Find the response that is continued, in a task, then send the request."""
        call = AnswerCall(self._loop, self._direct, outgoing, exchange, reply, self._tasks)
        call.start(self._continue(outgoing, exchange))
        return call

    async def _continue(self, outgoing: Outgoing, exchange: Exchange) -> Result:
        begun_at = self._clock.monotonic()
        try:
            document = Document.parse(outgoing.body or b"")
            found = await self._parent(document, outgoing.head)
        except (DocumentError, StoreUnavailable):
            return None
        finally:
            exchange.queue_seconds += self._clock.monotonic() - begun_at
        if not isinstance(found, str):
            return found
        body = document.set(_FIELD, quoted(found)).to_bytes()
        plan = BodyPlan(len(body), replaced=outgoing.plan.replaced)
        # No way back to what the caller wrote: the upstream would not know the id in it.
        return Outgoing(outgoing.head, outgoing.pool, body, plan, None, outgoing.patience_seconds)

    async def _parent(self, document: Document, head: RequestHead) -> str | ProxyError | None:
        """Return the provider's id of the response that is continued; `None`: the upstream is to say it."""
        named = document.value(_FIELD)
        job_id = job_id_of(named) if isinstance(named, str) else None
        salt = self._salt()
        if job_id is None or salt is None:
            return None
        owner = identity_of(head.headers).owner(salt)
        job = await self._store.get(job_id)
        if job is None or not hmac.compare_digest(job.owner, owner):
            return None
        job = await self._ended(job, self._clock.wall() + max(0.0, _patience_seconds(head) - _MARGIN_SECONDS))
        if job is None:
            return None
        if job.is_live:
            message = "The response that this request continues is still pending."
            return ProxyError(JOB_PENDING, message, _FIELD, retry_after_seconds=_RETRY_SECONDS)
        return _provider_id(await self._store.answer(job.id))

    async def _ended(self, job: Job, until: float) -> Job | None:
        seen: Job | None = job
        while seen is not None and seen.is_live and (left := until - self._clock.wall()) > 0:
            try:
                seen = await self._store.wait(job.id, min(left, _LOOK_SECONDS))
            except StoreUnavailable:
                await asyncio.sleep(_STORE_PAUSE_SECONDS)
        return seen


def _provider_id(answer: Answer | None) -> str | None:
    told = decode(answer.body) if answer is not None and answer.status < 300 else None
    found = told.get("id") if isinstance(told, dict) else None
    return found if isinstance(found, str) else None


def _patience_seconds(head: RequestHead) -> float:
    for name in PATIENCE_HEADERS:
        value = head.fields.get(name.encode("latin-1"), b"")
        if value.replace(b".", b"", 1).isdigit():
            return min(float(value), 3600.0)
    return _DEFAULT_PATIENCE_SECONDS
