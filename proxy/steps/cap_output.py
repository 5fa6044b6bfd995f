"""Bound the output of a request: a default where the caller gave no cap, a maximum for the caps it gives.

It writes into the field that the caller uses, else into the one that model and provider take, and never adds
a second one. Only numbers are judged: `0`, `-1`, `true` and text that is no number are the upstream's to
refuse, null is as good as absent. Finish reasons are never touched.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from proxy.core.decision import StepStatus
from proxy.core.document import Document
from proxy.core.json_values import as_number, exceeds
from proxy.dialects import ALL_CAPS
from proxy.dialects.reasoning_models import REASONING_SWITCHES
from proxy.dialects.structured_output import STRUCTURED_FIELDS, wants_structured
from proxy.steps.step import Outcome, Rejected, Step, StepContext, refuse_lookalikes, skipped, unchanged


@dataclass(frozen=True, slots=True)
class Config:
    """Caps are tokens, reasoning tokens included where the model reasons."""

    default: int | None = field(
        default=None, metadata={"help": "Cap for requests that have none, in tokens."}
    )
    max: int | None = field(
        default=None, metadata={"help": "Highest cap that a caller may ask for, in tokens."}
    )
    floor_reasoning: int | None = field(
        default=None,
        metadata={
            "help": "Lowest default and max where the model reasons first, in tokens. "
            "Without it such requests get no default."
        },
    )
    on_exceed: Literal["clamp", "reject"] = field(
        default="clamp", metadata={"help": "What happens to a cap above max: lowered, or answered with 400."}
    )
    parameter: Literal["auto", "max_tokens", "max_completion_tokens"] = field(
        default="auto",
        metadata={"help": "Where the default goes on chat, if the model's name does not tell."},
    )
    default_for_structured: bool = field(
        default=False,
        metadata={
            "help": "Give the default also to requests with tools or a JSON format, which a cut breaks."
        },
    )

    def __post_init__(self) -> None:
        for name in ("default", "max", "floor_reasoning"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.default is None and self.max is None:
            raise ValueError("default or max must be given")
        if self.default is not None and self.max is not None and self.default > self.max:
            raise ValueError("default must not be above max")
        if self.on_exceed == "reject" and self.max is None:
            raise ValueError("on_exceed needs max")


def apply(document: Document, config: Config, context: StepContext) -> Outcome:
    """Cap the output. Raises `Rejected` for a cap in disguise, and above `max` when the policy says so."""
    dialect = context.dialect
    if not dialect.cap_field_names:
        return skipped(document, "this API has no output cap")
    if config.max is not None and document.has_odd_keys():
        for name in dialect.cap_field_names:
            refuse_lookalikes(document, (name,))
    is_capped = document.has_any(dialect.caps) and any(
        _given(document, name) for name in dialect.cap_field_names
    )
    if is_capped:
        return unchanged(document) if config.max is None else _clamp(document, config, config.max, context)
    return unchanged(document) if config.default is None else _add(document, config, config.default, context)


def _given(document: Document, name: str) -> bool:
    value = document.get(name)
    if value is None:
        return False
    # Only a duplicated key can hide a cap behind a null.
    return value != b"null" or any(other != b"null" for other in document.every(name))


def _clamp(document: Document, config: Config, limit: int, context: StepContext) -> Outcome:
    if config.floor_reasoning is not None and context.dialect.is_reasoning(document, context.model):
        limit = max(limit, config.floor_reasoning)
    edited = document
    detail: list[tuple[str, str | int]] = []
    for name in context.dialect.cap_field_names:
        values = [value for value in document.every(name) if value != b"null"]
        above = [value for value in values if exceeds(value, limit)]
        if not above:
            continue
        if config.on_exceed == "reject":
            raise Rejected(f"{name} is above this route's limit of {limit}", name)
        # Duplicates become what the last of them says, if that is allowed.
        edited = edited.set(name, b"%d" % limit if values[-1] in above else values[-1])
        detail = [("capped", limit)]
        asked = as_number(above[-1])
        if isinstance(asked, int):
            detail.append(("asked", asked))
    if edited is document:
        return unchanged(document)
    return Outcome(edited, StepStatus.APPLIED, detail=tuple(detail))


def _add(document: Document, config: Config, default: int, context: StepContext) -> Outcome:
    dialect = context.dialect
    if not config.default_for_structured and wants_structured(document):
        return skipped(document, "no default for tools or structured output")
    if dialect.is_reasoning(document, context.model):
        if config.floor_reasoning is None:
            return skipped(document, "no default for a reasoning model without floor_reasoning")
        default = max(default, config.floor_reasoning)
    name = dialect.cap_field(document, context.model, context.provider)
    if name is None:
        return skipped(document, "prediction allows no cap")
    if config.parameter in dialect.cap_field_names:
        name = config.parameter
    if name in context.refused:
        others = [other for other in dialect.cap_field_names if other not in context.refused]
        if not others:
            return skipped(document, f"the upstream refuses {name}")
        name = others[0]
    added = () if document.get(name) is not None else (name,)
    edited = document.set(name, b"%d" % default)
    return Outcome(edited, StepStatus.APPLIED, detail=(("set", default),), added=added)


_READS = ALL_CAPS | STRUCTURED_FIELDS | REASONING_SWITCHES | {"prediction"}

STEP = Step(
    "cap_output",
    Config,
    apply,
    enforces=lambda config: config.max is not None,
    reads=lambda config: _READS,
)
