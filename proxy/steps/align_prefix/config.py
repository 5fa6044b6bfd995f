"""The options of `align_prefix`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Config:
    """What makes the beginnings of a route's prompts alike, and lets the provider know."""

    volatile: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "Lines of the system text that change, moved behind the others: patterns with *, or the "
            "names date, time, uuid, hex."
        },
    )
    cache_key: bool = field(
        default=True,
        metadata={"help": "Give prompt_cache_key to requests that have none, where it is taken."},
    )
    requests_per_minute: int | None = field(
        default=None,
        metadata={"help": "How many requests a minute come at most; the key is split accordingly."},
    )
    breakpoints: bool = field(
        default=True,
        metadata={"help": "Mark the ends of stable prefixes where a provider wants them marked."},
    )
    one_shot: bool = field(
        default=False,
        metadata={
            "help": "These requests are not continued: nothing behind the system text is to be cached."
        },
    )

    def __post_init__(self) -> None:
        if any(not line.replace("*", "").strip() for line in self.volatile):
            raise ValueError("volatile must say more than *: every line would fit")
        if self.requests_per_minute is not None:
            if self.requests_per_minute < 1:
                raise ValueError("requests_per_minute must be at least 1")
            if not self.cache_key:
                raise ValueError("requests_per_minute needs cache_key")
        if not (self.volatile or self.cache_key or self.breakpoints or self.one_shot):
            raise ValueError(
                "nothing is left to do: give volatile lines, or leave cache_key or breakpoints on"
            )
