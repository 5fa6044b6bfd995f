"""What a validated policy set is, once YAML is behind us: frozen values, ready for the path of a request.

Reading files, positions and error messages belong to `proxy.policy.load`; this module only says what results.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from proxy.core.decision import Strategy, Urgency
from proxy.core.upstream import Provider, Secret, Timeouts, Upstream, UpstreamTls
from proxy.core.webhook import Webhook
from proxy.steps.step import Step

MIB = 1024 * 1024

__all__ = [
    "BatchPolicy",
    "BoundStep",
    "CoalescePolicy",
    "HeaderLevel",
    "HeldStreams",
    "KeepAlive",
    "Match",
    "OnDisconnect",
    "OnError",
    "OnOversize",
    "OnReject",
    "PolicySet",
    "Provider",
    "Route",
    "Secret",
    "Sharing",
    "Timeouts",
    "TokenRange",
    "Upstream",
    "UpstreamTls",
    "UrgencyPolicy",
    "UrgencyWhen",
    "UsageMode",
    "Webhook",
]


class HeaderLevel(Enum):
    """How much Weir says in response headers."""

    OFF = "off"
    MINIMAL = "minimal"
    FULL = "full"


class OnError(Enum):
    """What happens to a request one of whose steps failed."""

    PASS = "pass"
    REJECT = "reject"


class OnReject(Enum):
    """What happens when an upstream answers 400 to a request that steps changed, and names none of theirs."""

    RESEND = "resend"
    PASS = "pass"


class OnOversize(Enum):
    """What happens to a body larger than the route reads; `AUTO` refuses where a step enforces a limit."""

    AUTO = "auto"
    REJECT = "reject"
    PASS = "pass"


class UsageMode(Enum):
    """Whether Weir asks a stream for its token usage on its own behalf."""

    ASK = "ask"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class TokenRange:
    """Inclusive bounds on the tokens of a request's prompt; `None` is open."""

    min: int | None = None
    max: int | None = None


@dataclass(frozen=True, slots=True)
class Match:
    """The conditions of a route; all that are given must hold. Empty tuples and `None` are 'not given'.

    Patterns are exact values or `*` globs; a tuple means any of them. Header names are lower-case.
    `path` patterns are matched against the request's path without its query.
    """

    path: tuple[str, ...] = ()
    method: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    headers: tuple[tuple[str, tuple[str, ...]], ...] = ()
    tools: bool | None = None
    stream: bool | None = None
    tokens: TokenRange | None = None

    @property
    def needs_body(self) -> bool:
        """Whether the body must be read to tell if this route matches."""
        return (
            bool(self.model) or self.tools is not None or self.stream is not None or self.tokens is not None
        )


@dataclass(frozen=True, slots=True)
class BoundStep:
    """A step with the configuration that a route gives it."""

    step: Step
    config: Any


@dataclass(frozen=True, slots=True)
class UrgencyWhen:
    """One rule under `urgency.rules`: the first whose match holds decides."""

    match: Match
    urgency: Urgency


@dataclass(frozen=True, slots=True)
class UrgencyPolicy:
    """How urgent a route's requests are; `deadline_seconds` is how long a deferrable answer may take."""

    default: Urgency = Urgency.INTERACTIVE
    deadline_seconds: float | None = None
    rules: tuple[UrgencyWhen, ...] = ()


class Sharing(Enum):
    """Which identical requests in flight share one upstream call."""

    DETERMINISTIC = "deterministic"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class CoalescePolicy:
    """The `coalesce` section: what may be carried together, and within which bounds.

    `max_items`, `max_tokens` and `max_bytes` bound one upstream call; a request that is larger alone passes
    unchanged. `max_in_flight` bounds paced calls per key, 0 is no limit. `split_on` names metadata fields
    (`user`, `metadata`, ...) whose values keep requests apart that are otherwise the same.
    """

    window: str = "auto"
    max_wait_seconds: float = 0.02
    max_items: int = 256
    max_tokens: int = 300_000
    max_bytes: int = 8 * MIB
    strategies: tuple[Strategy, ...] = tuple(Strategy)
    share: Sharing = Sharing.DETERMINISTIC
    split_on: tuple[str, ...] = ()
    warm_max_wait_seconds: float = 2.0
    max_in_flight: int = 0


class KeepAlive(Enum):
    """What a held caller without a stream gets meanwhile: nothing, or white space before its JSON."""

    OFF = "off"
    WHITESPACE = "whitespace"


class OnDisconnect(Enum):
    """What becomes of a held job whose caller has left; what was promised (a ticket) goes on in any case."""

    CANCEL = "cancel"
    KEEP = "keep"


class HeldStreams(Enum):
    """What becomes of deferrable streams: held, and told at the end, or not deferred."""

    HOLD = "hold"
    DIRECT = "direct"


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """The `batch` section: provider tiers, when a batch is sent, how callers are held.

    A batch of fewer than `min_jobs` is not sent: its jobs go another way. `webhook` names the one that hears
    of the ends of promised answers, empty for none.
    """

    upstream_tiers: tuple[str, ...] = ("batch",)
    flush_jobs: int = 500
    flush_after_seconds: float = 60.0
    min_jobs: int = 1
    keep_alive: KeepAlive = KeepAlive.OFF
    on_disconnect: OnDisconnect = OnDisconnect.CANCEL
    streams: HeldStreams = HeldStreams.HOLD
    webhook: str = ""


@dataclass(frozen=True, slots=True)
class Route:
    """What happens to the requests that match. Durations are seconds, sizes bytes, 0 is no limit.

    `allow_caller` lists the lower-case control headers that a caller may use on this route.
    `heartbeat_seconds` writes `: keep-alive` comments between events while a stream is silent.
    """

    name: str
    match: Match
    steps: tuple[BoundStep, ...] = ()
    upstream: str | None = None
    urgency: UrgencyPolicy = UrgencyPolicy()
    headers: HeaderLevel = HeaderLevel.FULL
    on_error: OnError = OnError.PASS
    on_reject: OnReject = OnReject.RESEND
    usage: UsageMode = UsageMode.ASK
    max_body_bytes: int = 32 * MIB
    max_json_depth: int = 512
    on_oversize: OnOversize = OnOversize.AUTO
    commit_after_seconds: float = 5.0
    timing_comment: bool = False
    heartbeat_seconds: float | None = None
    allow_caller: frozenset[str] = frozenset()
    caller_patience_seconds: float = 60.0
    max_concurrent: int = 0
    coalesce: CoalescePolicy | None = None
    batch: BatchPolicy | None = None
    enforces: bool = field(init=False, default=False)
    """Whether any step limits what callers may send."""
    refuses_unread: bool = field(init=False, default=False)
    """Whether a body that is too large to be read is refused rather than passed unread."""
    counts_tokens: bool = field(init=False, default=False)
    """Whether any step may count tokens."""
    may_count: bool = field(init=False, default=False)
    """Whether deciding may count tokens, which takes long for long bodies."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "enforces", any(bound.step.enforces(bound.config) for bound in self.steps))
        is_refused = self.on_oversize is OnOversize.REJECT
        is_refused |= self.on_oversize is OnOversize.AUTO and self.enforces
        object.__setattr__(self, "refuses_unread", is_refused)
        object.__setattr__(self, "counts_tokens", any(bound.step.counts_tokens for bound in self.steps))
        object.__setattr__(self, "may_count", self.counts_tokens or self.match.tokens is not None)


@dataclass(frozen=True, slots=True)
class PolicySet:
    """All loaded policies. `version` is a short content hash; `models` are the literal names mentioned."""

    version: str
    upstreams: dict[str, Upstream]
    default_upstream: str
    routes: tuple[Route, ...]
    default_headers: HeaderLevel = HeaderLevel.FULL
    models: frozenset[str] = field(default=frozenset())
    webhooks: dict[str, Webhook] = field(default_factory=dict)

    @property
    def counts_tokens(self) -> bool:
        """Whether requests may be counted: by steps, for a route, for a shared call or for an explanation."""
        return any(
            route.may_count or route.coalesce is not None or "x-weir-explain" in route.allow_caller
            for route in self.routes
        )
