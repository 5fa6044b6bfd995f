"""A scenario: all that decides how the simulated provider behaves, and how it is read from a file.

It owns the keys, their defaults and their ranges; docs/simulator.md lists them. Unknown keys are errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from proxy.sim.deferred.rules import BackgroundRules, BatchRules, FileRules, FlexRules, LineRule
from proxy.sim.reading import ScenarioError, load_mapping, read_dataclass, setting

__all__ = [
    "BackgroundRules",
    "BatchRules",
    "CacheRules",
    "FaultMatch",
    "FaultRule",
    "Faults",
    "FileRules",
    "FlexRules",
    "LimitRules",
    "LineRule",
    "Scenario",
    "ScenarioError",
    "SlotRules",
    "Timing",
    "load_scenario",
]


@dataclass(frozen=True, slots=True)
class Timing:
    """How long an answer takes and how long it is."""

    base_ms: float = setting(40.0, "time before any work on a request", low=0)
    prefill_ms_per_token: float = setting(0.15, "reading time per uncached input token", low=0)
    decode_ms_per_token: float = setting(15.0, "writing time per output token", low=0)
    output_tokens: int = setting(40, "length of an answer whose length nothing else decides", low=1)
    output_spread: float = setting(
        0.25, "how far single answers differ from that length, as a share", low=0, high=1
    )
    reasoning_tokens: int = setting(64, "hidden tokens of a reasoning model at medium effort", low=0)


@dataclass(frozen=True, slots=True)
class CacheRules:
    """The prompt cache."""

    enabled: bool = setting(True, "whether there is one")
    min_tokens: int = setting(1024, "shortest prefix that is kept", low=1)
    granularity_tokens: int = setting(128, "a cached prefix ends at multiples of this", low=1)
    lifetime_seconds: float = setting(300.0, "how long an unused prefix is kept", low=0)


@dataclass(frozen=True, slots=True)
class SlotRules:
    """How many requests are worked on at once."""

    concurrent: int = setting(0, "requests in work at once; 0 = no limit", low=0)
    max_queued: int | None = setting(
        None, "requests that may wait for a slot, more get 503; absent = all", low=0
    )


@dataclass(frozen=True, slots=True)
class LimitRules:
    """Rate limits per caller, refilled continuously."""

    requests_per_minute: int = setting(0, "0 = no limit", low=0)
    tokens_per_minute: int = setting(0, "input plus requested output; 0 = no limit", low=0)


@dataclass(frozen=True, slots=True)
class Faults:
    """What is to go otherwise than it should, or at another pace. None leaves a thing as it is.

    Every field is an `x-sim-…` request header too, with dashes for underscores.
    """

    status: int | None = setting(None, "answer with this status and the API's error body", low=400, high=599)
    error_code: str | None = setting(None, "`code` of that error")
    error_html: bool | None = setting(None, "that error as a web page, as a gateway in between has it")
    retry_after: float | None = setting(
        None, "seconds in Retry-After and retry-after-ms of that error", low=0
    )
    head_ms: float | None = setting(
        None, "when head and opening events leave; absent = with the content", low=0
    )
    first_byte_ms: float | None = setting(
        None, "when the first content leaves, instead of base + prefill", low=0
    )
    token_ms: float | None = setting(None, "time per output token, instead of the scenario's", low=0)
    tokens: int | None = setting(None, "number of output tokens", low=0)
    reasoning: int | None = setting(
        None, "number of reasoning tokens; chat then shows `reasoning_content`", low=0
    )
    content: str | None = setting(None, "the answer's text, percent-encoding decoded in a header")
    tool_call: int | None = setting(None, "answer with this many tool calls, if the request has tools", low=0)
    cut_after: int | None = setting(
        None, "close the connection after so many events; 0 = before the head", low=0
    )
    end_without_done: bool | None = setting(None, "leave out the event that ends the stream")
    error_event_after: int | None = setting(None, "an error event after so many events, then the end", low=0)
    stall_after: int | None = setting(None, "nothing more after so many events, connection open", low=0)
    comment_every: int | None = setting(None, "an SSE comment after every so many events", low=1)
    cut_before: bool | None = setting(None, "close the connection before anything is done")
    stall_before: bool | None = setting(None, "never answer, and do nothing")
    status_after: int | None = setting(
        None, "do (and bill) what was asked, then answer with this status", low=400, high=599
    )
    flex_miss: bool | None = setting(None, "whether a flex request finds no capacity")
    background_seconds: float | None = setting(
        None, "how long a background response stays queued, instead of its window's share", low=0
    )
    background_fail: bool | None = setting(None, "a background response ends as failed")
    batch_turnaround_seconds: float | None = setting(
        None, "seconds from a batch's creation to its end, instead of the scenario's", low=0
    )
    batch_expire_seconds: float | None = setting(
        None, "seconds from a batch's creation to its expiry, instead of its window", low=0
    )
    batch_cancel_seconds: float | None = setting(
        None, "how long a batch stays `cancelling`, instead of the scenario's", low=0
    )
    batch_refuse: str | None = setting(None, "validation fails with this error code, nothing runs")
    batch_fail_share: float | None = setting(None, "share of lines that fail", low=0, high=1)
    batch_fail_status: int | None = setting(None, "their status (default 500)", low=400, high=599)
    batch_fail_code: str | None = setting(None, "`code` of their error")
    batch_missing_share: float | None = setting(
        None, "share of lines that are never run and are in neither file", low=0, high=1
    )
    batch_duplicate_share: float | None = setting(
        None, "share of lines whose result is written twice", low=0, high=1
    )


@dataclass(frozen=True, slots=True)
class FaultMatch:
    """Which requests a fault rule is for; all given conditions must hold, `*` stands for anything."""

    path: str | None = setting(None, "request path")
    model: str | None = setting(None, "`model` of the body")
    headers: Mapping[str, str] = field(default_factory=dict, metadata={"help": "header values by name"})
    method: str | None = setting(None, "request method")


@dataclass(frozen=True, slots=True)
class FaultRule:
    """A fault, whom it hits and how often. The first rule that hits wins; `x-sim-…` headers override it."""

    do: Faults
    match: FaultMatch = field(default=FaultMatch(), metadata={"help": "absent = every request"})
    every: int = setting(1, "only each so-many-th matching request", low=1)
    first: int | None = setting(None, "only among the first so many matching requests", low=0)
    chance: float = setting(1.0, "share of those that are hit, drawn from the seed", low=0, high=1)
    skip: int = setting(0, "so many matching requests are let pass before any is counted", low=0)


DEFAULT_MODELS = (
    "gpt-4o",
    "gpt-4o-mini",
    "gpt-4.1-mini",
    "gpt-5-mini",
    "o4-mini",
    "gpt-3.5-turbo-instruct",
    "text-embedding-3-small",
    "text-embedding-3-large",
    "omni-moderation-latest",
    "claude-sonnet-5-5",
    "claude-haiku-4-5",
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """The whole behaviour of a simulated provider."""

    seed: int = setting(1, "equal seeds and equal requests give equal answers")
    timing: Timing = field(default=Timing(), metadata={"help": "speed and length"})
    cache: CacheRules = field(default=CacheRules(), metadata={"help": "prompt cache"})
    slots: SlotRules = field(default=SlotRules(), metadata={"help": "concurrency"})
    limits: LimitRules = field(default=LimitRules(), metadata={"help": "rate limits per caller"})
    files: FileRules = field(default=FileRules(), metadata={"help": "uploads"})
    batches: BatchRules = field(default=BatchRules(), metadata={"help": "batches of requests"})
    flex: FlexRules = field(default=FlexRules(), metadata={"help": "the flex tier"})
    background: BackgroundRules = field(
        default=BackgroundRules(), metadata={"help": "responses in the background"}
    )
    context_tokens: int = setting(
        0, "longest input plus requested output that is accepted; 0 = no limit", low=0
    )
    api_keys: tuple[str, ...] = field(default=(), metadata={"help": "accepted keys; none = any, or no key"})
    models: tuple[str, ...] = field(default=DEFAULT_MODELS, metadata={"help": "what /v1/models lists"})
    only_listed_models: bool = setting(False, "whether other models are 404")
    faults: tuple[FaultRule, ...] = field(default=(), metadata={"help": "faults, the first that hits"})


def load_scenario(path: Path | str) -> Scenario:
    """Return the scenario in a YAML or JSON file.

    Raises ScenarioError with file, line, key path and problem, and OSError if the file cannot be read.
    """
    value, place = load_mapping(Path(path).read_bytes(), str(path))
    return read_dataclass(Scenario, value, place)
