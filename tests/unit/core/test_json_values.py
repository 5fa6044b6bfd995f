from __future__ import annotations

import pytest

from proxy.core.json_values import as_number, decode, exceeds, falls_below


@pytest.mark.parametrize(
    ("raw", "exceeding"),
    [
        (b"101", True),
        (b"100", False),
        (b"1e2", False),
        (b"1.01e2", True),
        (b"1e400", True),
        (b"9" * 5000, True),
        (b'"101"', True),
        (b'"100"', False),
        (b'" 1_000 "', True),
        (b'"many"', False),
        (b"NaN", True),
        (b"Infinity", True),
        (b"-Infinity", False),
        (b"-1", False),
        (b"true", False),
        (b"null", False),
        (b"[1000]", False),
        (b"[NaN]", False),
        (b"{}", False),
    ],
)
def test_whatever_may_be_read_as_more_exceeds(raw: bytes, exceeding: bool) -> None:
    assert exceeds(raw, 100) is exceeding


def test_whatever_may_be_read_as_less_falls_below() -> None:
    assert falls_below(b"0", 1)
    assert falls_below(b"-Infinity", 1)
    assert falls_below(b'"0.5"', 1)
    assert not falls_below(b"1", 1)
    assert not falls_below(b"false", 1)


def test_booleans_are_no_numbers() -> None:
    assert as_number(b"true") is None
    assert as_number(b"7") == 7


def test_what_cannot_be_decoded_gives_the_default() -> None:
    assert decode(b"[" * 5000 + b"]" * 5000, "default") == "default"
    assert decode(b"{broken", "default") == "default"
    assert decode(b'{"a":1,"a":2}') == {"a": 2}
