"""The options of `trim_history`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

LEAST_PER_MESSAGE_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Config:
    """Limits are tokens of the conversation: its elements and system text, tools aside."""

    budget: int | None = field(default=None, metadata={"help": "Most tokens that the conversation may have."})
    keep_last: int = field(
        default=1,
        metadata={
            "help": "How many of the newest messages stay whatever the budget; "
            "tool calls with their results count as one."
        },
    )
    keep_first: int = field(
        default=0,
        metadata={
            "help": "How many messages stay from the person's first one on; "
            "tool calls with their results count as one."
        },
    )
    per_message: int | None = field(
        default=None, metadata={"help": "Most tokens of one tool result; longer ones are shortened."}
    )
    min_saving: int = field(
        default=0, metadata={"help": "Fewest tokens worth dropping anything for; with less, all stays."}
    )
    cache: Literal["respect", "ignore"] = field(
        default="respect",
        metadata={
            "help": "respect: cut in blocks, and not where the likely loss of a cached prefix costs more; "
            "ignore: cut to the budget with every request."
        },
    )
    on_overflow: Literal["pass", "reject"] = field(
        default="pass",
        metadata={"help": "What happens when what must stay exceeds the budget: sent, or answered with 400."},
    )
    cut: Literal["end", "middle", "start"] = field(
        default="end", metadata={"help": "Which part of an oversized tool result goes."}
    )
    json: Literal["elements", "drop", "text", "keep"] = field(
        default="elements",
        metadata={
            "help": "An oversized JSON result loses elements, is emptied (drop), cut as text, or kept."
        },
    )
    marker: str = field(
        default="", metadata={"help": "Text that stands where the text of a tool result was cut."}
    )
    summary: Literal["keep", "system"] = field(
        default="keep",
        metadata={"help": "What becomes of the role summary: it stays, or is written as system."},
    )

    def __post_init__(self) -> None:
        if self.budget is None and self.per_message is None:
            raise ValueError("budget or per_message must be given")
        if self.budget is not None and self.budget < 1:
            raise ValueError("budget must be at least 1")
        if self.per_message is not None and self.per_message < LEAST_PER_MESSAGE_TOKENS:
            raise ValueError(f"per_message must be at least {LEAST_PER_MESSAGE_TOKENS}")
        if self.keep_last < 1:
            raise ValueError("keep_last must be at least 1: the newest message always stays")
        for name in ("keep_first", "min_saving"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")
        if self.on_overflow == "reject" and self.budget is None:
            raise ValueError("on_overflow: reject needs a budget")
        try:
            self.marker.encode()
        except UnicodeEncodeError:
            raise ValueError("marker must be Unicode text without lone surrogates") from None
