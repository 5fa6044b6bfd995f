"""A stored body is sent as its tier wants it, and otherwise as the caller wrote it."""

from __future__ import annotations

import json

import pytest

from proxy.jobs.model import JobTier
from proxy.jobs.packing import clean_body
from proxy.jobs.shaping import STORED_WITHOUT, body_for

RAW = b'{ "model":"m", "temperature":1.0, "input":"\\u00e9" }'


@pytest.mark.parametrize("tier", [JobTier.DIRECT, JobTier.BATCH])
def test_a_plain_call_sends_the_stored_bytes(tier: JobTier) -> None:
    assert body_for(tier, RAW) == RAW


def test_flex_asks_for_flex() -> None:
    assert json.loads(body_for(JobTier.FLEX, RAW)) == {**json.loads(RAW), "service_tier": "flex"}
    assert b'"temperature":1.0' in body_for(JobTier.FLEX, RAW)


@pytest.mark.parametrize(("tier", "window"), [(JobTier.BACKGROUND_2H, "2h"), (JobTier.BACKGROUND_8H, "8h")])
def test_a_window_asks_for_the_background(tier: JobTier, window: str) -> None:
    sent = json.loads(body_for(tier, RAW))
    assert sent["background"] is True
    assert sent["background_options"] == {"completion_window": window}
    assert "service_tier" not in sent


def test_what_the_caller_said_about_tiers_is_not_stored_and_not_sent() -> None:
    asked = b'{"model":"m","stream":true,"background":true,"service_tier":"flex","input":"x"}'
    assert clean_body(asked, STORED_WITHOUT) == b'{"model":"m","input":"x"}'
    assert json.loads(body_for(JobTier.DIRECT, asked)) == {"model": "m", "stream": True, "input": "x"}


def test_a_body_that_cannot_be_read_is_left_to_the_provider() -> None:
    assert body_for(JobTier.FLEX, b"nonsense") == b"nonsense"
