"""The port of token counting: what a count is, what whoever counts must offer, and what it needs.

`TokenCounter` and its twin `FixedCounter` implement it and pass the same contract tests. Nothing here
counts anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Count:
    """A number of tokens; `exact` is False for every estimate, however good."""

    tokens: int
    exact: bool


def total(counts: Iterable[Count]) -> Count:
    """Add counts up; the sum is exact only when all of them are."""
    tokens, exact = 0, True
    for count in counts:
        tokens += count.tokens
        exact = exact and count.exact
    return Count(tokens, exact)


class EncodingName(StrEnum):
    """The encodings that ship; the value is the name of the data file and of tiktoken's encoding."""

    O200K = "o200k_base"
    CL100K = "cl100k_base"


class TextEncoder(Protocol):
    """The one method of `tiktoken.Encoding` that counting uses."""

    def encode_ordinary(self, text: str) -> list[int]:
        """Turn text into token ids, reading `<|endoftext|>` and its like as plain text."""


class Encoders(Protocol):
    """Where a counter finds its encoders. For any thread."""

    def get(self, name: EncodingName, /) -> TextEncoder | None:
        """Return the encoder, `None` if there is none. Never raises."""


class Counter(Protocol):
    """Counts for one model name at a time. No method raises, whatever the input; all are thread-safe.

    `fallbacks` is how many values could not be counted as they should and were estimated from their length.
    """

    fallbacks: int

    def prepare(self) -> None:
        """Load now what counting needs, which takes up to a second; else that is done by the first count."""

    def upper_bound_bytes(self, raw: bytes | str) -> int:
        """Bound the tokens of a text (str) or of a body, message or tool list (JSON bytes) from above."""

    def count_text(self, text: str, model: str) -> Count:
        """Count plain text, without any message framing."""

    def count_message(self, raw: bytes, model: str) -> Count:
        """Count one chat, Responses or Anthropic message given as the bytes of its JSON value."""

    def count_tools(self, raw: bytes, model: str) -> Count:
        """Count the `tools` (or legacy `functions`) array given as the bytes of its JSON value."""

    def uncached_bytes(self, raws: Iterable[bytes], model: str) -> int:
        """Return how many bytes of these messages would have to be counted anew."""
