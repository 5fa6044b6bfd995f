"""Callers' questions about their jobs, answered on the data port like any other request.

    GET    /weir/v1/jobs                     the caller's own, newest first
    GET    /weir/v1/jobs/{id}                202 while it waits, then its answer as it is
    POST   /weir/v1/jobs/{id}/cancel         end it; again is no harm
    DELETE /weir/v1/jobs/{id}                end it and erase every trace
    GET    /v1/responses/{id}                a deferred response, likewise POST …/cancel and DELETE

Whoever does not show the submitter's credentials is told the same as for a job that does not exist. A
response id that is nobody's goes to the upstream, whose business it may be.
"""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import Awaitable, Callable
from urllib.parse import parse_qs

import orjson

from proxy.core.clock import Clock
from proxy.core.decision import Deferred, LaneDecision
from proxy.core.decision import Lane as LaneName
from proxy.core.errors import (
    BAD_REQUEST,
    JOB_NO_STREAM,
    JOB_NOT_FOUND,
    JOB_STORE_UNAVAILABLE,
    JOB_UNREADABLE,
    ProxyError,
)
from proxy.core.exchange import Exchange
from proxy.http.client import ResponseHandler
from proxy.http.head import RequestHead
from proxy.jobs.changes import JobQuery
from proxy.jobs.model import Delivery, Job
from proxy.jobs.response_ids import job_id_of
from proxy.jobs.sealing import SealError
from proxy.jobs.store import JobStore, StoreError, StoreUnavailable
from proxy.lanes.batch.answers import JOBS_PATH, Whole, job_facts, json_answer, progress, whole
from proxy.lanes.batch.background import deleted_object, response_object
from proxy.lanes.batch.identity import identity_of
from proxy.lanes.batch.task import AnswerCall, OpenTasks
from proxy.lanes.lane import Call, Lane, Outgoing

_JOB = re.compile(re.escape(JOBS_PATH) + r"/([0-9a-f]{32})(/cancel)?")
_RESPONSE = re.compile(r"(?:/[^/]+)*/responses/([A-Za-z0-9_-]+)(/cancel)?")
_ASKED = LaneDecision(LaneName.BATCH, "a job is asked for")
_MOST_LISTED = 100
_RETRY_SECONDS = 2
_COUNTS = frozenset("0123456789")

Answered = Whole | ProxyError | None
"""`None`: this is not ours; the request goes to the upstream."""


def asks_for_jobs(path: str) -> bool:
    """Tell whether a request path (decoded, without query) asks for jobs or a deferred response."""
    if path.startswith("/weir/"):
        return path == JOBS_PATH or path.startswith(JOBS_PATH + "/")
    found = _RESPONSE.fullmatch(path) if "/responses/" in path else None
    return found is not None and job_id_of(found[1]) is not None


class JobApi:
    """A lane for such requests. `cancel` ends a job here and at the provider."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        store: JobStore,
        direct: Lane,
        salt: Callable[[], bytes | None],
        tasks: OpenTasks,
        cancel: Callable[[str], Awaitable[Job]],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._store = store
        self._direct = direct
        self._salt = salt
        self._tasks = tasks
        self._cancel = cancel

    def carry(self, outgoing: Outgoing, exchange: Exchange, reply: ResponseHandler) -> Call:
        """Answer in a task of its own."""
        call = AnswerCall(self._loop, self._direct, outgoing, exchange, reply, self._tasks)
        call.start(self._answer(outgoing.head, exchange))
        return call

    async def _answer(self, head: RequestHead, exchange: Exchange) -> Answered:
        try:
            return await self._ask(head, exchange)
        except StoreUnavailable:
            message = "The job store is unavailable; the job itself is not affected."
            return ProxyError(JOB_STORE_UNAVAILABLE, message, retry_after_seconds=_RETRY_SECONDS)
        except SealError as problem:
            return ProxyError(JOB_UNREADABLE, f"The stored job cannot be read: {problem}.")

    async def _ask(self, head: RequestHead, exchange: Exchange) -> Answered:
        salt = self._salt()
        if salt is None:
            raise StoreUnavailable("the job store is not open")
        identity = identity_of(head.headers)
        owner = identity.owner(salt)
        method, path = exchange.method, exchange.path
        found = _RESPONSE.fullmatch(path)
        if found is not None:
            job = await self._owned(job_id_of(found[1]) or "", owner)
            if job is None or job.delivery is not Delivery.BACKGROUND:
                return None
            self._note(exchange, job)
            return await self._response(method, found[2] is not None, job, head)
        exchange.lane = _ASKED
        if path == JOBS_PATH and method == "GET":
            # Without credentials an id is all that tells one caller from another.
            return json_answer(200, _NOTHING) if identity.is_anonymous else await self._list(head, owner)
        asked = _JOB.fullmatch(path)
        job = None if asked is None else await self._owned(asked[1], owner)
        if asked is None or job is None:
            return ProxyError(JOB_NOT_FOUND, "There is no such job for these credentials.")
        self._note(exchange, job)
        return await self._job(method, asked[2] is not None, job)

    def _note(self, exchange: Exchange, job: Job) -> None:
        exchange.lane = _ASKED
        exchange.deferred = Deferred(job.id, job.tier.value)

    async def _owned(self, job_id: str, owner: str) -> Job | None:
        job = await self._store.get(job_id)
        return job if job is not None and hmac.compare_digest(job.owner, owner) else None

    # ---- jobs

    async def _job(self, method: str, is_cancel: bool, job: Job) -> Answered:
        match method, is_cancel:
            case (("GET" | "HEAD"), False):
                return await self._show(job, is_asked_only=method == "HEAD")
            case "POST", True:
                return json_answer(200, orjson.dumps(job_facts(await self._cancelled(job))))
            case "DELETE", False:
                await self._cancelled(job)
                await self._store.delete(job.id)
                return json_answer(200, orjson.dumps({"id": job.id, "object": "weir.job", "deleted": True}))
            case _:
                return ProxyError(JOB_NOT_FOUND, "A job can be got, cancelled (POST …/cancel) or deleted.")

    async def _show(self, job: Job, is_asked_only: bool) -> Answered:
        if job.is_live:
            return progress(job, self._clock.wall())
        told = whole(job, await self._store.answer(job.id))
        if not is_asked_only:
            await self._delivered(job)
        return told

    async def _list(self, head: RequestHead, owner: str) -> Answered:
        query = _query(head)
        limit = query.get("limit", str(_MOST_LISTED // 5))
        if not limit or not _COUNTS.issuperset(limit) or not 1 <= int(limit[:9]) <= _MOST_LISTED:
            return ProxyError(BAD_REQUEST, f"limit must be a number from 1 to {_MOST_LISTED}.", "limit")
        try:
            page = await self._store.list_jobs(
                JobQuery(owner=owner, limit=int(limit), cursor=query.get("after"))
            )
        except ValueError:
            return ProxyError(BAD_REQUEST, "after must be the next of an earlier page.", "after")
        told = {"object": "list", "data": [job_facts(job) for job in page.jobs], "next": page.cursor}
        return json_answer(200, orjson.dumps(told))

    # ---- deferred responses

    async def _response(self, method: str, is_cancel: bool, job: Job, head: RequestHead) -> Answered:
        match method, is_cancel:
            case (("GET" | "HEAD"), False):
                if _query(head).get("stream", "false").lower() in ("true", "1"):
                    message = "A deferred response has no stream; get it without stream."
                    return ProxyError(JOB_NO_STREAM, message, "stream")
                return await self._told(job, is_asked_only=method == "HEAD")
            case "POST", True:
                return await self._told(await self._cancelled(job))
            case "DELETE", False:
                await self._cancelled(job)
                await self._store.delete(job.id)
                return json_answer(200, deleted_object(job.id))
            case _:
                return ProxyError(JOB_NOT_FOUND, "A deferred response can be got, cancelled or deleted.")

    async def _told(self, job: Job, is_asked_only: bool = False) -> Answered:
        bodies = await self._store.bodies((job.id,))
        answer = None if job.is_live else await self._store.answer(job.id)
        if not job.is_live and not is_asked_only:
            await self._delivered(job)
        return json_answer(200, response_object(job, bodies.get(job.id), answer))

    # ---- both

    async def _cancelled(self, job: Job) -> Job:
        """End a job unless it has ended; return it as it stands."""
        if job.is_live:
            try:
                await self._cancel(job.id)
            except StoreUnavailable:
                raise
            except StoreError:
                # It was faster.
                pass
        return await self._store.get(job.id) or job

    async def _delivered(self, job: Job) -> None:
        try:
            await self._store.deliver(job.id)
        except StoreError:
            # It is told all the same; that it was is for the operators only.
            pass


_NOTHING = orjson.dumps({"object": "list", "data": [], "next": None})


def _query(head: RequestHead) -> dict[str, str]:
    text = head.target.partition(b"?")[2].decode("latin-1")
    return {name: values[-1] for name, values in parse_qs(text, keep_blank_values=True).items()}
