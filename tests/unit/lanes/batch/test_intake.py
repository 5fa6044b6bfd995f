from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from proxy.core.document import Document
from proxy.core.upstream import Secret, Upstream
from proxy.dialects.chat import CHAT
from proxy.dialects.responses import RESPONSES
from proxy.http.head import Header
from proxy.jobs.credentials import open_credential
from proxy.jobs.model import Delivery, JobTier
from proxy.jobs.packing import UnfitBody
from proxy.jobs.sealing import SecretVault
from proxy.lanes.batch.intake import Submission, may_attach, prefix_key, take_in
from tests.unit.lanes.batch.benches import HOLD

VAULT = SecretVault([Secret("k" * 40)])
BODY = (
    b'{"model":"gpt-5-mini", "stream":true,"service_tier":"flex",'
    b'"messages":[{"role":"user","content":"hi"}],"n":1.0}'
)


def fields(*pairs: tuple[bytes, bytes]) -> tuple[Header, ...]:
    return tuple((name.lower(), name, value) for name, value in pairs)


SUBMISSION = Submission(
    plan=HOLD,
    upstream=Upstream("openai", "https://api.example/v1"),
    route="nightly",
    model="gpt-5-mini",
    dialect=CHAT,
    document=Document.parse(BODY),
    headers=fields(
        (b"Authorization", b"Bearer sk-alice"),
        (b"OpenAI-Beta", b"x=1"),
        (b"X-Stainless-OS", b"Linux"),
        (b"X-Portkey-Api-Key", b"secret"),
        (b"traceparent", b"00-1"),
    ),
    input_tokens=None,
    salt=b"s" * 32,
    vault=VAULT,
)


def test_a_job_keeps_the_body_without_what_belongs_to_a_tier_or_a_stream() -> None:
    intake = take_in(SUBMISSION, "a" * 32, 1000.0)
    assert intake.body == b'{"model":"gpt-5-mini","messages":[{"role":"user","content":"hi"}],"n":1.0}'
    assert intake.job.body_bytes == len(intake.body)
    assert intake.job.input_tokens == len(intake.body) // 4


def test_a_job_keeps_few_headers_and_no_secret_in_the_clear() -> None:
    job = take_in(SUBMISSION, "a" * 32, 1000.0).job
    assert job.headers == (("OpenAI-Beta", "x=1"), ("traceparent", "00-1"))
    assert job.credential is not None
    assert b"sk-alice" not in job.credential
    assert open_credential(VAULT, job.account, job.credential) == (("authorization", "Bearer sk-alice"),)
    assert "sk-alice" not in repr(job)


def test_an_upstreams_own_key_makes_the_callers_superfluous() -> None:
    own = replace(SUBMISSION, upstream=replace(SUBMISSION.upstream, api_key=Secret("sk-own")))
    job = take_in(own, "a" * 32, 1000.0).job
    assert (job.is_borrowing, job.credential) == (False, None)


def test_a_single_call_is_due_now_and_a_pooled_job_when_it_must_be_rescued() -> None:
    flex = take_in(SUBMISSION, "a" * 32, 1000.0).job
    assert (flex.tier, flex.tiers, flex.due, flex.ready) == (JobTier.FLEX, (), 1000.0, 1000.0)
    plan = msgspec.structs.replace(HOLD, tiers=(JobTier.BATCH, JobTier.FLEX))
    pooled = take_in(replace(SUBMISSION, plan=plan), "a" * 32, 1000.0).job
    assert (pooled.tier, pooled.tiers) == (JobTier.BATCH, (JobTier.FLEX,))
    assert pooled.due == pooled.deadline - HOLD.direct_seconds


def test_one_of_many_pooled_jobs_is_rescued_at_its_own_time() -> None:
    plan = msgspec.structs.replace(
        HOLD, tiers=(JobTier.BATCH,), deadline_seconds=10_000.0, rescue_window_seconds=1_000.0
    )
    jobs = [take_in(replace(SUBMISSION, plan=plan), f"{number:032x}", 1000.0).job for number in range(50)]
    latest = 11_000.0 - HOLD.direct_seconds
    assert all(latest - 1_020.0 <= job.due <= latest for job in jobs)
    assert len({job.due for job in jobs}) > 20


def test_a_second_try_has_the_key_of_the_first() -> None:
    document = SUBMISSION.document.set("max_tokens", b"7")
    first = take_in(replace(SUBMISSION, document=document), "a" * 32, 1000.0).job
    retry = replace(SUBMISSION, document=Document.parse(BODY).set("max_tokens", b"7"))
    assert take_in(retry, "b" * 32, 1010.0).job.attach_key == first.attach_key


@pytest.mark.parametrize(
    "changed",
    [
        {"document": Document.parse(BODY.replace(b"hi", b"ho"))},
        {"headers": fields((b"Authorization", b"Bearer sk-bob"))},
        {"headers": (*SUBMISSION.headers, *fields((b"Idempotency-Key", b"k1")))},
        {"document": SUBMISSION.document.set("max_tokens", b"7")},
        {"headers": (*SUBMISSION.headers, *fields((b"anthropic-beta", b"x")))},
        {"route": "another"},
        {"upstream": Upstream("other", "https://api.example/v1")},
        {"plan": msgspec.structs.replace(HOLD, delivery=Delivery.BACKGROUND)},
    ],
)
def test_what_differs_has_another_key(changed: dict[str, object]) -> None:
    first = take_in(SUBMISSION, "a" * 32, 1000.0).job
    other = take_in(replace(SUBMISSION, **changed), "b" * 32, 1000.0).job  # type: ignore[arg-type]
    assert other.attach_key != first.attach_key


@pytest.mark.parametrize(
    ("pairs", "may"),
    [
        ((), True),
        (((b"x-stainless-retry-count", b"0"),), False),
        (((b"X-Stainless-Retry-Count", b"2"),), True),
        (((b"x-stainless-retry-count", b"0"), (b"Idempotency-Key", b"k")), True),
    ],
)
def test_an_sdks_first_try_is_a_request_of_its_own(pairs: tuple[tuple[bytes, bytes], ...], may: bool) -> None:
    assert may_attach(fields(*pairs)) is may


def test_a_body_that_no_tier_takes_is_refused() -> None:
    odd = replace(SUBMISSION, document=Document.parse(BODY.replace(b"hi", b"\xff")))
    with pytest.raises(UnfitBody):
        take_in(odd, "a" * 32, 1000.0)


def test_jobs_that_begin_alike_lie_together() -> None:
    def key(*texts: str) -> str:
        turns = ",".join(f'{{"role":"user","content":"{text}"}}' for text in texts)
        return prefix_key(Document.parse(f'{{"messages":[{turns}]}}'.encode()), CHAT)

    long = [key("rules", "a"), key("other", "b"), key("rules", "c")]
    assert sorted(long)[0][:8] == sorted(long)[1][:8] or sorted(long)[1][:8] == sorted(long)[2][:8]
    assert long[0][:8] == long[2][:8] != long[1][:8]
    told = Document.parse(b'{"instructions":"Be brief.","input":"x"}')
    assert prefix_key(told, RESPONSES) == prefix_key(told.set("input", b'"y"'), RESPONSES)
