from __future__ import annotations

import pytest

from proxy.tokens.images import Area, Flat, Patches, Tiles
from proxy.tokens.models import base_name, profile_for
from proxy.tokens.port import EncodingName

O200K, CL100K = EncodingName.O200K, EncodingName.CL100K


@pytest.mark.parametrize(
    ("model", "encoding"),
    [
        ("gpt-4o", O200K),
        ("gpt-4o-2024-08-06", O200K),
        ("gpt-4o-mini", O200K),
        ("chatgpt-4o-latest", O200K),
        ("gpt-4.1-nano", O200K),
        ("gpt-4.5-preview", O200K),
        ("gpt-5", O200K),
        ("gpt-5.2-codex", O200K),
        ("o1", O200K),
        ("o3-mini-2025-01-31", O200K),
        ("o4-mini", O200K),
        ("gpt-oss-120b", O200K),
        ("gpt-4", CL100K),
        ("gpt-4-turbo-2024-04-09", CL100K),
        ("gpt-3.5-turbo", CL100K),
        ("gpt-35-turbo-16k", CL100K),
        ("text-embedding-3-small", CL100K),
        ("text-embedding-ada-002", CL100K),
        ("davinci-002", CL100K),
        ("ft:gpt-4o-2024-08-06:acme::AbC1", O200K),
        ("ft:gpt-3.5-turbo:acme", CL100K),
        ("openai/gpt-4o", O200K),
        ("azure/eu/gpt-4", CL100K),
        (" GPT-4O ", O200K),
    ],
)
def test_knows_the_encoding_of_openai_models(model: str, encoding: EncodingName) -> None:
    profile = profile_for(model)
    assert (profile.encoding, profile.exact_text, profile.scale_percent) == (encoding, True, 100)


@pytest.mark.parametrize(
    ("model", "encoding"),
    [
        ("gpt-6-astra", O200K),
        ("gpt-4.7", O200K),
        ("gpt-realtime", O200K),
        ("o7-max", O200K),
        ("codex-mini-latest", O200K),
        ("text-davinci-003", CL100K),
    ],
)
def test_estimates_openai_models_that_tiktoken_does_not_know(model: str, encoding: EncodingName) -> None:
    profile = profile_for(model)
    assert (profile.encoding, profile.exact_text, profile.exact_messages) == (encoding, False, False)


@pytest.mark.parametrize(
    "model", ["claude-opus-5-5", "gemini-3-pro", "meta-llama/Llama-3.3-70B", "my-deployment", "orca", ""]
)
def test_estimates_other_models_with_a_safety_factor(model: str) -> None:
    profile = profile_for(model)
    assert not profile.exact_text
    assert 110 <= profile.scale_percent <= 135


def test_claims_exact_messages_only_where_the_framing_is_documented() -> None:
    assert profile_for("gpt-4o").exact_messages
    assert profile_for("gpt-3.5-turbo").exact_messages
    assert not profile_for("gpt-5").exact_messages
    assert not profile_for("o3").exact_messages
    assert not profile_for("gpt-oss-20b").exact_messages


def test_knows_the_one_model_with_another_framing() -> None:
    profile = profile_for("gpt-3.5-turbo-0301")
    assert (profile.message_tokens, profile.name_tokens) == (4, -1)


@pytest.mark.parametrize(
    ("model", "rule"),
    [
        ("gpt-4o", Tiles(85, 170)),
        ("gpt-4o-mini-2024-07-18", Tiles(2833, 5667)),
        ("gpt-4.1", Tiles(85, 170)),
        ("gpt-5", Tiles(70, 140)),
        ("gpt-5.1", Tiles(70, 140)),
        ("o1-pro", Tiles(75, 150)),
        ("gpt-4.1-mini", Patches(162, 1536, 1536, 1536)),
        ("gpt-5.2", Patches(120, 6144, 6144, 6144)),
        ("gpt-5.4-mini", Patches(120, 2500, 2500, 10_000)),
        ("gpt-6-astra", Patches(120, None, 2500, None)),
        ("claude-3-5-sonnet-20241022", Area(1568)),
        ("us.anthropic.claude-haiku-4-5-20251001-v1:0", Area(1568)),
        ("claude-opus-5-5", Area(4784)),
        ("google/gemini-3-flash", Flat(1100)),
    ],
)
def test_knows_the_image_rule(model: str, rule: object) -> None:
    assert profile_for(model).image == rule


def test_models_that_count_alike_share_a_key() -> None:
    assert profile_for("gpt-4o-2024-05-13").key == profile_for("openai/gpt-4o").key
    assert profile_for("gpt-4o").key != profile_for("gpt-4o-mini").key


def test_reduces_names_to_the_base_model() -> None:
    assert base_name("ft:gpt-4o-mini-2024-07-18:org:name:id") == "gpt-4o-mini-2024-07-18"
    assert base_name("accounts/fireworks/models/llama-v3") == "llama-v3"
