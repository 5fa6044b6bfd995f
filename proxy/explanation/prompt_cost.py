"""What a prompt costs: its tokens, which of them a provider's cache would hold, and what they cost.

Counted is everything that a model reads: format, tools, system text and turns, in the order in which they
make prefixes. How a cache behaves is simplified to one rule, stated at `SeenPrefixes`; nothing here claims to
be a bill.
"""

from __future__ import annotations

import msgspec

from proxy.core.document import Document, Path, TooManyParts
from proxy.core.price import Price, PriceLookup, PromptCache
from proxy.core.stages import Stage
from proxy.dialects.question import TURN_FIELDS
from proxy.steps.step import TokenCounting

UNPRICED_CACHE = PromptCache(is_automatic=True, minimum_tokens=1024, lifetime_seconds=300.0)
"""What is assumed of a model without a price: what OpenAI and most of Anthropic's models do."""

_MOST_PREFIXES = 1_000_000
_MARKS = (b'"cache_control"', b'"prompt_cache_breakpoint"')

# A schema stands before everything else in the prompt; Anthropic reads tools before the system text.
_SCHEMAS: tuple[Path, ...] = (
    ("response_format", "json_schema"),
    ("text", "format"),
    ("output_config", "format"),
)
_SCHEMA_FIELDS = frozenset(str(path[0]) for path in _SCHEMAS)
_LEADING = ("tools", "functions", "system", "instructions")
_LEADING_FIELDS = frozenset(_LEADING)


class Prompt(msgspec.Struct, frozen=True):
    """A prompt by its prefixes: for each part the tokens and a hash of everything up to its end.

    is_marked   the request says itself what is to be cached
    """

    totals: tuple[int, ...]
    hashes: tuple[int, ...]
    price: Price | None
    is_marked: bool = False

    @property
    def tokens(self) -> int:
        """The tokens of the whole prompt."""
        return self.totals[-1] if self.totals else 0

    @property
    def cache(self) -> PromptCache | None:
        """How this prompt would be cached; `None` where it would not."""
        cache = UNPRICED_CACHE if self.price is None else self.price.cache
        return cache if cache is not None and (cache.is_automatic or self.is_marked) else None

    def input_usd(self, cached_tokens: int = 0) -> float | None:
        """Return what the input costs when so much of it is read from the cache; `None` if nobody knows."""
        if self.price is None:
            return None
        cache = self.cache
        is_written = cache is not None and self.tokens >= cache.minimum_tokens
        written_tokens = self.tokens - cached_tokens if is_written else 0
        return self.price.cost_usd(self.tokens, 0, cached_tokens, written_tokens)


def read_prompt(
    stage: Stage, dialect_name: str | None, counter: TokenCounting, prices: PriceLookup | None
) -> Prompt:
    """Measure a request's prompt; one that is not understood has no tokens."""
    model = stage.model
    price = None if prices is None else prices.price(stage.upstream.provider.value, model)
    if dialect_name is None:
        return Prompt((), (), price)
    totals: list[int] = []
    hashes: list[int] = []
    # A cache belongs to one model at one upstream.
    tokens, digest = 0, hash((stage.upstream.name, model))
    for raw in _parts(stage.document, dialect_name):
        tokens += counter.count_message(raw, model).tokens
        digest = hash((digest, raw))
        totals.append(tokens)
        hashes.append(digest)
    raw = stage.document.raw
    return Prompt(tuple(totals), tuple(hashes), price, any(mark in raw for mark in _MARKS))


def _parts(document: Document, dialect_name: str) -> list[bytes]:
    parts: list[bytes | None] = []
    if document.has_any(_SCHEMA_FIELDS):
        parts += (_schema(document, path) for path in _SCHEMAS)
    if document.has_any(_LEADING_FIELDS):
        parts += map(document.get, _LEADING)
    field = TURN_FIELDS.get(dialect_name, "input")
    turns = document.array(field)
    parts += (document.get(field),) if turns is None else turns
    return [part for part in parts if part is not None and part != b"null"]


def _schema(document: Document, path: Path) -> bytes | None:
    try:
        return document.get_path(path)
    except TooManyParts:
        return document.get(str(path[0]))


class SeenPrefixes:
    """A cache as simple as can be: it holds whatever prefix of the shortest length or more came by before.

    Real caches forget after minutes and may miss; so this shows the most that caching can give, and therefore
    the most that breaking a prefix can cost.
    """

    def __init__(self) -> None:
        self._known: set[int] = set()

    def cached_tokens(self, prompt: Prompt) -> int:
        """Return the tokens of the longest prefix that came by before, and hold the prompt's prefixes."""
        cache = prompt.cache
        if cache is None:
            return 0
        known, shortest = self._known, cache.minimum_tokens
        cached = 0
        for total, digest in zip(prompt.totals, prompt.hashes, strict=True):
            if total >= shortest:
                if digest in known:
                    cached = total
                else:
                    known.add(digest)
        if len(known) > _MOST_PREFIXES:
            # Memory must end somewhere; what is lost are hits across a million prefixes.
            known.clear()
        return cached
