"""Rate limits per caller: requests and tokens per minute, each a bucket that refills continuously.

It owns the figures and the refusal; how they are spelt in headers differs by API family and stands here too.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime

from proxy.core.clock import Clock
from proxy.sim.errors import ApiError, Family, retry_after_headers
from proxy.sim.scenario import LimitRules

_MAX_CALLERS = 10_000


@dataclass(frozen=True, slots=True)
class Reading:
    """What one limit says after a request: `reset_seconds` until it is full again."""

    kind: str
    limit: int
    remaining: int
    reset_seconds: float


class _Bucket:
    def __init__(self, per_minute: int, now: float) -> None:
        self.per_minute = per_minute
        self.level = float(per_minute)
        self._updated_at = now

    def refill(self, now: float) -> None:
        self.level = min(self.per_minute, self.level + (now - self._updated_at) * self.per_minute / 60)
        self._updated_at = now

    def seconds_until(self, amount: float) -> float:
        return max(0.0, (amount - self.level) * 60 / self.per_minute)


class RateLimits:
    """The buckets of all callers. A refused request costs nothing."""

    def __init__(self, rules: LimitRules, clock: Clock) -> None:
        self._per_minute = {"requests": rules.requests_per_minute, "tokens": rules.tokens_per_minute}
        self._clock = clock
        self._buckets: OrderedDict[str, dict[str, _Bucket]] = OrderedDict()

    def admit(self, caller: str, tokens: int) -> tuple[tuple[Reading, ...], ApiError | None]:
        """Charge one request of `tokens` to `caller`.

        Returns the readings of the limits that exist, and the 429 (with Retry-After, where waiting helps) to
        answer with if a limit is reached.
        """
        now = self._clock.monotonic()
        buckets = self._of(caller, now)
        wanted = {"requests": 1, "tokens": tokens}
        refusal = None
        for kind, bucket in buckets.items():
            bucket.refill(now)
            if refusal is None and bucket.level < wanted[kind]:
                refusal = _refusal(kind, bucket, wanted[kind])
        if refusal is None:
            for kind, bucket in buckets.items():
                bucket.level -= wanted[kind]
        readings = tuple(
            Reading(kind, bucket.per_minute, int(bucket.level), bucket.seconds_until(bucket.per_minute))
            for kind, bucket in buckets.items()
        )
        return readings, refusal

    def _of(self, caller: str, now: float) -> dict[str, _Bucket]:
        if caller not in self._buckets:
            self._buckets[caller] = {
                kind: _Bucket(limit, now) for kind, limit in self._per_minute.items() if limit
            }
            if len(self._buckets) > _MAX_CALLERS:
                self._buckets.popitem(last=False)
        return self._buckets[caller]


def _refusal(kind: str, bucket: _Bucket, wanted: int) -> ApiError:
    if wanted > bucket.per_minute:
        message = (
            f"Request too large on {kind} per min: Limit {bucket.per_minute}, Requested {wanted}. (simulated)"
        )
        return ApiError(429, message, kind, None, "rate_limit_exceeded")
    wait = bucket.seconds_until(wanted)
    used = bucket.per_minute - int(bucket.level)
    message = (
        f"Rate limit reached on {kind} per min: Limit {bucket.per_minute}, Used {used}, Requested {wanted}. "
        f"Please try again in {duration(wait)}. (simulated)"
    )
    return ApiError(429, message, kind, None, "rate_limit_exceeded", retry_after_headers(wait))


def limit_headers(
    family: Family, readings: tuple[Reading, ...], wall_seconds: float
) -> list[tuple[str, str]]:
    """Return the headers in which `family` reports its limits; none where there are no limits."""
    headers = []
    for reading in readings:
        match family:
            case Family.OPENAI:
                headers += [
                    (f"x-ratelimit-limit-{reading.kind}", str(reading.limit)),
                    (f"x-ratelimit-remaining-{reading.kind}", str(reading.remaining)),
                    (f"x-ratelimit-reset-{reading.kind}", duration(reading.reset_seconds)),
                ]
            case Family.ANTHROPIC:
                at = datetime.fromtimestamp(wall_seconds + reading.reset_seconds, UTC)
                prefix = f"anthropic-ratelimit-{reading.kind}"
                headers += [
                    (f"{prefix}-limit", str(reading.limit)),
                    (f"{prefix}-remaining", str(reading.remaining)),
                    (f"{prefix}-reset", at.strftime("%Y-%m-%dT%H:%M:%SZ")),
                ]
    return headers


def duration(seconds: float) -> str:
    """Return a duration as OpenAI's headers spell it: `12ms`, `1.5s`, `6m0s`."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    minutes, rest = divmod(round(seconds, 3), 60)
    return f"{int(minutes)}m{rest:g}s" if minutes else f"{rest:g}s"
