"""The options of `dedupe_context`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

LEAST_SIMILARITY = 0.5


@dataclass(frozen=True, slots=True)
class Config:
    """What counts as a passage, and which of them go."""

    markers: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "Lines that begin a passage, patterns with *; without markers and separator the usual "
            "shapes are recognised."
        },
    )
    separator: str | None = field(
        default=None, metadata={"help": "The line that stands between two passages, a pattern with *."}
    )
    min_chars: int = field(
        default=80, metadata={"help": "Shortest passage that may go as a repetition, in characters."}
    )
    similarity: float = field(
        default=0.9,
        metadata={
            "help": "From which share of common word triples two passages are the same; 1: only exact ones."
        },
    )
    compare: Literal["sentences", "words"] = field(
        default="sentences",
        metadata={
            "help": "sentences: of a similar passage each sentence must stand in the one that stays; words: "
            "other words than numbers and negations may differ."
        },
    )
    top_k: int | None = field(
        default=None,
        metadata={"help": "How many passages of one list stay, the best, where they have scores."},
    )
    min_score: float | None = field(
        default=None, metadata={"help": "Lowest score of a passage that stays, where it has one."}
    )
    scope: Literal["last_user", "all"] = field(
        default="last_user",
        metadata={
            "help": "last_user: within the person's last message, and within earlier ones as when they were "
            "the last; all: across everything but the model's words."
        },
    )

    def __post_init__(self) -> None:
        if self.markers and self.separator is not None:
            raise ValueError("markers and separator exclude each other")
        for name, patterns in (("markers", self.markers), ("separator", (self.separator,))):
            if any(pattern is not None and not pattern.replace("*", "").strip() for pattern in patterns):
                raise ValueError(f"{name} must say more than *: every line would fit")
        if self.min_chars < 1:
            raise ValueError("min_chars must be at least 1")
        if not LEAST_SIMILARITY <= self.similarity <= 1:
            raise ValueError(f"similarity must be between {LEAST_SIMILARITY} and 1")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError("top_k must be at least 1")
