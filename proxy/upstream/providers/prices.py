"""Reads `prices.yaml`, the table of what models cost, and answers `proxy.core.price.PriceLookup` from it.

Owns the format of that file and refuses to be lenient about it: an unknown key or a negative figure raises
at start, because a wrong price is worse than none.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from datetime import date
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml

from proxy.core.globs import fits
from proxy.core.price import LongContext, Price, PromptCache, Rates, Tier, TierOffer
from proxy.core.upstream import Provider

SHIPPED = Path(__file__).with_name("prices.yaml")

# libyaml where it is there: ten times as fast, and every process reads the table as it starts.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PROVIDERS = tuple(provider.value for provider in Provider)
_Figure = Annotated[float, msgspec.Meta(ge=0)]


class _RatesEntry(msgspec.Struct, forbid_unknown_fields=True):
    input: _Figure
    output: _Figure
    cached: _Figure | None = None
    cache_write: _Figure | None = None


class _LongEntry(msgspec.Struct, forbid_unknown_fields=True):
    above_tokens: int
    input: _Figure
    output: _Figure


class _CacheEntry(msgspec.Struct, forbid_unknown_fields=True):
    kind: Literal["automatic", "marked"]
    minimum_tokens: int
    lifetime_seconds: _Figure


class _ModelEntry(msgspec.Struct, forbid_unknown_fields=True):
    models: list[str]
    input: _Figure
    output: _Figure
    cached: _Figure | None = None
    cache_write: _Figure | None = None
    batch: _Figure | _RatesEntry | None = None
    flex: _Figure | _RatesEntry | None = None
    long_context: _LongEntry | None = None
    # YAML 1.1 reads `off` as false; absent means what the provider says.
    cache: _CacheEntry | Literal["off"] | None = None
    source: str | None = None
    date: str | None = None


class _TierEntry(msgspec.Struct, forbid_unknown_fields=True):
    endpoints: list[str]
    typical_seconds: _Figure
    factor: _Figure | None = None
    source: str | None = None
    date: str | None = None


class _ProviderEntry(msgspec.Struct, forbid_unknown_fields=True):
    models: list[_ModelEntry] = []
    cache: _CacheEntry | None = None
    like: str | None = None
    tiers: dict[Tier, _TierEntry] = {}


class _File(msgspec.Struct, forbid_unknown_fields=True):
    version: Literal[1]
    date: str
    source: str
    providers: dict[str, _ProviderEntry]


class PriceTable:
    """Prices by provider and model, offers by provider and tier.

    An exact name counts before patterns, the first of which that fits.
    """

    def __init__(
        self,
        prices: Mapping[str, Mapping[str, Price]],
        offers: Mapping[str, Mapping[Tier, TierOffer]] | None = None,
    ) -> None:
        """`prices`: provider -> model name or pattern -> price, in order; `offers`: provider -> tier."""
        self._offers = offers or {}
        self._exact = {
            (provider, name): price
            for provider, models in prices.items()
            for name, price in models.items()
            if "*" not in name
        }
        self._patterns = {
            provider: tuple((name, price) for name, price in models.items() if "*" in name)
            for provider, models in prices.items()
        }

    def price(self, provider: str, model: str) -> Price | None:
        """Return the price of a model at a provider, `None` when it is not known."""
        exact = self._exact.get((provider, model))
        if exact is not None:
            return exact
        for pattern, price in self._patterns.get(provider, ()):
            if fits(pattern, model):
                return price
        return None

    def offer(self, provider: str, tier: Tier) -> TierOffer | None:
        """Return what a provider offers in a tier, `None` for nothing."""
        return self._offers.get(provider, {}).get(tier)

    def every(self) -> tuple[tuple[str, str, Price], ...]:
        """Return provider, model (or pattern) and price of all entries."""
        exact = [(provider, name, price) for (provider, name), price in self._exact.items()]
        patterns = [
            (provider, name, price) for provider, pairs in self._patterns.items() for name, price in pairs
        ]
        return (*exact, *patterns)


def load_prices(path: Path = SHIPPED, own: Path | None = None) -> PriceTable:
    """Read a price table; raises `ValueError` that says what is wrong, `OSError` when it cannot be read.

    `own` is an operator's file in the same format: its models and tiers of a provider count before those of
    `path`, and it may say `like` of a provider there.
    """
    shipped = _shipped() if path == SHIPPED else _read(path)
    files = [(path, shipped)] if own is None else [(own, _read(own)), (path, shipped)]
    prices: dict[str, dict[str, Price]] = {}
    offers: dict[str, dict[Tier, TierOffer]] = {}
    for each, file in files:
        _add(each, file, shipped, prices, offers)
    return PriceTable(prices, offers)


@functools.cache
def _shipped() -> _File:
    """Return what this package ships, which does not change while a process runs."""
    return _read(SHIPPED)


def _read(path: Path) -> _File:
    try:
        value = _as_meant(yaml.load(path.read_text(encoding="utf-8"), _LOADER))
    except (yaml.YAMLError, UnicodeDecodeError) as problem:
        raise ValueError(f"{path}: {problem}") from None
    try:
        file = msgspec.convert(value, _File)
    except msgspec.ValidationError as problem:
        raise ValueError(f"{path}: {_located(problem, value)}") from None
    for name in file.providers:
        if name not in _PROVIDERS:
            near = get_close_matches(name, _PROVIDERS, 1)
            hint = f" (did you mean {near[0]}?)" if near else f": it is one of {', '.join(_PROVIDERS)}"
            raise ValueError(f"{path}: providers.{name}: there is no such provider{hint}")
    return file


def _located(problem: msgspec.ValidationError, value: Any) -> str:
    """Return what is wrong and where: msgspec itself leaves the keys of dictionaries out."""
    said, place = str(problem), "$"
    for name, kind in (("providers", _ProviderEntry), ("tiers", _TierEntry)):
        if f"$.{name}[...]" not in said:
            break
        for key, inner in value[name].items():
            try:
                msgspec.convert(inner, kind)
            except msgspec.ValidationError as deeper:
                said, place, value = str(deeper), f"{place}.{name}.{key}", inner
                break
    if "`$" not in said:
        said = f"{said} - at `$`"
    return said.replace("`$", f"`{place}").replace("`$.", "`")


def _add(
    path: Path,
    file: _File,
    shipped: _File,
    prices: dict[str, dict[str, Price]],
    offers: dict[str, dict[Tier, TierOffer]],
) -> None:
    for name, provider in file.providers.items():
        liked = provider.like or name
        origin = file if liked in file.providers else shipped
        like = origin.providers.get(liked)
        if like is None:
            raise ValueError(f"{path}: providers.{name}.like: there is no provider {provider.like}")
        known, offered = prices.setdefault(name, {}), offers.setdefault(name, {})
        for tier, entry in provider.tiers.items():
            offered.setdefault(tier, _offer(entry, file))
        for entry_ in like.models:
            price = _price(entry_, like, provider, origin)
            for model in entry_.models:
                known.setdefault(model, price)


def _offer(entry: _TierEntry, file: _File) -> TierOffer:
    source = entry.source or file.source
    return TierOffer(tuple(entry.endpoints), entry.typical_seconds, source, entry.date or file.date)


def _as_meant(value: Any) -> Any:
    """Undo YAML 1.1's reading of `off` and of dates; no figure in this file is a boolean."""
    match value:
        case dict():
            return {key: _as_meant(inner) for key, inner in value.items()}
        case list():
            return [_as_meant(inner) for inner in value]
        case False:
            return "off"
        case date():
            return value.isoformat()
        case _:
            return value


def _price(entry: _ModelEntry, like: _ProviderEntry, provider: _ProviderEntry, file: _File) -> Price:
    standard = _rates(entry.input, entry.output, entry.cached, entry.cache_write)
    cliff = entry.long_context
    cache = like.cache if entry.cache is None else entry.cache
    return Price(
        standard,
        _tier(entry.flex, standard),
        _tier(entry.batch, standard),
        None if cliff is None else LongContext(cliff.above_tokens, cliff.input, cliff.output),
        None
        if cache is None or cache == "off"
        else PromptCache(cache.kind == "automatic", cache.minimum_tokens, cache.lifetime_seconds),
        entry.source or file.source,
        entry.date or file.date,
        _window(provider, Tier.BACKGROUND_2H, standard),
        _window(provider, Tier.BACKGROUND_8H, standard),
    )


def _window(provider: _ProviderEntry, tier: Tier, standard: Rates) -> Rates | None:
    """Return the rates of a background window: one factor for all models of a provider."""
    entry = provider.tiers.get(tier)
    return None if entry is None else _tier(entry.factor, standard)


def _tier(entry: float | _RatesEntry | None, standard: Rates) -> Rates | None:
    match entry:
        case None:
            return None
        case _RatesEntry():
            return _rates(entry.input, entry.output, entry.cached, entry.cache_write)
        case factor:
            return Rates(
                standard.input * factor,
                standard.output * factor,
                standard.cached * factor,
                standard.cache_write * factor,
            )


def _rates(reading: float, writing: float, cached: float | None, cache_write: float | None) -> Rates:
    return Rates(
        reading,
        writing,
        reading if cached is None else cached,
        reading if cache_write is None else cache_write,
    )
