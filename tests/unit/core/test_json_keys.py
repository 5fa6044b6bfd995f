"""Keys that a lenient server could read as others."""

from __future__ import annotations

import pytest

from proxy.core.document import Document
from proxy.core.json_keys import are_plain, lookalike

ODD = ["MAX_TOKENS", "Max_Tokens", "maxTokens", "max_to\u212aens", "max_token\u017f", "\uff4dax_tokens"]


@pytest.mark.parametrize("key", ODD)
def test_another_case_width_or_fold_is_a_lookalike(key: str) -> None:
    assert not are_plain(["model", key])
    assert lookalike(["model", key], "max_tokens") == key


@pytest.mark.parametrize(
    "key", ["max_token", "max_tokens2", "x" * 5_000, "\ud800", "", "m\u0430x_tokens", "MAX_TOKENS\u200b"]
)
def test_other_names_are_none(key: str) -> None:
    assert lookalike([key], "max_tokens") is None


def test_the_key_itself_is_no_lookalike() -> None:
    assert lookalike(["max_tokens"], "max_tokens") is None
    assert are_plain(["max_tokens", "1", "n"])
    assert are_plain([])


@pytest.mark.parametrize(
    ("body", "path", "found"),
    [
        (b'{"a":{"B":1}}', ("a", "b"), "B"),
        (b'{"a":{"b":{"C":9},"b":5}}', ("a", "b", "c"), "C"),
        (b'{"a":[{"B":1}]}', ("a", "0", "b"), "B"),
        (b'{"A":{"b":1}}', ("a", "b"), "A"),
        (b'{"a":{"b":1},"x":{"B":1}}', ("a", "b"), None),
        (b'{"a":1}', ("a", "b"), None),
        (b'{"a":{"X":1}}', ("a", "X"), None),
        (b'{"a":{"x":1}}', ("a", "X"), "x"),
    ],
)
def test_lookalikes_are_found_at_every_level(body: bytes, path: tuple[str, ...], found: str | None) -> None:
    assert Document.parse(body).lookalike(path) == found
