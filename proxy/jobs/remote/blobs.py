"""Bodies and answers in Redis: one key each, with a hash tag of its own and a time to live.

Owns their keys. An answer's key is new for every try to end a job: the change that ends it names the one that
counts, whatever else was written before a crash expires.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from proxy.jobs.model import Answer
from proxy.jobs.records import decode_answer, encode_answer
from proxy.jobs.remote.client import RedisClient
from proxy.jobs.sealing import NAMING_BYTES, Vault, unopenable

SLACK_SECONDS = 86_400.0
"""How much longer than its job a blob stays at most."""


class Blobs:
    """The blobs of one namespace."""

    def __init__(self, client: RedisClient, namespace: str, vault: Vault) -> None:
        self._client = client
        self._namespace = namespace
        self._vault = vault

    def _body_key(self, job_id: str) -> str:
        return f"weir:{self._namespace}:body:{{{job_id}}}"

    async def put_body(self, job_id: str, body: bytes, seconds: float) -> None:
        """Keep a body for at least some seconds."""
        blob = self._vault.seal(body, job_id)
        await self._client.pipeline([("SET", self._body_key(job_id), blob, "EX", _whole(seconds))])

    async def keep_body(self, job_id: str, seconds: float) -> bool:
        """Keep a stored body for longer; False if there is none."""
        command = ("EXPIRE", self._body_key(job_id), _whole(seconds))
        return bool((await self._client.pipeline([command]))[0])

    async def bodies(self, job_ids: Sequence[str]) -> dict[str, bytes]:
        """Return the bodies that are there."""
        found = await self._client.pipeline([("GET", self._body_key(job_id)) for job_id in job_ids])
        pairs = zip(job_ids, found, strict=True)
        return {job_id: self._vault.open(blob, job_id) for job_id, blob in pairs if blob is not None}

    async def unopenable(self, job_ids: Sequence[str]) -> str | None:
        """Return a sentence about bodies that need another key, `None` where there are none."""
        commands = [("GETRANGE", self._body_key(job_id), 0, NAMING_BYTES - 1) for job_id in job_ids]
        return unopenable(self._vault, [raw for raw in await self._client.pipeline(commands) if raw])

    async def put_answers(self, answers: Sequence[tuple[str, Answer]], seconds: float) -> dict[str, str]:
        """Keep answers, each under a new key; returns the keys by job."""
        keys = {
            job_id: f"weir:{self._namespace}:answer:{{{job_id}}}:{secrets.token_hex(8)}"
            for job_id, _ in answers
        }
        await self._client.pipeline(
            [
                ("SET", keys[job_id], self._vault.seal(encode_answer(one), job_id), "EX", _whole(seconds))
                for job_id, one in answers
            ]
        )
        return keys

    async def answer(self, key: str, job_id: str) -> Answer | None:
        """Return the answer of a key."""
        (blob,) = await self._client.pipeline([("GET", key)])
        return None if blob is None else decode_answer(self._vault.open(blob, job_id))

    async def drop(self, job_ids: Sequence[str], answer_keys: Sequence[str]) -> None:
        """Delete bodies by job and answers by key."""
        keys = [self._body_key(job_id) for job_id in job_ids] + [key for key in answer_keys if key]
        await self._client.pipeline([("UNLINK", key) for key in keys])


def _whole(seconds: float) -> int:
    return max(1, int(seconds + SLACK_SECONDS))
