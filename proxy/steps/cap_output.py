"""Bound the output of a request: a default where the caller gave no cap, a maximum for the caps it gives.

It writes into the field that the caller uses, else into the one that model and provider take, and never adds
a second one; a maximum holds for every name that the provider's server takes. Only numbers are judged: `true`
and text that is no number are the upstream's to refuse, as are `0` and `-1` unless they mean "no end" there;
null is as good as absent. Finish reasons are never touched.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from proxy.core.decision import StepStatus
from proxy.core.document import Document, Path
from proxy.core.json_values import as_number, exceeds, falls_below
from proxy.dialects import ALL_CAPS
from proxy.dialects.cap_aliases import ALIAS_FIELDS, cap_aliases, least_meant
from proxy.dialects.reasoning_models import REASONING_SWITCHES
from proxy.dialects.structured_output import STRUCTURED_FIELDS, wants_structured
from proxy.dialects.unknown import UNKNOWN
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
    aliases = (
        cap_aliases(context.provider) if document.has_any(ALIAS_FIELDS) or document.has_odd_keys() else ()
    )
    fields: tuple[Path, ...] = (*((name,) for name in dialect.cap_field_names), *aliases)
    clamped = unchanged(document)
    if config.max is not None:
        for path in fields:
            refuse_lookalikes(document, path)
        if document.has_any(dialect.caps) or aliases:
            clamped = _clamp(document, config, config.max, context, fields)
    # Of an alias at a generic upstream nobody knows whether it is read at all: that is no cap to rely on.
    own = fields if context.provider != "generic" else fields[: len(dialect.cap_field_names)]
    if config.default is None or any(_given(document, path) for path in own):
        return clamped
    added = _add(clamped.document, config, config.default, context)
    if clamped.status is not StepStatus.APPLIED:
        return added
    detail = (*clamped.detail, *added.detail)
    return Outcome(added.document, StepStatus.APPLIED, added.reason, detail, added.added)


def _given(document: Document, path: Path) -> bool:
    # Only a duplicated key can hide a cap behind a null.
    return any(value != b"null" for value in document.every_path(path))


def _clamp(
    document: Document, config: Config, limit: int, context: StepContext, fields: tuple[Path, ...]
) -> Outcome:
    if config.floor_reasoning is not None and context.dialect.is_reasoning(document, context.model):
        limit = max(limit, config.floor_reasoning)
    limit = max(limit, context.dialect.least_cap_tokens)
    edited = document
    detail: list[tuple[str, str | int]] = []
    for path in fields:
        least = least_meant(context.provider, path)
        values = [value for value in document.every_path(path) if value != b"null"]
        above = [
            value
            for value in values
            if exceeds(value, limit) or (least is not None and falls_below(value, least))
        ]
        if not above:
            continue
        name = ".".join(map(str, path))
        if config.on_exceed == "reject":
            raise Rejected(f"{name} is above this route's limit of {limit}", name)
        # Duplicates become what the last of them says, if that is allowed.
        edited = edited.set_path(path, b"%d" % limit if values[-1] in above else values[-1])
        detail = [("capped", limit)]
        asked = as_number(above[-1])
        if isinstance(asked, int):
            detail.append(("asked", asked))
    if edited is document:
        return unchanged(document)
    return Outcome(edited, StepStatus.APPLIED, detail=tuple(detail))


def _add(document: Document, config: Config, default: int, context: StepContext) -> Outcome:
    dialect = context.dialect
    if dialect.name == UNKNOWN.name:
        return skipped(document, "unknown API shape")
    if not config.default_for_structured and wants_structured(document):
        return skipped(document, "no default for tools or structured output")
    if dialect.is_reasoning(document, context.model):
        if config.floor_reasoning is None:
            return skipped(document, "no default for a reasoning model without floor_reasoning")
        default = max(default, config.floor_reasoning)
    default = max(default, dialect.least_cap_tokens)
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


_READS = ALL_CAPS | ALIAS_FIELDS | STRUCTURED_FIELDS | REASONING_SWITCHES | {"prediction"}

STEP = Step(
    "cap_output",
    Config,
    apply,
    enforces=lambda config: config.max is not None,
    reads=lambda config: _READS,
)
