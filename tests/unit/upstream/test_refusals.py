"""What was refused is remembered for a while, within a bound, and any answer may be asked what it names."""

from __future__ import annotations

import gzip
import json
import time
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.clock import ManualClock
from proxy.upstream.refusals import KEEP_SECONDS, Refusals, is_unsupported, refused_param

ADDED = frozenset({"max_tokens", "stop", "stream_options"})
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(sorted(ADDED)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["error", "param", "message", "detail", "loc", "type", "x"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


# --- memory -------------------------------------------------------------------------------------------------


def test_a_refusal_is_known_for_its_upstream_and_model_alone() -> None:
    refusals = Refusals(ManualClock())
    refusals.learn("up", "m", "stop")
    refusals.learn("up", "m", "max_tokens")
    assert refusals.known("up", "m") == {"stop", "max_tokens"}
    assert refusals.known("up", "other") == refusals.known("other", "m") == frozenset()


def test_a_refusal_is_forgotten_after_its_time_and_renewed_by_another() -> None:
    clock = ManualClock()
    refusals = Refusals(clock)
    refusals.learn("up", "m", "stop")
    clock.advance(KEEP_SECONDS - 1)
    assert refusals.known("up", "m") == {"stop"}
    refusals.learn("up", "m", "stop")
    clock.advance(2)
    assert refusals.known("up", "m") == {"stop"}
    clock.advance(KEEP_SECONDS)
    assert refusals.known("up", "m") == frozenset()


def test_models_that_callers_make_up_fill_no_memory_and_push_out_only_the_oldest() -> None:
    refusals = Refusals(ManualClock())
    refusals.learn("up", "first", "stop")
    for number in range(20_000):
        refusals.learn("up", f"m{number}", "stop")
    assert len(refusals) <= 10_000
    assert refusals.known("up", "first") == frozenset()
    assert refusals.known("up", "m19999") == {"stop"}


def test_learning_stays_cheap_when_memory_is_full() -> None:
    refusals = Refusals(ManualClock())
    for number in range(10_000):
        refusals.learn("up", f"m{number}", "stop")
    begin = time.perf_counter()
    for number in range(2_000):
        refusals.learn("up", f"other{number}", "stop")
    assert time.perf_counter() - begin < 0.5


# --- what a refusal names -----------------------------------------------------------------------------------


@given(_json)
def test_any_json_names_one_of_ours_or_nothing(said: Any) -> None:
    named = refused_param(json.dumps(said).encode(), ADDED)
    assert named is None or named in ADDED


@given(st.binary(max_size=60), st.sampled_from([b"", b"gzip", b"deflate", b"br", b"nonsense"]))
def test_noise_names_nothing_and_harms_nobody(noise: bytes, coding: bytes) -> None:
    assert refused_param(noise, ADDED, coding=coding) in (None, *ADDED)
    is_unsupported(noise, coding)


@pytest.mark.parametrize(
    "deep", [b'{"error":' * 100_000, b"[" * 100_000, b'{"a":' * 2_000 + b"1" + b"}" * 2_000]
)
def test_depth_harms_nobody(deep: bytes) -> None:
    assert refused_param(deep, ADDED) is None


def test_a_bomb_is_not_unpacked() -> None:
    bomb = zlib.compress(b" " * 60_000_000)
    begin = time.perf_counter()
    assert refused_param(bomb, ADDED, coding=b"deflate") is None
    assert not is_unsupported(bomb, b"deflate")
    assert time.perf_counter() - begin < 0.5


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"error": {"message": "x", "param": "max_tokens"}}, "max_tokens"),
        ({"error": {"message": "x", "param": "stream_options.include_usage"}}, "stream_options"),
        ({"error": {"message": "x", "param": "stop[0]"}}, "stop"),
        ({"error": {"message": "x 'max_tokens'", "param": "messages"}}, None),
        ({"error": {"message": "Unsupported: 'stop'", "param": None}}, "stop"),
        ({"error": {"message": "please stop that", "param": None}}, None),
        ({"error": {"message": "max_tokens is too large"}}, "max_tokens"),
        ({"error": {"message": "my_max_tokens is too large"}}, None),
        ({"error": "stream_options: not permitted"}, "stream_options"),
        ({"message": "Unknown field `stop`"}, "stop"),
        ({"detail": "max_tokens?"}, "max_tokens"),
        ({"detail": [{"loc": ["body", "stop"], "msg": "extra"}]}, "stop"),
        ({"error": {"message": "x", "param": ["max_tokens"]}}, None),
        ([{"error": {"param": "max_tokens"}}], None),
    ],
)
def test_a_parameter_is_told_however_servers_say_it(said: Any, named: str | None) -> None:
    raw = json.dumps(said).encode()
    assert refused_param(raw, ADDED) == named
    assert refused_param(gzip.compress(raw), ADDED, coding=b"gzip") == named


INNER = frozenset({"prompt_cache_breakpoint"})


@pytest.mark.parametrize(
    ("said", "named"),
    [
        (
            {"error": {"param": "messages[0].content[1].prompt_cache_breakpoint"}},
            "prompt_cache_breakpoint",
        ),
        (
            {"error": {"message": "Unknown parameter: 'input[0].content[0].prompt_cache_breakpoint'."}},
            "prompt_cache_breakpoint",
        ),
        (
            {"detail": [{"loc": ["body", "messages", 0, "content", 0, "prompt_cache_breakpoint"]}]},
            "prompt_cache_breakpoint",
        ),
        ({"detail": [{"loc": ["body", "messages", 0]}, {"loc": ["body", "max_tokens"]}]}, "max_tokens"),
        ({"message": {"detail": [{"loc": ["body", "stop"]}]}}, "stop"),
        ({"detail": [{"loc": ["body", "metadata", "stop"]}]}, None),
        ({"detail": [{"loc": "stop"}, 7]}, None),
        ({"error": {"param": "messages[0].content"}}, None),
    ],
)
def test_members_deep_inside_are_told_apart_from_parameters(said: Any, named: str | None) -> None:
    assert refused_param(json.dumps(said).encode(), ADDED, INNER) == named


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Unsupported parameter: 'stop' is not supported with this model.", True),
        ("Extra inputs are not permitted", True),
        ("Unknown parameter: 'x'.", True),
        ("max_tokens is too large: 9999", False),
        ("Invalid value for 'stop'", False),
    ],
)
def test_only_what_is_not_taken_at_all_is_worth_remembering(message: str, expected: bool) -> None:
    raw = json.dumps({"error": {"message": message}}).encode()
    assert is_unsupported(raw) is expected
    assert is_unsupported(gzip.compress(raw), b"gzip") is expected


def test_what_was_asked_before_does_not_change() -> None:
    """Other threads look while the event loop learns."""
    refusals = Refusals(ManualClock())
    refusals.learn("up", "m", "stop")
    known = refusals.known("up", "m")
    refusals.learn("up", "m", "max_tokens")
    assert known == {"stop"}


def test_what_has_expired_takes_no_room() -> None:
    clock = ManualClock()
    refusals = Refusals(clock)
    refusals.learn("up", "m", "stop")
    clock.advance(KEEP_SECONDS + 1)
    refusals.learn("up", "x", "stop")
    assert len(refusals) == 1
