"""Reading fields of a request body with the errors that OpenAI gives for wrong ones.

It owns types and ranges of single fields. What fields mean together is each API shape's business.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NoReturn, cast

from proxy.sim.errors import ApiError, invalid, missing

Json = Mapping[str, object]

_TYPE_NAMES: Mapping[type, str] = {
    bool: "a boolean",
    int: "an integer",
    float: "a decimal",
    str: "a string",
    list: "an array",
    dict: "an object",
    type(None): "null",
}


def parse_body(raw: bytes) -> dict[str, object]:
    """Return the JSON object in `raw`.

    Raises ApiError (400) for anything else. Unlike Python's own reader, NaN and infinities are refused.
    """
    try:
        value = json.loads(raw, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise ApiError(
            400,
            "We could not parse the JSON body of your request. (HINT: This likely means you aren't using "
            "your HTTP library correctly. The OpenAI API expects a JSON payload, but what was sent was not "
            "valid JSON.)",
        ) from None
    if not isinstance(value, dict):
        raise ApiError(400, f"Invalid body: expected an object, but got {type_name(value)} instead.")
    return cast("dict[str, object]", value)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def type_name(value: object) -> str:
    """Return `value`'s JSON type with its article, as OpenAI's messages spell it."""
    return _TYPE_NAMES.get(type(value), "an unknown value")


def wrong_type(param: str, expected: str, value: object) -> ApiError:
    """Return OpenAI's refusal of a value of the wrong type."""
    return invalid(
        param,
        f"Invalid type for '{param}': expected {expected}, but got {type_name(value)} instead.",
        "invalid_type",
    )


def required_text(body: Json, name: str) -> str:
    """Return a string that must be there."""
    value = body.get(name)
    if value is None:
        raise missing(name)
    if not isinstance(value, str):
        raise wrong_type(name, "a string", value)
    return value


def text(body: Json, name: str) -> str | None:
    """Return a string, or None where the field is absent or null."""
    return required_text(body, name) if body.get(name) is not None else None


def flag(body: Json, name: str, default: bool = False) -> bool:
    """Return a boolean; null counts as absent."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise wrong_type(name, "a boolean", value)
    return value


def integer(body: Json, name: str, low: int, high: int | None = None) -> int | None:
    """Return an integer between `low` and `high`, both included; null counts as absent."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(name, "an integer", value)
    if value < low:
        message = f"integer below minimum value. Expected a value >= {low}, but got {value} instead."
        raise invalid(name, f"Invalid '{name}': {message}", "integer_below_min_value")
    if high is not None and value > high:
        message = f"integer above maximum value. Expected a value <= {high}, but got {value} instead."
        raise invalid(name, f"Invalid '{name}': {message}", "integer_above_max_value")
    return value


def decimal(body: Json, name: str, low: float, high: float) -> float | None:
    """Return a number between `low` and `high`, both included; null counts as absent."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(name, "a decimal", value)
    if not low <= value <= high:
        is_low = value < low
        bound = (
            f"below minimum value. Expected a value >= {low:g}"
            if is_low
            else (f"above maximum value. Expected a value <= {high:g}")
        )
        code = "decimal_below_min_value" if is_low else "decimal_above_max_value"
        raise invalid(name, f"Invalid '{name}': decimal {bound}, but got {value} instead.", code)
    return float(value)


def sequence(body: Json, name: str) -> Sequence[object] | None:
    """Return an array, or None where the field is absent or null."""
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, list):
        raise wrong_type(name, "an array", value)
    return value


def mapping(body: Json, name: str) -> Json | None:
    """Return an object, or None where the field is absent or null."""
    value = body.get(name)
    return None if value is None else as_mapping(value, name)


def as_mapping(value: object, param: str) -> Json:
    """Return `value` if it is an object; `param` names it in the error otherwise."""
    if not isinstance(value, dict):
        raise wrong_type(param, "an object", value)
    return cast("Json", value)


def one_of(body: Json, name: str, allowed: Sequence[str], default: str, within: str = "") -> str:
    """Return a string out of `allowed`; null counts as absent. `within` names the object around the field."""
    value = text(body, name)
    if value is None:
        return default
    if value not in allowed:
        names = ", ".join(f"'{item}'" for item in allowed)
        param = f"{within}.{name}" if within else name
        raise invalid(param, f"Invalid value: '{value}'. Supported values are: {names}.")
    return value


def too_long(param: str, limit: int, length: int) -> ApiError:
    """Return OpenAI's refusal of an array with too many elements."""
    message = f"Expected an array with maximum length {limit}, but got an array with length {length} instead."
    return invalid(param, f"Invalid '{param}': array too long. {message}", "array_above_max_length")


def stop_sequences(body: Json, name: str = "stop", limit: int | None = 4) -> tuple[str, ...]:
    """Return stop sequences given as one string or an array; OpenAI takes four at most."""
    value = body.get(name)
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise wrong_type(name, "a string or an array of strings", value)
    if limit is not None and len(stops) > limit:
        raise too_long(name, limit, len(stops))
    return tuple(cast("list[str]", stops))
