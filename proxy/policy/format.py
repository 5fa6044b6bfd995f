"""Owns the format of a policy file: every key, its kind and its meaning, in tables that code reads.

Reading, "did you mean", the JSON Schema and the docs test follow from these tables. Defaults are not repeated
here: they stand in the dataclasses of `proxy.policy.model`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from proxy.core.decision import Strategy, Urgency
from proxy.policy import values
from proxy.policy.batch_api import BATCH_API
from proxy.policy.findings import Mark
from proxy.policy.kinds import (
    DURATION,
    DURATION_OR_OFF,
    SIZE,
    SIZE_OR_OFF,
    WAIT,
    Choice,
    Flag,
    Kind,
    Place,
    Text,
    Whole,
)
from proxy.policy.model import (
    BatchPolicy,
    CoalescePolicy,
    HeaderLevel,
    HeldStreams,
    KeepAlive,
    Match,
    OnDisconnect,
    OnError,
    OnOversize,
    OnReject,
    Provider,
    Secret,
    Sharing,
    Timeouts,
    TokenRange,
    UpstreamTls,
    UrgencyWhen,
    UsageMode,
)
from proxy.policy.nodes import Node
from proxy.policy.records import Key, ListOf, MapOf, Record
from proxy.policy.step_entry import StepEntry
from proxy.policy.webhooks import WEBHOOK, webhook_name
from proxy.steps.step import Step

T = TypeVar("T")

CONTROL_HEADERS = ("x-weir-urgency", "x-weir-deadline", "x-weir-explain", "x-weir-webhook", "prefer")
"""The request headers by which a caller may steer Weir where a route allows it."""

METADATA_FIELDS = ("metadata", "prompt_cache_key", "safety_identifier", "store", "user")
"""Fields of a body that say who asks or what is kept, not what the answer is."""

BATCH_TIERS = ("direct", "flex", "background", "batch")


@dataclass(frozen=True, slots=True)
class Located(Generic[T]):
    """A value and where it was written, for what can only be judged once everything is read."""

    value: T
    mark: Mark


@dataclass(frozen=True, slots=True)
class _WithMark(Generic[T]):
    """A kind whose values keep their position."""

    inner: Kind[T]

    def read(self, node: Node, place: Place) -> Located[T]:
        return Located(self.inner.read(node, place), node.mark)

    def schema(self) -> dict[str, Any]:
        return self.inner.schema()


@dataclass(frozen=True, slots=True)
class _Version:
    """The version of the format, of which there is one."""

    def read(self, node: Node, place: Place) -> int:
        if Whole().read(node, place) != 1:
            raise place.refused(node, "only version 1 exists")
        return 1

    def schema(self) -> dict[str, Any]:
        return Whole(1, 1).schema()


_PATTERNS = ListOf(Text(), or_one=True, may_be_empty=False)

TOKENS = Record(
    {
        "min": Key(Whole(least=0), "Fewest prompt tokens, inclusive."),
        "max": Key(Whole(least=0), "Most prompt tokens, inclusive."),
    },
    lambda given: _token_range(**given),
)


def _token_range(min: int | None = None, max: int | None = None) -> TokenRange:
    if min is None and max is None:
        raise ValueError("min or max is wanted")
    if min is not None and max is not None and min > max:
        raise ValueError(f"min {min} is above max {max}")
    return TokenRange(min, max)


def _patterns(check: Any) -> Kind[tuple[str, ...]]:
    return ListOf(Text(check), or_one=True, may_be_empty=False)


MATCH = Record(
    {
        "path": Key(_patterns(values.path_pattern), "Path without its query: exact, `*` glob, or a list."),
        "method": Key(_patterns(values.method_pattern), "Request method, in capitals."),
        "model": Key(_PATTERNS, "The body's `model`."),
        "headers": Key(
            MapOf(ListOf(Text(secret=True), or_one=True, may_be_empty=False), values.header_name),
            "Request headers by name; the value `*` asks for presence.",
        ),
        "tools": Key(Flag(), "Whether the request offers tools."),
        "stream": Key(Flag(), "Whether the request asks for a stream."),
        "tokens": Key(TOKENS, "Size of the prompt; counted only if nothing else has decided."),
    },
    lambda given: Match(**given | {"headers": tuple(given.get("headers", {}).items())}),
    "Which requests; every condition that is given must hold.",
    lambda text: f"write {{path: {text}}}" if text.startswith("/") else "",
)

URGENCY_RULE = Record(
    {
        "match": Key(MATCH, "Which of the route's requests.", required=True),
        "urgency": Key(Choice.of_enum(Urgency), "Their urgency.", required=True),
    },
    lambda given: UrgencyWhen(**given),
)

URGENCY: Record[dict[str, Any]] = Record(
    {
        "default": Key(Choice.of_enum(Urgency), "Urgency when nothing else decides."),
        "deadline": Key(DURATION, "How long a deferrable answer may take."),
        "rules": Key(ListOf(URGENCY_RULE), "The first rule whose match holds decides."),
    },
    lambda given: _renamed(given, {"deadline": "deadline_seconds"}),
    "How soon answers are needed.",
    lambda text: f"write {{default: {text}}}",
)

COALESCE = Record(
    {
        "window": Key(Choice.of(("auto",)), "How the pool decides when to leave."),
        "max_wait": Key(WAIT, "No request waits longer than this."),
        "max_items": Key(Whole(least=1), "Most inputs in one upstream call."),
        "max_tokens": Key(Whole(least=1), "Most input tokens in one upstream call."),
        "max_bytes": Key(SIZE, "Largest body of one upstream call."),
        "strategies": Key(ListOf(Choice.of_enum(Strategy)), "How requests may be carried together."),
        "share": Key(Choice.of_enum(Sharing), "Which identical requests share one call."),
        "split_on": Key(
            ListOf(Choice.of(METADATA_FIELDS)),
            "Metadata fields that keep otherwise identical requests apart.",
        ),
        "warm_max_wait": Key(DURATION, "Longest wait for the request that fills the prompt cache."),
        "max_in_flight": Key(Whole(least=0), "Most paced calls at once per key; 0 is no limit."),
    },
    lambda given: CoalescePolicy(
        **_renamed(
            given,
            {"max_wait": "max_wait_seconds", "warm_max_wait": "warm_max_wait_seconds"},
        )
    ),
    "Pool requests that arrive together.",
)

FLUSH: Record[dict[str, Any]] = Record(
    {
        "jobs": Key(Whole(least=1), "A batch is sent when it has this many jobs."),
        "after": Key(DURATION, "A batch is sent this long after its first job."),
    },
    lambda given: _renamed(given, {"jobs": "flush_jobs", "after": "flush_after_seconds"}),
)

BATCH = Record(
    {
        "upstream_tiers": Key(
            ListOf(Choice.of(BATCH_TIERS), may_be_empty=False), "Provider tiers that may carry deferred work."
        ),
        "flush": Key(FLUSH, "When a batch is sent."),
        "min_jobs": Key(Whole(least=1), "Fewer jobs do not make a batch: they go another way."),
        "keep_alive": Key(Choice.of_enum(KeepAlive), "What held callers without a stream get meanwhile."),
        "on_disconnect": Key(Choice.of_enum(OnDisconnect), "What becomes of a held job whose caller left."),
        "streams": Key(Choice.of_enum(HeldStreams), "Whether deferrable streams are held."),
        "webhook": Key(Text(webhook_name), "Name of the webhook that hears of the ends of promised answers."),
    },
    lambda given: BatchPolicy(
        **{key: value for key, value in given.items() if key != "flush"} | given.get("flush", {})
    ),
    "Allow deferrable requests to become jobs.",
)

ROUTE_SETTINGS: Mapping[str, tuple[str, Key]] = {
    "headers": ("headers", Key(Choice.of_enum(HeaderLevel), "How much Weir says in response headers.")),
    "on_error": ("on_error", Key(Choice.of_enum(OnError), "What a failing step does to the request.")),
    "on_reject": (
        "on_reject",
        Key(Choice.of_enum(OnReject), "What a 400 to a changed request leads to, if it names no change."),
    ),
    "usage": ("usage", Key(Choice.of_enum(UsageMode), "Whether streams are asked for their token usage.")),
    "max_body": ("max_body_bytes", Key(SIZE_OR_OFF, "Largest body that is read.")),
    "max_json_depth": ("max_json_depth", Key(Whole(least=1), "Deepest nesting of a body that is read.")),
    "on_oversize": ("on_oversize", Key(Choice.of_enum(OnOversize), "What happens to larger bodies.")),
    "commit_after": ("commit_after_seconds", Key(DURATION, "Longest that a stream's head is held.")),
    "timing_comment": ("timing_comment", Key(Flag(), "Add a last SSE comment with the end figures.")),
    "heartbeat": (
        "heartbeat_seconds",
        Key(DURATION_OR_OFF, "Silence after which a keep-alive comment is sent."),
    ),
    "allow_caller": (
        "allow_caller",
        Key(ListOf(Choice.of(CONTROL_HEADERS)), "Control headers that callers may use."),
    ),
    "caller_patience": ("caller_patience_seconds", Key(DURATION, "How long callers wait who do not say it.")),
    "max_concurrent": ("max_concurrent", Key(Whole(least=0), "Most requests in flight; 0 is no limit.")),
}
"""Key of a route or of `defaults` -> (field of `Route`, description)."""

_UPSTREAM_NAME = Key(_WithMark(Text(values.label)), "Name of the upstream that gets the requests.")

DEFAULTS: Record[dict[str, Any]] = Record(
    {"upstream": _UPSTREAM_NAME} | {name: key for name, (_, key) in ROUTE_SETTINGS.items()},
    lambda given: _renamed(given, {name: field for name, (field, _) in ROUTE_SETTINGS.items()}),
    "Settings of every route that does not have its own.",
)


def route_record(steps: Sequence[Step]) -> Record[dict[str, Any]]:
    """Return the record of one route: fields of `Route`, where `urgency` and `upstream` are still raw."""
    keys = {
        "name": Key(Text(values.label), "Name of the route in logs, metrics and headers.", required=True),
        "match": Key(MATCH, "Which requests; `{}` is all.", required=True),
        "steps": Key(ListOf(StepEntry(steps)), "Rewrites of the request, in order."),
        "upstream": _UPSTREAM_NAME,
        "urgency": Key(URGENCY, URGENCY.help),
        "coalesce": Key(COALESCE, COALESCE.help),
        "batch": Key(BATCH, BATCH.help),
    }
    return replace(DEFAULTS, keys=keys | {name: key for name, (_, key) in ROUTE_SETTINGS.items()}, help="")


TIMEOUTS = Record(
    {
        "connect": Key(DURATION_OR_OFF, "Until the connection stands, TLS included."),
        "first_byte": Key(DURATION_OR_OFF, "From the request's end to the answer's first byte."),
        "idle": Key(DURATION_OR_OFF, "Between two reads of an answer."),
        "total": Key(DURATION_OR_OFF, "Over the whole exchange."),
    },
    lambda given: Timeouts(**given),
)


def _tls(given: dict[str, Any]) -> UpstreamTls:
    if "client_key" in given and "client_certificate" not in given:
        raise ValueError("client_key is given without client_certificate")
    return UpstreamTls(**given)


TLS = Record(
    {
        "ca": Key(Text(values.absolute_path), "File of CA certificates to trust instead of the system's."),
        "client_certificate": Key(Text(values.absolute_path), "Client certificate file, PEM."),
        "client_key": Key(Text(values.absolute_path), "Its key, unless the certificate file holds it."),
        "server_name": Key(Text(), "Name to ask for and verify instead of the URL's host."),
        "verify": Key(Flag(), "Whether the server's certificate is verified."),
    },
    _tls,
)

RETRY: Record[dict[str, Any]] = Record(
    {
        "statuses": Key(ListOf(Whole(400, 599), may_be_empty=False), "Statuses that may be retried."),
        "attempts": Key(Whole(0, 10), "Most retries of one request."),
    },
    lambda given: {"retry_statuses": given.get("statuses", (429, 503)), "retries": given.get("attempts", 2)},
)

UPSTREAM: Record[dict[str, Any]] = Record(
    {
        "base_url": Key(
            Text(values.base_url, odd=values.odd_base_url),
            "What `/v1` of the caller's path stands for.",
            required=True,
        ),
        "api_key": Key(Text(values.credential, secret=True), "Sent instead of the caller's credentials."),
        "provider": Key(Choice.of_enum(Provider), "Who runs it: credential header and API features."),
        "timeouts": Key(TIMEOUTS, "Limits on waiting."),
        "max_connections": Key(Whole(least=0), "Most connections at once; 0 is no limit."),
        "tls": Key(TLS, "TLS beyond the system's trust store."),
        "unix_socket": Key(Text(values.absolute_path), "Socket to connect to instead of the URL's host."),
        "proxy": Key(
            Text(values.outbound_proxy, secret=True, words=("off",)), "`env`, `off`, or an HTTP proxy's URL."
        ),
        "retry": Key(RETRY, "Retries before anything was sent to the caller."),
        "batch_api": Key(_WithMark(BATCH_API), BATCH_API.help),
    },
    lambda given: (
        {key: value for key, value in given.items() if key != "retry"}
        | ({"api_key": Secret(given["api_key"])} if "api_key" in given else {})
        | given.get("retry", {})
    ),
)


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """One file, read but not yet combined with the others."""

    upstreams: dict[str, Located[dict[str, Any]]]
    defaults: Located[dict[str, Any]] | None
    routes: tuple[Located[dict[str, Any]], ...]
    webhooks: dict[str, Located[dict[str, Any]]]


def file_record(steps: Sequence[Step]) -> Record[PolicyFile]:
    """Return the record of a whole policy file, given the steps that exist."""
    return Record(
        {
            "version": Key(_Version(), "Version of this format: 1.", required=True),
            "upstreams": Key(
                MapOf(_WithMark(UPSTREAM), values.label), "The APIs that requests go to, by name."
            ),
            "defaults": Key(_WithMark(DEFAULTS), DEFAULTS.help),
            "routes": Key(ListOf(_WithMark(route_record(steps))), "The first that matches wins."),
            "webhooks": Key(
                MapOf(_WithMark(WEBHOOK), webhook_name), "The addresses that hear of what ended, by name."
            ),
        },
        lambda given: PolicyFile(
            given.get("upstreams", {}),
            given.get("defaults"),
            given.get("routes", ()),
            given.get("webhooks", {}),
        ),
    )


def _renamed(given: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in given.items()}
