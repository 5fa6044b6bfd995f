"""Questions about many jobs in Redis: lists, counts and pools, in a bounded number of round trips."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from redis.exceptions import ResponseError

from proxy.jobs.changes import Census, JobQuery, Page, PoolSummary
from proxy.jobs.model import BatchState, Group, Job, JobState
from proxy.jobs.paging import cursor_after, is_beyond, read_cursor
from proxy.jobs.remote.client import RedisClient
from proxy.jobs.remote.records import job_from_hash

_CHUNK = 200
_MOST_LOOKED_AT = 2000
"""A page that matches little ends here, short, with a cursor."""


async def jobs_by_id(client: RedisClient, prefix: str, job_ids: Sequence[str]) -> tuple[Job, ...]:
    """Return those of the jobs that exist, in the order asked."""
    found: list[Job] = []
    for start in range(0, len(job_ids), _CHUNK):
        some = job_ids[start : start + _CHUNK]
        hashes = await client.pipeline([("HGETALL", f"{prefix}job:{job_id}") for job_id in some])
        found += [job_from_hash(fields) for fields in hashes if fields]
    return tuple(found)


async def list_jobs(client: RedisClient, prefix: str, query: JobQuery) -> Page:
    """Return a page of jobs, newest first."""
    index = _index(prefix, query)
    newest = "+inf" if query.created_before is None else f"({query.created_before!r}"
    if query.cursor is not None:
        created, _ = read_cursor(query.cursor)
        if query.created_before is None or created < query.created_before:
            newest = repr(created)
    page: list[Job] = []
    last: Job | None = None
    for offset in range(0, _MOST_LOOKED_AT, _CHUNK):
        command = ("ZRANGE", index, newest, "-inf", "BYSCORE", "REV", "LIMIT", offset, _CHUNK)
        ids = [raw.decode() for raw in (await client.pipeline([command]))[0]]
        for job in await jobs_by_id(client, prefix, ids):
            if is_beyond(job, query.cursor):
                if _matches(job, query):
                    if len(page) == query.limit:
                        return Page(tuple(page), cursor_after(page[-1]))
                    page.append(job)
                last = job
        if len(ids) < _CHUNK:
            return Page(tuple(page), None)
    return Page(tuple(page), query.cursor if last is None else cursor_after(last))


def _index(prefix: str, query: JobQuery) -> str:
    if query.owner is not None:
        return f"{prefix}owner:{query.owner}"
    if query.states is not None and len(query.states) == 1:
        (state,) = query.states
        return f"{prefix}state:{state.value}"
    return f"{prefix}all"


def _matches(job: Job, query: JobQuery) -> bool:
    return (
        (query.states is None or job.state in query.states)
        and query.upstream in (None, job.upstream)
        and query.owner in (None, job.owner)
    )


async def census(client: RedisClient, prefix: str) -> Census:
    """Count jobs and batches."""
    job_states, batch_states = tuple(JobState), tuple(BatchState)
    found = await client.pipeline(
        [
            *(("ZCARD", f"{prefix}state:{state.value}") for state in job_states),
            *(("ZRANGE", f"{prefix}state:{state.value}", 0, 0, "WITHSCORES") for state in job_states),
            *(("SCARD", f"{prefix}batches:{state.value}") for state in batch_states),
        ]
    )
    counts, oldest = found[: len(job_states)], found[len(job_states) : 2 * len(job_states)]
    return Census(
        {state: count for state, count in zip(job_states, counts, strict=True) if count},
        {state: _score(first) for state, first in zip(job_states, oldest, strict=True) if first},
        {
            state: count
            for state, count in zip(batch_states, found[2 * len(job_states) :], strict=True)
            if count
        },
    )


def _score(first: Sequence[Any]) -> float:
    # The client pairs members and scores or does not, depending on the protocol.
    return float(first[0][1] if isinstance(first[0], list | tuple) else first[1])


async def pools(client: RedisClient, prefix: str) -> tuple[PoolSummary, ...]:
    """Return what waits to be packed, by group."""
    (groups,) = await client.pipeline([("HGETALL", f"{prefix}pools")])
    names = [name.decode() for name in groups]
    found = await client.pipeline(
        [
            command
            for name in names
            for command in (
                ("ZCARD", f"{prefix}pool:{name}"),
                ("HGET", f"{prefix}pool_bytes", name),
                ("HGET", f"{prefix}pool_tokens", name),
                ("ZRANGE", f"{prefix}pool:{name}", 0, 0, "WITHSCORES"),
            )
        ]
    )
    summaries = []
    for number, raw in enumerate(groups.values()):
        jobs, size, tokens, first = found[4 * number : 4 * number + 4]
        if jobs and first:
            group = Group(*json.loads(raw))
            summaries.append(PoolSummary(group, jobs, int(size or 0), int(tokens or 0), _score(first)))
    return tuple(sorted(summaries, key=lambda summary: summary.group))


async def some_job_ids(client: RedisClient, prefix: str) -> tuple[str, ...]:
    """Return ids of the newest and the oldest jobs."""
    ends = ((0, _CHUNK - 1), (-_CHUNK, -1))
    found = await client.pipeline([("ZRANGE", f"{prefix}all", first, last) for first, last in ends])
    return tuple({raw.decode() for part in found for raw in part})


async def warnings(client: RedisClient) -> tuple[str, ...]:
    """Return what keeps the server from being durable, one sentence each."""
    if client.is_cluster:
        return ("a Cluster's persistence cannot be checked from here: see docs/jobs.md",)
    info = await client.call(lambda redis: redis.info())
    found = []
    version = str(info.get("redis_version", ""))
    if version and int(version.partition(".")[0]) < 7:
        found.append(f"the server is release {version}: Weir is tested with Redis 7.0 and later and Valkey")
    if not int(info.get("aof_enabled", 0)):
        found.append("appendonly is off: a crash of the server loses accepted jobs")
    if int(info.get("maxmemory", 0)) and info.get("maxmemory_policy") != "noeviction":
        found.append(f"maxmemory-policy is {info.get('maxmemory_policy')}: accepted jobs may be evicted")
    if (await _setting(client, "appendfsync")) not in (None, "always") and int(info.get("aof_enabled", 0)):
        found.append("appendfsync is not always: a power failure loses the last second of accepted jobs")
    return tuple(found)


async def _setting(client: RedisClient, name: str) -> str | None:
    # Hosted servers forbid CONFIG.
    async def ask(redis: Any) -> str | None:
        try:
            found = await redis.config_get(name)
        except ResponseError:
            return None
        value = found.get(name)
        return value.decode() if isinstance(value, bytes) else value

    return await client.call(ask)
