"""Who used what of a merged call: whole figures divided so that the parts add up to them exactly. Pure.

Parts follow own token counts by largest remainder, but nobody is told more output than it allowed. Details of
a figure follow that figure's parts, so that nobody has more cached tokens than tokens.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Sequence

from proxy.core.document import Document, DocumentError
from proxy.core.json_values import decode
from proxy.lanes.coalesce.filling import filled

_LONGEST_FIGURE_DIGITS = 18
_MAX_DEPTH = 4
_INPUT = ("prompt", "input")
_OUTPUT = ("completion", "output")


def divide(whole: int, weights: Sequence[int], most: Sequence[int] | None = None) -> list[int]:
    """Return parts in proportion to `weights` (not negative, not empty) that add up to `whole`.

    What rounding down leaves goes to the largest remainders, of equal ones to the first. Without any weight
    all count alike. No part is larger than its `most`, where these have room for the whole: what is over goes
    to the others, in proportion to the room that they have.
    """
    parts = _divided(whole, weights)
    if most is None or sum(most) < whole or all(map(operator.le, parts, most)):
        return parts
    kept = list(map(min, parts, most))
    rooms = list(map(operator.sub, most, kept))
    return list(map(operator.add, kept, _divided(whole - sum(kept), rooms)))


def _divided(whole: int, weights: Sequence[int]) -> list[int]:
    if not any(weights):
        weights = [1] * len(weights)
    total = sum(weights)
    parts, rests = zip(*(divmod(whole * weight, total) for weight in weights), strict=True)
    left = whole - sum(parts)
    first = sorted(range(len(parts)), key=lambda index: (-rests[index], index))[:left]
    extra = set(first)
    return [part + (index in extra) for index, part in enumerate(parts)]


def divide_usage(
    raw: bytes, inputs: Sequence[int], outputs: Sequence[int], most_outputs: Sequence[int] | None = None
) -> list[bytes]:
    """Return each member's `usage` from the whole call's; the same for all where it is no object.

    `inputs` and `outputs` weigh the members: tokens, or whatever is in proportion to them. `most_outputs` is
    how many tokens each can have been given.
    """
    try:
        usage = Document.parse(raw)
    except DocumentError:
        return [raw] * len(inputs)
    shares = _Shares(usage, inputs, outputs, most_outputs)
    values = {key: _parts(usage.get(key) or b"", shares.of(key)) for key in tuple(usage.keys())}
    return filled(usage, values, len(inputs))


class _Shares:
    """What the members' figures are in proportion to."""

    def __init__(
        self, usage: Document, inputs: Sequence[int], outputs: Sequence[int], most: Sequence[int] | None
    ) -> None:
        self._inputs = _proportion(usage, _INPUT, inputs)
        self._outputs = _proportion(usage, _OUTPUT, outputs, most)
        both = [sum(pair) for pair in zip(self._inputs, self._outputs, strict=True)]
        is_output_known = any(_figure(usage, name) is not None for name in _OUTPUT)
        # Without output figures (embeddings) everything is about the input.
        self._both = both if is_output_known else self._inputs

    def of(self, key: str) -> Sequence[int]:
        """Return the proportion for a member of `usage`."""
        if key.startswith(_INPUT):
            return self._inputs
        return self._outputs if key.startswith(_OUTPUT) else self._both


def _proportion(
    usage: Document, names: Sequence[str], weights: Sequence[int], most: Sequence[int] | None = None
) -> list[int]:
    """Return the parts of the first of these figures that there is, the weights where there is none."""
    figures = [figure for name in names if (figure := _figure(usage, name)) is not None]
    return divide(figures[0], weights, most) if figures else list(weights)


def _figure(usage: Document, name: str) -> int | None:
    value = usage.value(f"{name}_tokens")
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _parts(raw: bytes, weights: Sequence[int], depth: int = 0) -> list[bytes]:
    """Return the parts of one raw figure; of an object each figure in it; anything else goes to everybody."""
    if raw.isdigit() and len(raw) <= _LONGEST_FIGURE_DIGITS:
        return [b"%d" % part for part in divide(int(raw), weights)]
    if raw.startswith(b"{") and depth < _MAX_DEPTH:
        details = Document.parse(raw)
        keys = tuple(details.keys())
        values = {key: _parts(details.get(key) or b"", weights, depth + 1) for key in keys}
        return filled(details, values, len(weights))
    value, total = decode(raw), sum(weights)
    if isinstance(value, float) and math.isfinite(value) and total:
        # An amount of money, at some providers. Multiplied first, a large one would be infinite.
        return [json.dumps(value * (weight / total)).encode() for weight in weights]
    return [raw] * len(weights)
