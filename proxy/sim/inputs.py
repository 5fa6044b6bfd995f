"""The `input` of embeddings and the `prompt` of completions: one or many, as text or as token ids.

It owns the difference between `[1, 2, 3]`, which is one input of three tokens, and `[[1], [2], [3]]`.
"""

from __future__ import annotations

from collections.abc import Sequence

from proxy.sim.body import Json, too_long, wrong_type
from proxy.sim.errors import ApiError, invalid, missing
from proxy.sim.text import split_tokens


def read_inputs(body: Json, name: str, limit: int, default: str | None = None) -> tuple[tuple[str, ...], ...]:
    """Return the tokens of each input. Raises ApiError for empty, mixed or too many inputs.

    Token ids become tokens that cannot be confused with those of a text.
    """
    value = body.get(name)
    value = default if value is None else value
    if value is None:
        raise missing(name)
    if isinstance(value, str):
        return (_of_text(value, name),)
    if not isinstance(value, list):
        raise wrong_type(name, "a string or an array", value)
    if not value:
        raise invalid(name, f"Invalid '{name}': empty array. Expected at least one input.", "empty_array")
    if all(_is_token(item) for item in value):
        return (_of_ids(value, name),)
    if len(value) > limit:
        raise too_long(name, limit, len(value))
    if all(isinstance(item, str) for item in value):
        return tuple(_of_text(item, f"{name}[{index}]") for index, item in enumerate(value))
    if all(isinstance(item, list) for item in value):
        return tuple(_of_ids(item, f"{name}[{index}]") for index, item in enumerate(value))
    raise _not_valid(name, "texts and token ids cannot be mixed")


def _is_token(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _of_text(value: str, param: str) -> tuple[str, ...]:
    if not value:
        raise _not_valid(param, "input cannot be an empty string")
    return split_tokens(value)


def _of_ids(value: Sequence[object], param: str) -> tuple[str, ...]:
    if not value or not all(_is_token(item) and isinstance(item, int) and item >= 0 for item in value):
        raise _not_valid(param, "expected a non-empty array of token ids")
    return tuple(f"<{item}>" for item in value)


def _not_valid(param: str, problem: str) -> ApiError:
    return invalid(param, f"'$.{param}' is invalid: {problem}. Please check the API reference.", None)
