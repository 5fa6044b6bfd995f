"""What tokens cost: the value that a price table holds and the port through which it is asked.

Owns the arithmetic of a provider's bill. Prices themselves are data (`proxy.upstream.providers`); what has
no price here has no cost, which is not the same as costing nothing.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

import msgspec

_PER_MILLION = 1e-6


class Tier(Enum):
    """The price classes of one provider for one model."""

    STANDARD = "standard"
    FLEX = "flex"
    BATCH = "batch"
    BACKGROUND_2H = "background_2h"
    BACKGROUND_8H = "background_8h"


class Rates(msgspec.Struct, frozen=True):
    """US dollars per million tokens.

    cached        an input token that is read from the provider's prompt cache
    cache_write   an input token that is written to it: the whole price, not a surcharge
    """

    input: float
    output: float
    cached: float
    cache_write: float


class LongContext(msgspec.Struct, frozen=True):
    """Factors on a whole request with more than `above_tokens` of input: a cliff, not a marginal rate."""

    above_tokens: int
    input_factor: float
    output_factor: float


class PromptCache(msgspec.Struct, frozen=True):
    """How a provider caches prompt prefixes.

    is_automatic     without being asked; otherwise only under the caller's own markers
    minimum_tokens   shorter prefixes are never cached
    lifetime_seconds how long a prefix stays after its last use
    """

    is_automatic: bool
    minimum_tokens: int
    lifetime_seconds: float


class TierOffer(msgspec.Struct, frozen=True):
    """What a provider offers in one tier, whatever the model.

    endpoints        paths that may be carried by it, `/v1/responses`
    typical_seconds  until 95 of 100 answers are there: what is assumed before anything was observed
    source, date     where that was read and when
    """

    endpoints: tuple[str, ...]
    typical_seconds: float
    source: str = ""
    date: str = ""


class Price(msgspec.Struct, frozen=True):
    """What one model costs at one provider; `None` for a tier means that it is not offered at a known price.

    source, date   where the figures were read and when
    """

    standard: Rates
    flex: Rates | None = None
    batch: Rates | None = None
    long_context: LongContext | None = None
    cache: PromptCache | None = None
    source: str = ""
    date: str = ""
    background_2h: Rates | None = None
    background_8h: Rates | None = None

    def rates(self, tier: Tier) -> Rates | None:
        """Return the rates of a tier."""
        match tier:
            case Tier.STANDARD:
                return self.standard
            case Tier.FLEX:
                return self.flex
            case Tier.BATCH:
                return self.batch
            case Tier.BACKGROUND_2H:
                return self.background_2h
            case Tier.BACKGROUND_8H:
                return self.background_8h

    def cost_usd(
        self,
        input_tokens: int,
        output_tokens: int = 0,
        cached_tokens: int = 0,
        cache_write_tokens: int = 0,
        tier: Tier = Tier.STANDARD,
    ) -> float | None:
        """Return the bill for one request; `None` for a tier without a price.

        `input_tokens` is the whole prompt, of which `cached_tokens` were read from the cache and
        `cache_write_tokens` written to it.
        """
        rates = self.rates(tier)
        if rates is None:
            return None
        plain_tokens = max(0, input_tokens - cached_tokens - cache_write_tokens)
        reading = (
            plain_tokens * rates.input + cached_tokens * rates.cached + cache_write_tokens * rates.cache_write
        )
        writing = output_tokens * rates.output
        cliff = self.long_context
        if cliff is not None and input_tokens > cliff.above_tokens:
            reading *= cliff.input_factor
            writing *= cliff.output_factor
        return (reading + writing) * _PER_MILLION


class PriceLookup(Protocol):
    """Whoever knows prices."""

    def price(self, provider: str, model: str) -> Price | None:
        """Return the price of a model at a provider (`Provider.value`), `None` when it is not known."""
        ...


class OfferLookup(Protocol):
    """Whoever knows what providers offer."""

    def offer(self, provider: str, tier: Tier) -> TierOffer | None:
        """Return what a provider (`Provider.value`) offers in a tier, `None` for nothing."""
        ...
