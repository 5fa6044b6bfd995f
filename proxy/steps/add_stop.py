"""Add stop sequences to the caller's own, which stay first, as they are written, and all of them.

Sequences are exact text: nothing is trimmed or escaped. They go nowhere where an API, a model or a structured
answer would break on them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import orjson

from proxy.core.decision import StepStatus
from proxy.core.document import Document
from proxy.core.globs import fits
from proxy.core.json_spans import array_spans
from proxy.core.json_values import decode
from proxy.dialects import DIALECTS
from proxy.dialects.structured_output import STRUCTURED_FIELDS, wants_structured
from proxy.steps.step import Outcome, Step, StepContext, skipped, unchanged


@dataclass(frozen=True, slots=True)
class Config:
    """Which sequences to add, and where not to."""

    sequences: tuple[str, ...] = field(
        metadata={"help": "Stop sequences, exact text, the most important first."}
    )
    limit: int | None = field(
        default=None,
        metadata={"help": "Most sequences that the upstream takes; the API's own limit if absent."},
    )
    exclude_models: tuple[str, ...] = field(
        default=(), metadata={"help": "Models that refuse stop sequences, exact names or * patterns."}
    )
    for_structured: bool = field(
        default=False, metadata={"help": "Add them also to requests with tools or a JSON format."}
    )

    def __post_init__(self) -> None:
        if not self.sequences:
            raise ValueError("sequences must name at least one")
        if "" in self.sequences:
            raise ValueError("sequences must not contain an empty one: it would end every answer at once")
        if len(set(self.sequences)) < len(self.sequences):
            raise ValueError("sequences must differ from each other")
        for sequence in self.sequences:
            try:
                sequence.encode()
            except UnicodeEncodeError:
                raise ValueError("sequences must be Unicode text without lone surrogates") from None
        if self.limit is not None and self.limit < 1:
            raise ValueError("limit must be at least 1")


def apply(document: Document, config: Config, context: StepContext) -> Outcome:
    """Merge the sequences up to the limit; what finds no room is reported as `left_out`."""
    dialect = context.dialect
    name = dialect.stop_field
    if name is None:
        return skipped(document, "this API has no stop sequences")
    reason = _refusal(document, name, config, context)
    if reason is not None:
        return skipped(document, reason)
    raw = document.get(name)
    own = _own_sequences(raw)
    if own is None:
        return skipped(document, f"{name} is neither text nor a list")
    known = [decode(element) for element in own]
    wanted = [
        sequence
        for sequence in config.sequences
        if sequence not in known and not (dialect.refuses_blank_stop and sequence.isspace())
    ]
    limit = dialect.stop_limit if config.limit is None else config.limit
    room = max(0, limit - len(own))
    if not wanted:
        return unchanged(document)
    if not room:
        return skipped(document, f"the caller's own sequences fill the limit of {limit}")
    adding = wanted[:room]
    left_out = len(wanted) - len(adding)
    detail: tuple[tuple[str, str | int], ...] = (("added", len(adding)),)
    if left_out:
        detail = (*detail, ("left_out", left_out))
    edited = document.set(name, _merged(raw, own, [orjson.dumps(sequence) for sequence in adding]))
    return Outcome(edited, StepStatus.APPLIED, detail=detail, added=() if raw is not None else (name,))


def _refusal(document: Document, name: str, config: Config, context: StepContext) -> str | None:
    if context.dialect.refuses_stop(context.model):
        return "the model refuses stop sequences"
    if any(fits(pattern, context.model) for pattern in config.exclude_models):
        return "the policy excludes the model"
    if name in context.refused:
        return f"the upstream refuses {name}"
    if not config.for_structured and wants_structured(document):
        return "no stop sequences for tools or structured output"
    return None


def _own_sequences(raw: bytes | None) -> tuple[bytes, ...] | None:
    """Return the caller's sequences as raw JSON; `None` for a value that holds none of them."""
    if raw is None or raw in (b"null", b'""'):
        return ()
    if raw.startswith(b'"'):
        return (raw,)
    spans = array_spans(raw)
    return None if spans is None else tuple(raw[start:end] for start, end in spans)


def _merged(raw: bytes | None, own: tuple[bytes, ...], adding: list[bytes]) -> bytes:
    if raw is None or not own or not raw.startswith(b"["):
        return b"[" + b",".join((*own, *adding)) + b"]"
    # The caller's array keeps its spelling; its last element ends before the closing bracket.
    end = (array_spans(raw) or ((0, 1),))[-1][1]
    return raw[:end] + b"," + b",".join(adding) + raw[end:]


_READS = STRUCTURED_FIELDS | {dialect.stop_field for dialect in DIALECTS if dialect.stop_field is not None}

STEP = Step("add_stop", Config, apply, shorthand="sequences", reads=lambda config: _READS)
