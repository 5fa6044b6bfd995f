"""Jobs, batches, answers and bookings as text and bytes for stores. What is read was written here.

Owns the formats; a store adds keys and indexes. Facts of a job (what stands from its acceptance) are apart
from its progress, so that a move writes little.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import msgspec

from proxy.jobs.model import Answer, Batch, Booking, Job, Lease

PROGRESS_FIELDS = (
    "state",
    "tier",
    "tiers",
    "due",
    "ready",
    "attempts",
    "rescue_begun",
    "batch_id",
    "provider_id",
    "credential",
    "error",
    "answer_source",
    "ended_as",
    "ended",
    "updated",
    "purge_at",
    "lease",
    "deadline",
    "delivery",
    "wanted",
    "waiting",
    "notice_due",
    "notice_tries",
    "notice_note",
)
"""Fields of a job that change."""

FACT_FIELDS = tuple(field.name for field in fields(Job) if field.name not in PROGRESS_FIELDS)
"""Fields of a job that never change."""

_ENCODER = msgspec.json.Encoder()
_JOB = msgspec.json.Decoder(Job)
_BATCH = msgspec.json.Decoder(Batch)
_LEASE = msgspec.json.Decoder(Lease)
_BOOKING = msgspec.json.Decoder(Booking)
_LENGTH_BYTES = 4


class _AnswerHead(msgspec.Struct):
    status: int
    headers: tuple[tuple[str, str], ...] = ()
    source: str = ""
    tier: str = ""


_ANSWER_HEAD = msgspec.json.Decoder(_AnswerHead)


def encode_facts(job: Job) -> bytes:
    """Return the facts of a job as JSON."""
    return _ENCODER.encode({name: getattr(job, name) for name in FACT_FIELDS})


def job_from(facts: bytes, progress: dict[str, Any]) -> Job:
    """Return a job from its facts and its progress, whose values are of the types that JSON has."""
    return msgspec.convert(msgspec.json.decode(facts) | progress, Job)


def encode_answer(answer: Answer) -> bytes:
    """Return an answer as one blob: the length of a JSON head, the head, the body as it is."""
    head = _ENCODER.encode(_AnswerHead(answer.status, answer.headers, answer.source, answer.tier))
    return len(head).to_bytes(_LENGTH_BYTES, "big") + head + answer.body


def decode_answer(blob: bytes) -> Answer:
    """Return the answer of a blob."""
    end = _LENGTH_BYTES + int.from_bytes(blob[:_LENGTH_BYTES], "big")
    head = _ANSWER_HEAD.decode(blob[_LENGTH_BYTES:end])
    return Answer(head.status, blob[end:], head.headers, head.source, head.tier)


def encode(value: object) -> bytes:
    """Return any value of the model as JSON."""
    return _ENCODER.encode(value)


def decode_booking(text: bytes) -> Booking:
    """Return the booking of a JSON text."""
    return _BOOKING.decode(text)


def decode_job(text: bytes) -> Job:
    """Return the job of a JSON text."""
    return _JOB.decode(text)


def decode_batch(text: bytes) -> Batch:
    """Return the batch of a JSON text."""
    return _BATCH.decode(text)


def decode_lease(text: bytes) -> Lease:
    """Return the lease of a JSON text."""
    return _LEASE.decode(text)
