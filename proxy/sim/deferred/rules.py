"""The part of a scenario that is about deferred work: keys, defaults and ranges.

It owns no behaviour. Limits are OpenAI's documented ones where OpenAI documents them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from proxy.sim.reading import setting


@dataclass(frozen=True, slots=True)
class FileRules:
    """Uploads, kept in memory."""

    max_bytes: int = setting(512 << 20, "largest upload; larger ones get 413", low=1)
    max_files: int = setting(10_000, "files of all callers together", low=1)
    total_bytes: int = setting(2 << 30, "bytes of all files together", low=1)
    processing_seconds: float = setting(
        0.0, "how long a new file is `uploaded` before it is `processed`", low=0
    )


@dataclass(frozen=True, slots=True)
class LineRule:
    """What becomes of some lines of batches. The first rule that hits a line wins.

    A line that a rule fails or loses is not run and not billed.
    """

    status: int | None = setting(None, "fail with this status", low=400, high=599)
    code: str | None = setting(
        None, "`code` of the error; without `status` the line fails without a response"
    )
    missing: bool = setting(False, "never run, in neither file")
    duplicate: bool = setting(False, "run once, its result written twice")
    contains: str | None = setting(None, "only lines whose body contains this text")
    share: float = setting(1.0, "share of them that is hit, drawn from seed, body and attempt", low=0, high=1)
    every: int = setting(1, "only each so-many-th such line of a batch", low=1)
    first: int | None = setting(None, "only the first so many attempts at a body", low=0)


@dataclass(frozen=True, slots=True)
class BatchRules:
    """Batches of requests."""

    turnaround_seconds: float = setting(
        5.0, "from creation to the end: a tenth validating, a tenth finalizing", low=0
    )
    cancel_seconds: float = setting(0.2, "how long a batch stays `cancelling`", low=0)
    windows: tuple[str, ...] = field(default=("24h",), metadata={"help": "completion windows on offer"})
    max_lines: int = setting(50_000, "requests in a batch", low=1)
    max_bytes: int = setting(200_000_000, "bytes of an input file", low=1)
    max_embedding_inputs: int = setting(50_000, "inputs of an embeddings batch", low=1)
    enqueued_tokens: int = setting(
        0, "prompt tokens of a caller's unfinished batches, per model; 0 = no limit", low=0
    )
    creations_per_hour: int = setting(2_000, "per caller; 0 = no limit", low=0)
    lines: tuple[LineRule, ...] = field(default=(), metadata={"help": "what becomes of single lines"})


@dataclass(frozen=True, slots=True)
class FlexRules:
    """The flex tier: the batch price for a live call, as long as there is capacity."""

    offered: bool = setting(True, "false: `service_tier: flex` is refused with a 400")
    miss_share: float = setting(0.0, "share of requests without capacity, drawn from the seed", low=0, high=1)
    miss_every: int = setting(0, "each so-many-th flex request finds no capacity; 0 = none", low=0)
    miss_status: int = setting(
        429, "429 `resource_unavailable` as OpenAI has it, 498 `capacity_exceeded` as Groq", low=400, high=599
    )
    slowdown: float = setting(2.0, "how many times longer than a standard call", low=1)


@dataclass(frozen=True, slots=True)
class BackgroundRules:
    """Responses in the background."""

    time_factor: float = setting(
        0.001, "a response of the 2h or 8h window is queued for this share of the window", low=0
    )
    soonest_seconds: float = setting(0.0, "how long one of the `soonest` window is queued", low=0)
    unstored_seconds: float = setting(600.0, "how long a response with `store: false` can be polled", low=0)
