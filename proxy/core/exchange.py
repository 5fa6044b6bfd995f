"""One request and everything that is learnt about it, from the first byte read to the record written.

Each field has one writer, named in its comment. Moments are monotonic seconds, 0.0 until they happen.
"""

from __future__ import annotations

from proxy.core.decision import Deferred, LaneDecision, Pooled, StepReport, UrgencyDecision
from proxy.core.usage import Usage


class Exchange:
    """What headers, access log, metrics and traces are made from."""

    __slots__ = (
        "batch_line",
        "connect_seconds",
        "decided_at",
        "deferred",
        "dialect",
        "earlier_seconds",
        "ended_at",
        "error",
        "finish_reason",
        "first_byte_at",
        "first_token_at",
        "held_seconds",
        "is_stream",
        "lane",
        "method",
        "model",
        "overhead_seconds",
        "path",
        "policy_version",
        "pooled",
        "queue_seconds",
        "read_at",
        "request_bytes",
        "request_id",
        "response_bytes",
        "retries",
        "route",
        "sent_at",
        "started_at",
        "status",
        "steps",
        "taken_back",
        "tokens_after",
        "tokens_before",
        "traceparent",
        "upstream",
        "upstream_status",
        "urgency",
        "usage",
        "was_empty",
    )

    def __init__(self, request_id: str, started_at: float) -> None:
        # edge.handler
        self.request_id = request_id
        self.started_at = started_at
        self.read_at = 0.0
        self.ended_at = 0.0
        self.method = ""
        self.path = ""
        self.traceparent = ""
        self.request_bytes = 0
        self.error = ""
        # pipeline; lanes.take_back corrects model, steps and tokens when a rewrite is taken back
        self.route = ""
        self.policy_version = ""
        self.dialect = ""
        self.model = ""
        self.is_stream = False
        self.steps: tuple[StepReport, ...] = ()
        self.urgency: UrgencyDecision | None = None
        self.lane: LaneDecision | None = None
        self.tokens_before: int | None = None
        self.tokens_after: int | None = None
        self.decided_at = 0.0
        # lanes
        self.upstream = ""
        self.connect_seconds = 0.0
        self.queue_seconds = 0.0
        self.pooled: Pooled | None = None
        self.deferred: Deferred | None = None
        self.sent_at = 0.0
        self.earlier_seconds = 0.0  # what attempts before the last one took at the upstream
        self.retries = 0
        self.taken_back: tuple[str, ...] = ()
        # edge.relay
        self.upstream_status = 0
        self.status = 0
        self.first_byte_at = 0.0
        self.first_token_at = 0.0
        self.held_seconds = 0.0
        self.overhead_seconds = 0.0
        self.usage: Usage | None = None
        self.finish_reason = ""
        self.was_empty = False
        self.response_bytes = 0
        # batch_server.line_call: the batch, and the number of its line from 1
        self.batch_line: tuple[str, int] | None = None

    @property
    def steps_seconds(self) -> float:
        """Time from the complete request to the decision."""
        return max(0.0, self.decided_at - self.read_at) if self.decided_at else 0.0

    @property
    def first_byte_seconds(self) -> float | None:
        """Time from the request sent to the first byte of the answer."""
        return self.first_byte_at - self.sent_at if self.first_byte_at and self.sent_at else None

    @property
    def ttft_seconds(self) -> float | None:
        """Time from the request sent to the first non-empty content."""
        return self.first_token_at - self.sent_at if self.first_token_at and self.sent_at else None

    @property
    def total_seconds(self) -> float:
        """Time from the first byte of the request to the end of the answer."""
        return max(0.0, self.ended_at - self.started_at)

    @property
    def tpot_seconds(self) -> float | None:
        """Time per output token after the first, once the answer and its usage are complete."""
        tokens = self.usage.output_tokens if self.usage is not None else None
        if not self.sent_at or not self.first_token_at or not self.ended_at or tokens is None or tokens < 2:
            return None
        return (self.ended_at - self.first_token_at) / (tokens - 1)

    def measure_overhead(self, now: float) -> float:
        """Set and return Weir's own time up to `now`: neither waiting for the upstream nor a deliberate wait.

        Before the request left it is everything since the request was complete, less connecting, queueing and
        earlier attempts; afterwards what passed between reading an answer's bytes and `now`, less holding the
        head.
        """
        begin = self.read_at or self.started_at
        deliberate_seconds = self.queue_seconds + self.connect_seconds + self.earlier_seconds
        if not self.sent_at:
            overhead_seconds = now - begin - deliberate_seconds
        else:
            overhead_seconds = self.sent_at - begin - deliberate_seconds
            if self.first_byte_at:
                overhead_seconds += now - self.first_byte_at - self.held_seconds
        self.overhead_seconds = max(0.0, overhead_seconds)
        return self.overhead_seconds
