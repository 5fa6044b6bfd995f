"""/v1/embeddings: unit vectors that depend on the model and the input alone, as floats or base64.

It owns this shape on the wire. The vectors mean nothing: near texts do not have near vectors.
"""

from __future__ import annotations

import base64
import hashlib
import math
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from proxy.sim import body as fields
from proxy.sim.errors import Family, invalid
from proxy.sim.inputs import read_inputs
from proxy.sim.text import digest_of
from proxy.sim.work import Bill, Call, Event, Shape, Work

_MAX_INPUTS = 2048
_MAX_INPUT_TOKENS = 8192
_MAX_TOTAL_TOKENS = 300_000


def read(call: Call) -> Work:
    """Return the work in an embeddings request. Raises ApiError."""
    body = call.body
    model = fields.required_text(body, "model")
    encoding = fields.one_of(body, "encoding_format", ("float", "base64"), "float")
    native = 3072 if "large" in model else 1536
    wanted = fields.integer(body, "dimensions", 1, native)
    if wanted is not None and "ada" in model:
        raise invalid("dimensions", "This model does not support specifying dimensions.", None)
    inputs = read_inputs(body, "input", _MAX_INPUTS)
    total_tokens = _checked_total(inputs)
    key = f"{call.scenario.seed} {model}"
    answer = EmbeddingsAnswer(model, key, inputs, native, wanted or native, encoding == "base64")
    return Work(answer=answer, model=model, input_tokens=total_tokens)


SHAPE = Shape("/v1/embeddings", Family.OPENAI, read)


def _checked_total(inputs: Sequence[Sequence[str]]) -> int:
    for index, tokens in enumerate(inputs):
        if len(tokens) > _MAX_INPUT_TOKENS:
            message = (
                f"Invalid 'input[{index}]': maximum context length is {_MAX_INPUT_TOKENS} tokens, "
                f"but got {len(tokens)} instead."
            )
            raise invalid("input", message, "context_length_exceeded")
    total = sum(len(tokens) for tokens in inputs)
    if total > _MAX_TOTAL_TOKENS:
        message = f"Invalid 'input': maximum request size is {_MAX_TOTAL_TOKENS} tokens, but got {total}."
        raise invalid("input", message, "max_tokens_per_request")
    return total


def unit_vector(key: str, tokens: Sequence[str], native: int, dimensions: int) -> array[float]:
    """Return a float32 vector of length one: the first `dimensions` of the model's `native` ones."""
    raw = hashlib.shake_128(digest_of((key, "".join(tokens))).encode()).digest(4 * native)
    whole = array("i")
    whole.frombytes(raw)
    if sys.byteorder == "big":
        whole.byteswap()
    values = whole[:dimensions]
    length = math.sqrt(sum(value * value for value in values)) or 1.0
    return array("f", (value / length for value in values))


@dataclass(frozen=True, slots=True)
class EmbeddingsAnswer:
    """One vector for each input, in the order of the inputs."""

    model: str
    key: str
    inputs: tuple[tuple[str, ...], ...]
    native: int
    dimensions: int
    is_base64: bool

    def whole(self, bill: Bill) -> dict[str, object]:
        """Return the list of embeddings."""
        return {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": self._encoded(tokens)}
                for index, tokens in enumerate(self.inputs)
            ],
            "model": self.model,
            "usage": {"prompt_tokens": bill.input_tokens, "total_tokens": bill.input_tokens},
        }

    def _encoded(self, tokens: Sequence[str]) -> object:
        vector = unit_vector(self.key, tokens, self.native, self.dimensions)
        if not self.is_base64:
            return vector.tolist()
        if sys.byteorder == "big":
            vector.byteswap()
        return base64.b64encode(vector.tobytes()).decode()

    def events(self, bill: Bill) -> Iterator[Event]:
        """Yield nothing: this endpoint does not stream."""
        return iter(())
