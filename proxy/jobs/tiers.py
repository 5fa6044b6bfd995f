"""Which tier carries a job: the cheapest that fits, what comes after a miss, when it is rescued. Pure.

    choose       at intake: among the tiers that the route lists; says of each refused one why
    after_miss   the tier did not deliver: the next that still fits, at last a direct call
    rescue_at    when the direct call has to begin so that it is there by the deadline
    rescue_window, spread_rescue_at   the same for many at once: each in its turn, none later than that

What tiers cost and which paths they carry are data (`proxy.core.price`), how long they take is observed
(`JobStore.completions`); until there are observations a provider's `typical_seconds` stand for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, floor, log2
from zlib import crc32

from proxy.core.price import OfferLookup, Price, Tier, TierOffer
from proxy.jobs.model import JobTier

PRICE_TIERS: Mapping[JobTier, Tier] = {
    JobTier.DIRECT: Tier.STANDARD,
    JobTier.FLEX: Tier.FLEX,
    JobTier.BACKGROUND_2H: Tier.BACKGROUND_2H,
    JobTier.BACKGROUND_8H: Tier.BACKGROUND_8H,
    JobTier.BATCH: Tier.BATCH,
}
"""By which rates a tier is paid."""

POLICY_TIERS: Mapping[str, tuple[JobTier, ...]] = {
    "direct": (JobTier.DIRECT,),
    "flex": (JobTier.FLEX,),
    "background": (JobTier.BACKGROUND_2H, JobTier.BACKGROUND_8H),
    "batch": (JobTier.BATCH,),
}
"""What the words under `batch.upstream_tiers` stand for."""

LEAST_OBSERVATIONS = 5
"""Below so many a provider's own figure is better than what was seen."""

FALLBACK_DIRECT_SECONDS = 60.0
"""How long a direct call takes where neither the provider's data nor observations say."""

CALLS_AT_ONCE = 64
"""How many single calls one worker makes at once, unless its settings say otherwise."""

_MOMENTS = 64
"""Into at least so many moments a window is divided: jobs of one moment are written in one change."""

# What orders tiers by price: a request like most. The order depends on the shares of input and output only
# where a provider discounts them differently.
_USUAL_INPUT_TOKENS = 1_000
_USUAL_OUTPUT_TOKENS = 300


@dataclass(frozen=True, slots=True)
class TierFacts:
    """What decides the tier of one request.

    allowed       words of the route's `batch.upstream_tiers`
    endpoint      path that the API knows
    price         of the model at the upstream's provider, `None`: not known
    offers        what the provider offers, by tier
    p95_seconds   until 95 of 100 answers are there, by tier; of batches from submission on
    seconds_left  until the deadline
    packing_seconds  how long a job may wait for its batch to fill
    unfit         tiers that do not carry this request, each with the reason
    """

    allowed: Sequence[str]
    endpoint: str
    price: Price | None
    offers: Mapping[JobTier, TierOffer]
    p95_seconds: Mapping[JobTier, float]
    seconds_left: float
    packing_seconds: float = 0.0
    unfit: Mapping[JobTier, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TierChoice:
    """Tiers that may carry a job, cheapest first, without the direct call that comes after all; the others
    that the route lists, each with the reason why not."""

    tiers: tuple[JobTier, ...]
    refused: tuple[tuple[JobTier, str], ...]

    @property
    def reason(self) -> str:
        """One sentence for people; empty where a tier was found."""
        if self.tiers:
            return ""
        return "; ".join(f"{tier.value}: {why}" for tier, why in self.refused) or "the route lists no tier"


def offers_of(lookup: OfferLookup, provider: str) -> dict[JobTier, TierOffer]:
    """Return what a provider (`Provider.value`) offers, by tier."""
    found = ((tier, lookup.offer(provider, price_tier)) for tier, price_tier in PRICE_TIERS.items())
    return {tier: offer for tier, offer in found if offer is not None}


def p95(observed_seconds: Sequence[float], offer: TierOffer | None) -> float:
    """Return within how many seconds 95 of 100 answers are there (nearest rank)."""
    if len(observed_seconds) >= LEAST_OBSERVATIONS:
        ordered = sorted(observed_seconds)
        return ordered[ceil(0.95 * len(ordered)) - 1]
    return FALLBACK_DIRECT_SECONDS if offer is None else offer.typical_seconds


def rescue_at(deadline: float, direct_p95_seconds: float) -> float:
    """Return the time at which a direct call has to begin."""
    return deadline - direct_p95_seconds


def rescue_window(jobs: int, direct_p95_seconds: float, at_once: int = CALLS_AT_ONCE, most: int = 0) -> float:
    """Return over how many seconds the direct calls of so many jobs have to be spread, so that each has its
    turn: only `at_once` (and `most`, an upstream's `max_connections`; 0 is no limit) go on together.
    """
    together = max(1, min(at_once, most) if most > 0 else at_once)
    return max(0, ceil(jobs / together) - 1) * direct_p95_seconds


def spread_rescue_at(
    job_id: str, deadline: float, direct_p95_seconds: float, window_seconds: float, now: float
) -> float:
    """Return when a job's direct call begins: within the window that ends at `rescue_at`.

    Where in the window says the job's id. Of the time that is left until then the first half belongs to the
    cheaper tier, however long the window is.
    """
    latest = rescue_at(deadline, direct_p95_seconds)
    window = min(window_seconds, (latest - now) / 2)
    if window <= 0:
        return latest
    # A power of two, so that jobs with other deadlines and windows have their moments in common.
    moment_seconds = 2.0 ** floor(log2(window / _MOMENTS))
    begin = latest - window * crc32(job_id.encode()) / 2**32
    return begin // moment_seconds * moment_seconds


def choose(facts: TierFacts) -> TierChoice:
    """Return the tiers that can carry a request. Of two equally dear ones the quicker comes first."""
    listed = [tier for word in facts.allowed for tier in POLICY_TIERS.get(word, ())]
    fitting: list[JobTier] = []
    refused: list[tuple[JobTier, str]] = []
    for tier in dict.fromkeys(listed):
        if tier is JobTier.DIRECT:
            continue
        why = _refusal(tier, facts)
        if why is None:
            fitting.append(tier)
        else:
            refused.append((tier, why))
    fitting.sort(key=lambda tier: (_usual_usd(facts.price, tier) or 0.0, _seconds(tier, facts)))
    return TierChoice(tuple(fitting), tuple(refused))


def _refusal(tier: JobTier, facts: TierFacts) -> str | None:
    offer = facts.offers.get(tier)
    if offer is None:
        return "the provider does not offer it"
    if tier in facts.unfit:
        return facts.unfit[tier]
    if facts.endpoint not in offer.endpoints:
        return f"it does not carry {facts.endpoint}"
    cost, standard = _usual_usd(facts.price, tier), _usual_usd(facts.price, JobTier.DIRECT)
    if cost is None or standard is None:
        return "the price table has no price for this model"
    if cost >= standard:
        return "it is no cheaper than a direct call"
    needed = _seconds(tier, facts) + direct_seconds(facts)
    if needed > facts.seconds_left:
        return f"takes {needed:.0f} s with a rescue, the deadline is in {facts.seconds_left:.0f} s"
    return None


def direct_seconds(facts: TierFacts) -> float:
    """Return how long a direct call is expected to take."""
    return facts.p95_seconds.get(JobTier.DIRECT, FALLBACK_DIRECT_SECONDS)


def _seconds(tier: JobTier, facts: TierFacts) -> float:
    offer = facts.offers.get(tier)
    waiting = facts.packing_seconds if tier is JobTier.BATCH else 0.0
    return waiting + facts.p95_seconds.get(tier, 0.0 if offer is None else offer.typical_seconds)


def _usual_usd(price: Price | None, tier: JobTier) -> float | None:
    if price is None:
        return None
    return price.cost_usd(_USUAL_INPUT_TOKENS, _USUAL_OUTPUT_TOKENS, tier=PRICE_TIERS[tier])


@dataclass(frozen=True, slots=True)
class NextTier:
    """What carries a job now, and what is left after it."""

    tier: JobTier
    left: tuple[JobTier, ...]


def after_miss(
    left: Sequence[JobTier], p95_seconds: Mapping[JobTier, float], seconds_left: float
) -> NextTier:
    """Return the first of the tiers that are left whose time still fits before a direct call, else direct.

    `left` are the tiers after the one that missed, cheapest first.
    """
    room = seconds_left - p95_seconds.get(JobTier.DIRECT, FALLBACK_DIRECT_SECONDS)
    for index, tier in enumerate(left):
        if tier is not JobTier.DIRECT and p95_seconds.get(tier, float("inf")) <= room:
            return NextTier(tier, tuple(left[index + 1 :]))
    return NextTier(JobTier.DIRECT, ())


def backoff_seconds(failures: int, first_seconds: float, most_seconds: float, draw: float) -> float:
    """Return how long to wait after so many failures in a row: doubling, with `draw` (0 to 1) as jitter.

    Between half of the full wait and all of it, so that many who failed together do not come back together.
    """
    full = min(most_seconds, first_seconds * 2.0 ** min(30, max(0, failures - 1)))
    return full * (0.5 + 0.5 * draw)
