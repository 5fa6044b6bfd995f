"""A batch: what it is, how it looks from outside, and by which way it may end.

    validating ──► in_progress ──► finalizing ──► completed
        │   │           │   │
        │   └───────────┼───┴──► expired
        ├──► failed     │
        └───────────────┴──► cancelling ──► cancelled

It owns the record and its times. It refuses to run anything: what is due when is asked of it, what happens
then is done in batch_work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

_VALIDATING_SHARE = 0.1
_FINALIZING_SHARE = 0.1
_NOT_KEPT = ("status", "results", "failures", "spans", "content")


class Status(Enum):
    """Where a batch stands."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Tell whether nothing more happens."""
        return self in (Status.FAILED, Status.COMPLETED, Status.EXPIRED, Status.CANCELLED)


_NEXT: Mapping[Status, tuple[Status, ...]] = {
    Status.VALIDATING: (Status.FAILED, Status.IN_PROGRESS, Status.EXPIRED, Status.CANCELLING),
    Status.IN_PROGRESS: (Status.FINALIZING, Status.EXPIRED, Status.CANCELLING),
    Status.FINALIZING: (Status.COMPLETED,),
    Status.CANCELLING: (Status.CANCELLED,),
}


@dataclass(slots=True)
class Batch:
    """One batch. Times are seconds since the epoch.

    turnaround_seconds  planned from creation to the end
    expires_at          when what has not run is given up
    faults              what was asked of this batch alone, by field of `Faults`
    rule_hits           how many lines each rule has looked at, by the rule's number
    spans               where the lines of `content` begin and end
    results, failures   finished lines of the output and the error file
    """

    id: str
    caller: str
    number: int
    endpoint: str
    input_file_id: str
    window: str
    created_at: float
    turnaround_seconds: float
    cancel_seconds: float
    expires_at: float
    metadata: dict[str, str] | None = None
    output_seconds: int | None = None
    faults: dict[str, Any] = field(default_factory=dict)
    content: bytes = b""
    status: Status = Status.VALIDATING
    stamps: dict[str, int] = field(default_factory=dict)
    cancelled_due: float = 0.0
    model: str | None = None
    errors: list[dict[str, Any]] = field(default_factory=list)
    total: int = 0
    next_line: int = 0
    completed: int = 0
    failed: int = 0
    enqueued_tokens: int = 0
    usage: dict[str, int] = field(default_factory=dict)
    rule_hits: dict[str, int] = field(default_factory=dict)
    spans: list[tuple[int, int]] = field(default_factory=list)
    results: list[bytes] = field(default_factory=list)
    failures: list[bytes] = field(default_factory=list)
    output_file_id: str | None = None
    error_file_id: str | None = None

    @property
    def validated_due(self) -> float:
        """Return when validation ends."""
        return self.created_at + self.turnaround_seconds * _VALIDATING_SHARE

    @property
    def run_due(self) -> float:
        """Return when the last line has run."""
        return self.created_at + self.turnaround_seconds * (1 - _FINALIZING_SHARE)

    @property
    def completed_due(self) -> float:
        """Return when the files are there."""
        return self.created_at + self.turnaround_seconds

    def lines_due(self, now: float) -> int:
        """Return how many lines have run by `now`: they run evenly, in the order of the input."""
        until = min(now, self.expires_at)
        if until >= self.run_due:
            return self.total
        share = (until - self.validated_due) / (self.run_due - self.validated_due)
        return max(0, int(self.total * share + 1e-6))

    def move_to(self, status: Status, now: float) -> None:
        """Change the status and stamp the time. A way that the diagram does not show is a mistake of ours."""
        assert status in _NEXT.get(self.status, ()), f"{self.status} -> {status}"
        self.status = status
        self.stamps[f"{status.value}_at"] = int(now)
        if status.is_final:
            self.content, self.spans, self.results, self.failures = b"", [], [], []
            self.enqueued_tokens = 0

    def as_object(self) -> dict[str, object]:
        """Return OpenAI's batch object."""
        stamp = self.stamps.get
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "model": self.model,
            "errors": {"object": "list", "data": self.errors} if self.errors else None,
            "input_file_id": self.input_file_id,
            "completion_window": self.window,
            "status": self.status.value,
            "output_file_id": self.output_file_id,
            "error_file_id": self.error_file_id,
            "created_at": int(self.created_at),
            "in_progress_at": stamp("in_progress_at"),
            "expires_at": int(self.expires_at),
            "finalizing_at": stamp("finalizing_at"),
            "completed_at": stamp("completed_at"),
            "failed_at": stamp("failed_at"),
            "expired_at": stamp("expired_at"),
            "cancelling_at": stamp("cancelling_at"),
            "cancelled_at": stamp("cancelled_at"),
            "request_counts": {"total": self.total, "completed": self.completed, "failed": self.failed},
            "usage": self._usage_object(),
            "metadata": self.metadata,
        }

    def _usage_object(self) -> dict[str, object]:
        count = {name: self.usage.get(name, 0) for name in ("input", "cached", "output", "reasoning")}
        return {
            "input_tokens": count["input"],
            "input_tokens_details": {"cached_tokens": count["cached"]},
            "output_tokens": count["output"],
            "output_tokens_details": {"reasoning_tokens": count["reasoning"]},
            "total_tokens": count["input"] + count["output"],
        }

    def as_kept(self) -> dict[str, object]:
        """Return what a state file keeps of the record; its bytes and lines are kept apart."""
        kept = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in _NOT_KEPT}
        return {**kept, "status": self.status.value}

    @classmethod
    def from_kept(cls, kept: Mapping[str, Any], content: bytes) -> Batch:
        """Return the record that `as_kept` described."""
        return cls(**{**kept, "status": Status(kept["status"])}, content=content)
