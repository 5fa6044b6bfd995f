"""The simulated prompt cache: prefixes that were read before are cheaper and faster to read again.

It owns what is stored, for whom and until when. It holds digests only, never text. A prefix becomes
available when the first answer to it has begun, not when the request arrives: callers that ask at the same
moment all miss. (Anthropic documents this; see https://platform.claude.com/docs/en/build-with-
claude/prompt-caching.)
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from proxy.core.clock import Clock
from proxy.sim.scenario import CacheRules

_MAX_PREFIXES = 200_000
_LOOKBACK_BLOCKS = 20


@dataclass(frozen=True, slots=True)
class Mark:
    """A place at which a cached prefix may end.

    may_write          whether an entry is made here; a hit may end at any mark
    lifetime_seconds   overrides the scenario's lifetime for this entry
    """

    tokens: int
    digest: bytes
    may_write: bool = True
    lifetime_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of a prompt with an optional breakpoint behind it (Anthropic's `cache_control`)."""

    tokens: tuple[str, ...]
    is_breakpoint: bool = False
    lifetime_seconds: float | None = None


def automatic_marks(tokens: Sequence[str], rules: CacheRules) -> tuple[Mark, ...]:
    """Return a mark at each multiple of the granularity from the minimum length on.

    This is OpenAI's way before GPT-5.6: nothing has to be marked by the caller.
    """
    if not rules.enabled:
        return ()
    marks = []
    digest = hashlib.blake2b(digest_size=16)
    step = rules.granularity_tokens
    for end in range(step, len(tokens) + 1, step):
        digest.update("".join(tokens[end - step : end]).encode("utf-8", "surrogatepass"))
        if end >= rules.min_tokens:
            marks.append(Mark(end, digest.digest()))
    return tuple(marks)


def breakpoint_marks(blocks: Sequence[Block], rules: CacheRules) -> tuple[Mark, ...]:
    """Return a mark behind each block that a breakpoint covers: Anthropic's way.

    Entries are made at breakpoints only; a hit may end at any of the twenty blocks before one.
    """
    if not rules.enabled:
        return ()
    breakpoints = [index for index, block in enumerate(blocks) if block.is_breakpoint]
    marks: list[Mark] = []
    digest = hashlib.blake2b(digest_size=16)
    length = 0
    for index, block in enumerate(blocks):
        digest.update("\x00".join(block.tokens).encode("utf-8", "surrogatepass") + b"\x01")
        length += len(block.tokens)
        is_covered = any(index <= point <= index + _LOOKBACK_BLOCKS for point in breakpoints)
        if length >= rules.min_tokens and is_covered:
            marks.append(Mark(length, digest.digest(), block.is_breakpoint, block.lifetime_seconds))
    return tuple(marks)


class PrefixCache:
    """Prefixes by scope (caller and model), each with the time at which it is forgotten."""

    def __init__(self, rules: CacheRules, clock: Clock) -> None:
        self._rules = rules
        self._clock = clock
        self._expires_at: OrderedDict[tuple[str, bytes], float] = OrderedDict()

    def read(self, scope: str, marks: Sequence[Mark]) -> int:
        """Return how many tokens of the prompt are cached; a hit lives on from now."""
        now = self._clock.monotonic()
        for mark in reversed(marks):
            if self._expires_at.get((scope, mark.digest), now) > now:
                self._store(scope, mark, now)
                return mark.tokens
        return 0

    def write(self, scope: str, marks: Sequence[Mark]) -> None:
        """Make prefixes available from now on; call it when the answer begins."""
        now = self._clock.monotonic()
        for mark in marks:
            if mark.may_write:
                self._store(scope, mark, now)

    def _store(self, scope: str, mark: Mark, now: float) -> None:
        lifetime = self._rules.lifetime_seconds if mark.lifetime_seconds is None else mark.lifetime_seconds
        key = (scope, mark.digest)
        self._expires_at[key] = max(now + lifetime, self._expires_at.get(key, 0.0))
        self._expires_at.move_to_end(key)
        while len(self._expires_at) > _MAX_PREFIXES:
            self._expires_at.popitem(last=False)


def written_tokens(marks: Sequence[Mark], cached_tokens: int) -> int:
    """Return how many tokens beyond the cached ones a request puts into the cache at its own breakpoints."""
    last = max((mark.tokens for mark in marks if mark.may_write), default=0)
    return max(0, last - cached_tokens)
