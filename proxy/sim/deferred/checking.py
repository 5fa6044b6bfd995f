"""Validation of a batch's input file: what OpenAI finds wrong before anything runs.

It owns the reading of lines and the codes of their errors. The codes are those that Microsoft documents for
the same API (Foundry, "Batch troubleshooting"). It refuses to judge bodies beyond what makes a line unfit
for any batch: a body that the endpoint refuses fails alone, when it runs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from proxy.sim.deferred.rules import BatchRules
from proxy.sim.errors import ApiError
from proxy.sim.text import count_tokens

_MAX_ERRORS = 100
_BREATH_EVERY_SECONDS = 0.004
_BREATH_SECONDS = 0.001
_PROMPT_FIELDS = ("messages", "input", "prompt", "instructions", "tools")


class _BodyField(msgspec.Struct):
    body: msgspec.Raw


_BODY = msgspec.json.Decoder(_BodyField)


class Breath:
    """Lets live calls in between: `taken` gives way once a few milliseconds of work have passed."""

    def __init__(self) -> None:
        self._since = asyncio.get_running_loop().time()

    async def taken(self) -> None:
        """Give way if it is time to."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._since > _BREATH_EVERY_SECONDS:
            # Not zero: a live call takes many turns of the loop, its caller may be a thread of this process.
            await asyncio.sleep(_BREATH_SECONDS)
            self._since = loop.time()


@dataclass(frozen=True, slots=True)
class Line:
    """A line that is fit to run. `raw_body` are the bytes of its body as they stand in the file."""

    custom_id: str
    method: str
    url: str
    body: Mapping[str, object]
    raw_body: bytes


@dataclass(slots=True)
class Checked:
    """What validation has found. `tokens` is what the batch takes of the quota of `model`, if any."""

    spans: list[tuple[int, int]]
    model: str | None = None
    errors: list[dict[str, Any]] = field(default_factory=list)
    tokens: int = 0


def lines_of(content: bytes) -> Iterator[tuple[int, int]]:
    """Yield where each line begins and ends; an empty end of the file is no line."""
    start = 0
    while start < len(content):
        end = content.find(b"\n", start)
        end = len(content) if end < 0 else end
        if end + 1 < len(content) or content[start:end].strip():
            yield start, end
        start = end + 1


def read_line(raw: bytes) -> Line:
    """Return a line of an input file. Raises ApiError (400) with the code and field that are wrong."""
    try:
        value: Any = json.loads(raw)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ApiError(400, "This line is not parseable as valid JSON.", code="invalid_json_line")
    for name in ("custom_id", "method", "url"):
        if not isinstance(value.get(name), str) or not value[name]:
            raise ApiError(400, f"Missing or invalid '{name}'.", param=name, code="invalid_request")
    if not isinstance(value.get("body"), dict):
        raise ApiError(400, "'body' must be an object.", param="body", code="invalid_request")
    return Line(
        value["custom_id"], value["method"], value["url"], value["body"], _raw_body(raw, value["body"])
    )


def _raw_body(raw: bytes, body: object) -> bytes:
    try:
        return bytes(_BODY.decode(raw).body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        # The reader of raw fields refuses some of what JSON allows, such as lone surrogates.
        return json.dumps(body, separators=(",", ":")).encode()


async def check_input(content: bytes, endpoint: str, rules: BatchRules) -> Checked:
    """Return what is wrong with an input file as a whole and line by line, and what it asks for."""
    checked = Checked(list(lines_of(content)))
    if not checked.spans:
        return _refused(checked, "empty_file", "The input file contains no requests.")
    if len(checked.spans) > rules.max_lines:
        return _refused(
            checked, "too_many_tasks", f"The input file has more than {rules.max_lines:,} requests."
        )
    seen: set[str] = set()
    inputs = 0
    breath = Breath()
    for number, (start, end) in enumerate(checked.spans, start=1):
        await breath.taken()
        try:
            line = read_line(content[start:end])
            _check_line(line, endpoint, seen, checked)
        except ApiError as error:
            _note(checked, error.code, error.message, number, error.param)
            if len(checked.errors) >= _MAX_ERRORS:
                break
            continue
        seen.add(line.custom_id)
        checked.tokens += prompt_tokens(line.body) if rules.enqueued_tokens else 0
        inputs += input_count(line.body) if endpoint == "/v1/embeddings" else 0
    if inputs > rules.max_embedding_inputs:
        return _refused(
            checked, "too_many_tasks", f"The input file has more than {rules.max_embedding_inputs:,} inputs."
        )
    return checked


def _check_line(line: Line, endpoint: str, seen: set[str], checked: Checked) -> None:
    if line.custom_id in seen:
        message = f"The custom_id '{line.custom_id}' was used by an earlier request of this file."
        raise ApiError(400, message, param="custom_id", code="duplicate_custom_id")
    if line.method != "POST":
        raise ApiError(400, "The method must be POST.", param="method", code="invalid_request")
    if line.url != endpoint:
        message = f"The URL '{line.url}' does not match the batch's endpoint '{endpoint}'."
        raise ApiError(400, message, param="url", code="url_mismatch")
    for name in ("stream", "background"):
        if line.body.get(name):
            message = f"'{name}' is not supported in a batch."
            raise ApiError(400, message, param=f"body.{name}", code="invalid_request")
    model = line.body.get("model")
    if not isinstance(model, str):
        if endpoint != "/v1/moderations" or model is not None:
            raise ApiError(400, "The body names no model.", param="body.model", code="invalid_request")
        return
    if checked.model is None:
        checked.model = model
    if model != checked.model:
        message = f"The model '{model}' is not that of the requests before, '{checked.model}'."
        raise ApiError(400, message, param="body.model", code="model_mismatch")


def prompt_tokens(body: Mapping[str, object]) -> int:
    """Return what a body counts in the enqueued-token quota: the tokens of its prompt fields as JSON."""
    fields = [body[name] for name in _PROMPT_FIELDS if name in body]
    return sum(
        count_tokens(part if isinstance(part, str) else json.dumps(part, separators=(",", ":")))
        for part in fields
    )


def input_count(body: Mapping[str, object]) -> int:
    """Return how many inputs an embeddings body has."""
    value = body.get("input")
    is_many = isinstance(value, list) and not all(isinstance(item, int) for item in value)
    return len(cast("Sequence[object]", value)) if is_many else 1


def _refused(checked: Checked, code: str, message: str) -> Checked:
    _note(checked, code, message, None, None)
    return checked


def _note(checked: Checked, code: str | None, message: str, line: int | None, param: str | None) -> None:
    checked.errors.append({"code": code, "line": line, "message": message, "param": param})
