"""The jobs on the admin API: for operators, who see all of them and no caller's texts.

GET    /jobs?state=&upstream=&limit=&after=     newest first
GET    /jobs/{id}                               with bookings and batch
POST   /jobs/{id}/cancel, /jobs/{id}/retry
DELETE /jobs/{id}                               every trace
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson
from aiohttp import web

from proxy.core.errors import BAD_REQUEST, JOB_NOT_FOUND, JOB_STORE_UNAVAILABLE, ProxyError
from proxy.edge.errors import error_body
from proxy.jobs.inspection import DEFAULT_LIMIT, MOST_LISTED, Inspector, NoSuchJob
from proxy.jobs.model import JobState
from proxy.jobs.store import Conflict, StoreUnavailable

_NO_STORE = "this process keeps no jobs: no route has a batch section, or --store is off"
_LISTS_BY = ("state", "upstream", "limit", "after")

Act = Callable[[Inspector, web.Request], Awaitable[dict[str, Any]]]


def add_job_routes(router: web.UrlDispatcher, jobs: Callable[[], Inspector | None]) -> None:
    """Add the routes; `jobs` returns who answers."""

    def answering(act: Act) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(request: web.Request) -> web.Response:
            return await _answer(jobs(), act, request)

        return answer

    router.add_get("/jobs", answering(_list))
    router.add_get("/jobs/{id}", answering(lambda jobs, request: jobs.shown(request.match_info["id"])))
    router.add_post(
        "/jobs/{id}/cancel", answering(lambda jobs, request: jobs.cancelled(request.match_info["id"]))
    )
    router.add_post(
        "/jobs/{id}/retry", answering(lambda jobs, request: jobs.retried(request.match_info["id"]))
    )
    router.add_delete("/jobs/{id}", answering(_delete))


async def _answer(jobs: Inspector | None, act: Act, request: web.Request) -> web.Response:
    if jobs is None:
        return _refused(ProxyError(JOB_NOT_FOUND, _NO_STORE))
    try:
        _check_query(request)
        return web.Response(body=orjson.dumps(await act(jobs, request)), content_type="application/json")
    except NoSuchJob:
        return _refused(ProxyError(JOB_NOT_FOUND, "there is no such job"))
    except Conflict as conflict:
        state = "" if conflict.state is None else conflict.state.value
        state = "" if state in str(conflict) else f" (it is {state})"
        return _refused(ProxyError(BAD_REQUEST, f"{conflict}{state}"))
    except StoreUnavailable as problem:
        return _refused(ProxyError(JOB_STORE_UNAVAILABLE, str(problem)))
    except ValueError as problem:
        return _refused(ProxyError(BAD_REQUEST, str(problem)))


def _check_query(request: web.Request) -> None:
    known = _LISTS_BY if request.path == "/jobs" else ()
    for name in request.query:
        if name not in known:
            takes = f"takes {', '.join(known)}" if known else "takes no query"
            raise ValueError(f"{request.path} {takes}, not {name}")


async def _list(jobs: Inspector, request: web.Request) -> dict[str, Any]:
    query: Mapping[str, str] = request.query
    return await jobs.listed(
        states=states_from(query["state"]) if query.get("state") else None,
        upstream=query.get("upstream") or None,
        limit=limit_from(query.get("limit", str(DEFAULT_LIMIT))),
        cursor=query.get("after") or None,
    )


async def _delete(jobs: Inspector, request: web.Request) -> dict[str, Any]:
    job_id = request.match_info["id"]
    if not await jobs.deleted(job_id):
        raise NoSuchJob(job_id)
    return {"id": job_id, "deleted": True}


def states_from(text: str) -> frozenset[JobState]:
    """Return the states that a list with commas names. Raises ValueError."""
    known = {state.value: state for state in JobState}
    words = [word.strip() for word in text.split(",")]
    unknown = [word for word in words if word not in known]
    if unknown:
        raise ValueError(f"a state is one of {', '.join(known)}")
    return frozenset(known[word] for word in words)


def limit_from(text: str) -> int:
    """Return how many are listed. Raises ValueError."""
    if not text.isdecimal() or not 1 <= int(text) <= MOST_LISTED:
        raise ValueError(f"limit is a number from 1 to {MOST_LISTED}")
    return int(text)


def _refused(error: ProxyError) -> web.Response:
    return web.Response(status=error.kind.status, body=error_body(error), content_type="application/json")
