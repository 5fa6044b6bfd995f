from __future__ import annotations

from collections.abc import Callable

import pytest

from proxy.sim import body as fields
from proxy.sim.errors import ApiError


def refused(read: Callable[[], object]) -> ApiError:
    with pytest.raises(ApiError) as found:
        read()
    assert found.value.status == 400
    return found.value


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b"3", b'{"a": NaN}', b"\xff", b"[" * 100_000])
def test_refuses_what_is_not_a_json_object(raw: bytes) -> None:
    refused(lambda: fields.parse_body(raw))


def test_takes_lone_surrogates_and_big_numbers() -> None:
    assert fields.parse_body(b'{"a": "\\ud83d", "b": 123456789012345678901234567890}')["b"] == 10**0 * int(
        "1234567890" * 3
    )


def test_null_counts_as_absent() -> None:
    body: dict[str, object] = {"a": None}
    assert fields.integer(body, "a", 1) is None
    assert fields.text(body, "a") is None
    assert fields.flag(body, "a", True) is True
    assert fields.decimal(body, "a", 0, 1) is None
    assert fields.sequence(body, "a") is None
    assert fields.mapping(body, "a") is None
    assert fields.stop_sequences(body, "a") == ()
    assert refused(lambda: fields.required_text(body, "a")).code == "missing_required_parameter"


@pytest.mark.parametrize(
    ("read", "code"),
    [
        (lambda: fields.integer({"n": "1"}, "n", 1), "invalid_type"),
        (lambda: fields.integer({"n": True}, "n", 1), "invalid_type"),
        (lambda: fields.integer({"n": 1.0}, "n", 1), "invalid_type"),
        (lambda: fields.integer({"n": 0}, "n", 1), "integer_below_min_value"),
        (lambda: fields.integer({"n": 9}, "n", 1, 8), "integer_above_max_value"),
        (lambda: fields.decimal({"n": -0.1}, "n", 0, 2), "decimal_below_min_value"),
        (lambda: fields.decimal({"n": 2.1}, "n", 0, 2), "decimal_above_max_value"),
        (lambda: fields.decimal({"n": "1"}, "n", 0, 2), "invalid_type"),
        (lambda: fields.flag({"n": 1}, "n"), "invalid_type"),
        (lambda: fields.sequence({"n": {}}, "n"), "invalid_type"),
        (lambda: fields.mapping({"n": []}, "n"), "invalid_type"),
        (lambda: fields.one_of({"n": "z"}, "n", ("x", "y"), "x"), "invalid_value"),
        (lambda: fields.stop_sequences({"n": ["a"] * 5}, "n"), "array_above_max_length"),
        (lambda: fields.stop_sequences({"n": [1]}, "n"), "invalid_type"),
    ],
)
def test_names_the_field_and_the_reason(read: Callable[[], object], code: str) -> None:
    error = refused(read)
    assert (error.param, error.code) == ("n", code)
    assert "'n'" in error.message or "Supported values" in error.message


def test_stop_is_a_string_or_an_array() -> None:
    assert fields.stop_sequences({"stop": "a"}) == ("a",)
    assert fields.stop_sequences({"stop": ["a", "b"]}) == ("a", "b")
