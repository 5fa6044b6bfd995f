"""A decided request becomes a job. Pure but for the job's random id, which is given.

Owns what is kept of a request: its body without the fields that belong to a tier or a stream, few of its
headers, its caller's credential only sealed and only where the upstream has no key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from proxy.core.document import Document
from proxy.core.upstream import Upstream
from proxy.dialects.conversation import read_conversation
from proxy.dialects.dialect import Dialect
from proxy.dialects.prefix_keys import prefix_keys
from proxy.http.head import Header
from proxy.jobs.credentials import seal_credential
from proxy.jobs.model import Delivery, HeaderFields, Job, JobTier
from proxy.jobs.packing import clean_body
from proxy.jobs.sealing import Vault, fingerprint
from proxy.jobs.shaping import STORED_WITHOUT
from proxy.jobs.tiers import spread_rescue_at
from proxy.lanes.batch.identity import identity_of
from proxy.lanes.batch.plan import DeferralPlan
from proxy.upstream.request_head import CREDENTIAL_HEADERS

_KEPT = frozenset({b"user-agent", b"traceparent", b"tracestate", b"x-client-request-id"})
_KEPT_PREFIXES = (b"openai-", b"anthropic-")
_PREFIX_LEVELS = 8
_PREFIX_DIGITS = 8
_BYTES_PER_TOKEN = 4
_RETRY_COUNT = b"x-stainless-retry-count"
_IDEMPOTENCY_KEY = b"idempotency-key"


@dataclass(frozen=True, slots=True)
class Submission:
    """What is known about a request when it becomes a job. `salt` is the store's."""

    plan: DeferralPlan
    upstream: Upstream
    route: str
    model: str
    dialect: Dialect
    document: Document
    headers: tuple[Header, ...]
    input_tokens: int | None
    salt: bytes
    vault: Vault | None


@dataclass(frozen=True, slots=True)
class Intake:
    """A job to be kept, with the body that goes with it. `may_attach`: it may be a caller's second try."""

    job: Job
    body: bytes
    may_attach: bool


def take_in(submission: Submission, job_id: str, now: float) -> Intake:
    """Return the job of a request. Raises `UnfitBody` (ValueError) for a body that no tier would take."""
    plan, salt = submission.plan, submission.salt
    identity = identity_of(submission.headers)
    body = clean_body(submission.document.to_bytes(), STORED_WITHOUT)
    account = identity.account(salt, submission.upstream)
    is_borrowing = submission.upstream.api_key is None and not identity.is_anonymous
    deadline = now + plan.deadline_seconds
    first, *_ = plan.tiers
    job = Job(
        id=job_id,
        attach_key=attach_key(submission, identity.owner(salt), body),
        owner=identity.owner(salt),
        upstream=submission.upstream.name,
        endpoint=plan.endpoint,
        model=submission.model,
        account=account,
        created=now,
        deadline=deadline,
        prefix_key=prefix_key(submission.document, submission.dialect),
        body_bytes=len(body),
        input_tokens=submission.input_tokens or len(body) // _BYTES_PER_TOKEN,
        delivery=plan.delivery,
        route=submission.route,
        headers=kept_headers(submission.headers),
        is_borrowing=is_borrowing,
        webhook=plan.webhook,
        tier=first,
        tiers=plan.tiers[1:],
        # A single call is made now. A pool has its own clock: the job itself is due when it must be rescued.
        due=_rescue_time(plan, job_id, deadline, now) if first is JobTier.BATCH else now,
        ready=now,
        credential=seal_credential(submission.vault, account, identity.credential)
        if is_borrowing and submission.vault is not None
        else None,
        updated=now,
    )
    return Intake(job, body, may_attach(submission.headers))


def _rescue_time(plan: DeferralPlan, job_id: str, deadline: float, now: float) -> float:
    window_seconds = plan.rescue_window_seconds
    return max(now, spread_rescue_at(job_id, deadline, plan.direct_seconds, window_seconds, now))


def attach_key(submission: Submission, owner: str, body: bytes) -> str:
    """Return what a second try of the same request has in common with the first, and nothing else has.

    It is made of what the caller wrote, of the route, and of what the route's steps made of it: another
    policy gives another answer. An `Idempotency-Key` counts, and so does who is to be told.
    """
    named = next((value for lower, _, value in submission.headers if lower == _IDEMPOTENCY_KEY), b"")
    parts = (b"attach", submission.upstream.name.encode(), submission.plan.endpoint.encode())
    route = submission.route.encode("utf-8", "surrogatepass")
    sent = (route, _versions(submission.headers), submission.document.raw, body)
    told = (submission.plan.webhook.encode(),) if submission.plan.webhook else ()
    return fingerprint(submission.salt, *parts, owner.encode(), named, _kind(submission.plan), *sent, *told)


def _versions(headers: Iterable[Header]) -> bytes:
    """Return the header fields that choose a version of an API, as one text."""
    found = (b"%b:%b" % (lower, value) for lower, _, value in headers if lower.startswith(_KEPT_PREFIXES))
    return b"\n".join(sorted(found))


def _kind(plan: DeferralPlan) -> bytes:
    # A background response and a held call have other answers.
    return plan.delivery.value.encode() if plan.delivery is Delivery.BACKGROUND else b""


def may_attach(headers: Iterable[Header]) -> bool:
    """Tell whether a request may be a second try: an SDK says which try it is, others say nothing.

    What an SDK calls its first try is a request of its own, however many are alike: whoever samples an answer
    ten times wants ten answers.
    """
    fields = {lower: value for lower, _, value in headers}
    if fields.get(_IDEMPOTENCY_KEY):
        return True
    return fields.get(_RETRY_COUNT, b"") != b"0"


def kept_headers(headers: Iterable[Header]) -> HeaderFields:
    """Return the header fields that a call for the job repeats: none that could be a secret."""
    return tuple(
        (name.decode("latin-1"), value.decode("latin-1"))
        for lower, name, value in headers
        if lower not in CREDENTIAL_HEADERS and (lower in _KEPT or lower.startswith(_KEPT_PREFIXES))
    )


def prefix_key(document: Document, dialect: Dialect) -> str:
    """Return a text that begins alike for requests that begin alike, element by element."""
    conversation = read_conversation(document, dialect)
    if conversation is None:
        instructions = document.get("instructions") or b""
        return hashlib.blake2b(instructions).hexdigest()[:_PREFIX_DIGITS] if instructions else ""
    keys = prefix_keys(document, conversation)[:_PREFIX_LEVELS]
    return "".join(key.hex()[:_PREFIX_DIGITS] for key in keys)
