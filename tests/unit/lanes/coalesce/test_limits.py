"""What an upstream's refusal says about the number of inputs it takes, and what is remembered of it."""

from __future__ import annotations

import sys

import pytest

from proxy.core.clock import ManualClock
from proxy.http.head import RequestHead
from proxy.lanes.coalesce.limits import (
    KEEP_SECONDS,
    BatchLimits,
    Taker,
    lesson,
    names_count,
    owner_of,
    told_limit,
    without_echoes,
)

TOLD = [
    (b'{"error":"batch size 40 > maximum allowed batch size 32","error_type":"Validation"}', 32),
    (
        b"Invalid 'input': array too long. Expected an array with maximum length 2048, but instead got 3000.",
        2048,
    ),
    (b"Too many inputs. The max number of inputs is 16. We hope to increase the number soon.", 16),
    (b"invalid request: total number of texts must be at most 96 - received 100", 96),
    (b"BatchEmbedContentsRequest.requests: at most 100 requests can be in one batch", 100),
    (b"<400> batch size is invalid, it should not be larger than 10.: input.contents", 10),
    (b"The batch size limit is 128. Your batch has 256 texts.", 128),
    (b"List should have at most 64 items after validation, not 65", 64),
    (b"input batch size 100 > maximum allowed batch size 64", 64),
]


@pytest.mark.parametrize(("refusal", "most"), TOLD)
def test_reads_the_limit_that_a_server_names(refusal: bytes, most: int) -> None:
    assert told_limit(refusal, 4000) == most


@pytest.mark.parametrize(
    "refusal",
    [
        b"This model's maximum context length is 8192 tokens, however you requested 9000 tokens",
        b"each input must have at most 512 tokens",
        b"at most 300 characters",
        b"Request Entity Too Large",
        b"batch size 40 > maximum allowed batch size 0",
        b"",
    ],
)
def test_takes_nothing_else_for_a_limit(refusal: bytes) -> None:
    assert told_limit(refusal, 4000) is None


def test_a_limit_that_was_kept_is_none() -> None:
    assert told_limit(b"batch size 40 > maximum allowed batch size 32", 32) is None


def test_a_count_is_a_number_of_its_own() -> None:
    assert names_count(b"batch size 40 > 32", 40)
    assert not names_count(b"batch size 400 > 140", 40)


def test_a_number_is_believed_when_the_server_counts_or_all_were_taken_alone() -> None:
    tei = b"batch size 40 > maximum allowed batch size 32"
    assert lesson(tei, 40, failed_alone=1) == 32
    quoted = b"bad text: 'maximum allowed batch size 1'"
    assert lesson(quoted, 40, failed_alone=1) is None, "one caller's text must not slow all others"
    assert lesson(b"at most 10 items", 40, failed_alone=0) == 10


def test_half_is_tried_where_no_number_is_named_and_the_number_must_be_the_cause() -> None:
    assert lesson(b"too large", 40, failed_alone=0) == 20
    assert lesson(b"too large", 1, failed_alone=0) == 1
    assert lesson(b"bad input", 40, failed_alone=1) is None


def test_a_limit_that_a_caller_wrote_into_its_input_is_none() -> None:
    evil = b'"BAD maximum allowed batch size 1 2 3 40"'
    echo = b'{"detail":[{"msg":"bad","input":"BAD MAXIMUM allowed batch size 1 2 3 40"}]}'
    assert told_limit(without_echoes(echo, [b'"a"', evil]), 40) is None
    escaped = b'"\\u006daximum allowed batch size 1"'
    assert told_limit(without_echoes(b"bad: maximum allowed batch size 1", [escaped]), 40) is None
    cut = b"bad input: ...number of inputs should be at most 1"
    assert told_limit(without_echoes(cut, [b'"the max number of inputs should be at most 12"']), 40) is None


def test_what_the_server_says_besides_an_echo_is_believed() -> None:
    said = b"batch size 40 > maximum allowed batch size 32; you sent: maximum allowed batch size 1"
    assert told_limit(without_echoes(said, [b'"maximum allowed batch size 1"']), 40) == 32
    assert told_limit(without_echoes(said, [b'"a"', b"[1,2]"]), 40) == 32


TAKER = Taker(b"owner", "up", "embeddings", "m")


@pytest.mark.parametrize(
    "other",
    [
        Taker(b"another", "up", "embeddings", "m"),
        Taker(b"owner", "down", "embeddings", "m"),
        Taker(b"owner", "up", "completions", "m"),
        Taker(b"owner", "up", "embeddings", "n"),
    ],
)
def test_what_is_learnt_holds_for_one_caller_upstream_api_and_model_and_for_a_while(other: Taker) -> None:
    clock = ManualClock()
    limits = BatchLimits(clock)
    assert limits.most(TAKER) == sys.maxsize
    limits.learn(TAKER, 32)
    limits.learn(TAKER, 64)
    assert limits.most(TAKER) == 32, "the lower one stands"
    assert limits.most(other) == sys.maxsize
    clock.advance(KEEP_SECONDS)
    assert limits.most(TAKER) == sys.maxsize


def test_memory_is_bounded() -> None:
    limits = BatchLimits(ManualClock())
    for number in range(10_050):
        limits.learn(Taker(b"", "up", "embeddings", str(number)), 4)
    assert len(limits) == 10_000
    assert limits.most(Taker(b"", "up", "embeddings", "10049")) == 4


def test_an_owner_is_known_by_credentials_and_certificate_and_by_nothing_else() -> None:
    def owner(caller: bytes = b"", **values: str) -> bytes:
        named = [(name.replace("_", "-").encode(), value.encode()) for name, value in values.items()]
        lines = [(name, name.title(), value) for name, value in named]
        return owner_of(RequestHead(b"POST", b"/v1/embeddings", "1.1", lines), caller)

    mine = owner(authorization="Bearer k", openai_project="p", accept="*/*")
    assert owner(openai_project="p", authorization="Bearer k", user_agent="sdk") == mine
    others = {
        owner(authorization="Bearer k"),
        owner(api_key="k"),
        owner(b"certificate", api_key="k"),
        owner(),
    }
    assert len(others | {mine}) == 5
