"""Give parameters defaults, bounds and values by path, append to lists, refuse what a policy forbids.

Paths are keys joined by dots (`reasoning.effort`); a number is an index where the value is a list, and never
makes a value: what it would be put in is not known. Everything that a rule does not name keeps its bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import orjson

from proxy.core.decision import StepStatus
from proxy.core.document import Document, Path
from proxy.core.json_values import decode, exceeds, falls_below
from proxy.dialects import ALL_CAPS
from proxy.dialects.unknown import UNKNOWN
from proxy.steps.step import Outcome, Rejected, Step, StepContext, refuse_lookalikes, skipped, unchanged

_PATH = re.compile(r"[A-Za-z0-9_$-]+(\.[A-Za-z0-9_$-]+)*")

# What these say decides how the answer looks, whose it is and what it costs; other parts of Weir rely on it.
_ONLY_FORBID = frozenset(
    {
        "background",
        "conversation",
        "input",
        "messages",
        "model",
        "previous_response_id",
        "prompt",
        "stream",
    }
)

# Objects whose keys are numbers; elsewhere a number is the index of a list.
_NUMBERED = frozenset({"logit_bias"})


class _NotGiven:
    def __repr__(self) -> str:
        return "not given"


NOT_GIVEN: Any = _NotGiven()


@dataclass(frozen=True, slots=True)
class Rule:
    """What holds for one parameter; values are JSON."""

    default: Any = field(default=NOT_GIVEN, metadata={"help": "Value where the caller gave none (or null)."})
    max: Any = field(default=NOT_GIVEN, metadata={"help": "Highest number allowed; a higher one is lowered."})
    min: Any = field(default=NOT_GIVEN, metadata={"help": "Lowest number allowed; a lower one is raised."})
    set: Any = field(default=NOT_GIVEN, metadata={"help": "Value that replaces whatever the caller gave."})
    forbid: Any = field(
        default=NOT_GIVEN,
        metadata={"help": "true, or a list of values: such a request is answered with 400."},
    )
    add: Any = field(
        default=NOT_GIVEN, metadata={"help": "List of values to append to the caller's list, each once."}
    )

    def __post_init__(self) -> None:
        given = [name for name, _ in _given(self)]
        if not given:
            raise ValueError("one of default, max, min, set, forbid, add must be given")
        for name in ("max", "min"):
            if name in given and not _is_number(getattr(self, name)):
                raise ValueError(f"{name} must be a number")
        if "max" in given and "min" in given and self.min > self.max:
            raise ValueError("min must not be above max")
        if "set" in given and not {"set", "forbid"}.issuperset(given):
            raise ValueError("set leaves nothing to default, max, min or add")
        if "add" in given and (not isinstance(self.add, (list, tuple)) or not self.add):
            raise ValueError("add must be a list of values")
        if "add" in given and not {"add", "forbid"}.issuperset(given):
            raise ValueError("add goes together with forbid only")
        if "forbid" in given and self.forbid is not True and not isinstance(self.forbid, (list, tuple)):
            raise ValueError("forbid must be true or a list of values")
        encoded = {name: _encode(value, name) for name, value in _given(self)}
        if "default" in given:
            raw = encoded["default"]
            if ("max" in given and exceeds(raw, self.max)) or ("min" in given and falls_below(raw, self.min)):
                raise ValueError("default must lie between min and max")


@dataclass(frozen=True, slots=True)
class Config:
    """Rules by path; they are applied in the order of the policy."""

    rules: Mapping[str, Rule] = field(metadata={"help": "Rules by parameter, such as temperature: {max: 1}."})

    def __post_init__(self) -> None:
        if not self.rules:
            raise ValueError("rules must name at least one parameter")
        for path, rule in self.rules.items():
            if _PATH.fullmatch(path) is None:
                raise ValueError(f"{path!r} is not a path of keys joined by dots")
            key = path.partition(".")[0]
            if key in _ONLY_FORBID and any(name != "forbid" for name, _ in _given(rule)):
                raise ValueError(f"{key} can only be forbidden here")


def apply(document: Document, config: Config, context: StepContext) -> Outcome:
    """Apply every rule; forbidden values are looked for before anything is changed."""
    for dotted, rule in config.rules.items():
        if _limits(rule):
            refuse_lookalikes(document, _path(dotted))
        if rule.forbid is not NOT_GIVEN:
            _refuse(document, dotted, rule.forbid)
    edited = document
    detail: list[tuple[str, str | int]] = []
    reason = ""
    for dotted, rule in config.rules.items():
        problem = _obstacle(edited, dotted, rule, context)
        if problem is not None:
            reason = reason or problem
            continue
        path = _path(dotted)
        for action, value in _edits(edited, path, rule):
            changed = edited.set_path(path, value)
            if changed is not edited:
                detail.append((dotted, action))
            elif edited.get_path(path) != value:
                reason = reason or f"{dotted} has no place in what the caller sent"
            edited = changed
    if edited is not document:
        keys = edited.keys()
        added = tuple(key for key in keys if document.get(key) is None)
        required = tuple(key for key in added if _is_set(config, key))
        return Outcome(edited, StepStatus.APPLIED, reason, tuple(detail), added, required)
    return skipped(document, reason) if reason else unchanged(document)


def _limits(rule: Rule) -> bool:
    return any(value is not NOT_GIVEN for value in (rule.forbid, rule.max, rule.min, rule.set))


def _is_set(config: Config, key: str) -> bool:
    """Tell whether a rule insists on a parameter; a default is only a wish."""
    return any(
        rule.set is not NOT_GIVEN and dotted.partition(".")[0] == key for dotted, rule in config.rules.items()
    )


def _refuse(document: Document, dotted: str, forbid: Any) -> None:
    for raw in document.every_path(_path(dotted)):
        if forbid is True:
            if raw != b"null":
                raise Rejected(f"{dotted} is not allowed here", dotted)
        elif _holds(forbid, decode(raw)):
            raise Rejected(f"this value of {dotted} is not allowed here", dotted)


def _obstacle(document: Document, dotted: str, rule: Rule, context: StepContext) -> str | None:
    """Return why a rule must not add its parameter, if it must not."""
    key = dotted.partition(".")[0]
    may_add = any(value is not NOT_GIVEN for value in (rule.default, rule.set, rule.add))
    if not may_add:
        return None
    if _lacks_list(document, dotted):
        return f"there is no list for {dotted} to be in"
    if document.get(key) is not None:
        return None
    if context.dialect.name == UNKNOWN.name:
        return "unknown API shape"
    if key in context.refused:
        return f"the upstream refuses {key}"
    if key == "stream_options" and not context.dialect.is_stream(document):
        return "stream_options belongs to streams"
    caps = context.dialect.cap_field_names
    if key in caps and any(document.get(cap) not in (None, b"null") for cap in caps):
        return f"the caller caps its output in another field than {key}"
    return None


def _lacks_list(document: Document, dotted: str) -> bool:
    """Tell whether a path goes by number into something that the caller did not send."""
    path = _path(dotted)
    return path[0] not in _NUMBERED and any(
        isinstance(part, str) and part.isdigit() and document.get_path(path[:level]) in (None, b"null")
        for level, part in enumerate(path)
        if level
    )


def _edits(document: Document, path: Path, rule: Rule) -> Iterator[tuple[str, bytes]]:
    """Yield what is to be written at `path` and for which reason; at most one of them."""
    if rule.set is not NOT_GIVEN:
        yield "set", _encode(rule.set, "set")
    elif rule.add is not NOT_GIVEN:
        longer = _longer(document.get_path(path), rule.add)
        if longer is not None:
            yield "add", longer
    else:
        values = [value for value in document.every_path(path) if value != b"null"]
        if values:
            yield from _bounded(values, rule)
        elif rule.default is not NOT_GIVEN:
            yield "default", _encode(rule.default, "default")


def _bounded(values: list[bytes], rule: Rule) -> Iterator[tuple[str, bytes]]:
    """Yield what all occurrences become when one is out of bounds: the last, within bounds."""
    above = rule.max is not NOT_GIVEN and any(exceeds(value, rule.max) for value in values)
    below = rule.min is not NOT_GIVEN and any(falls_below(value, rule.min) for value in values)
    if above and exceeds(values[-1], rule.max):
        yield "max", _encode(rule.max, "max")
    elif below and falls_below(values[-1], rule.min):
        yield "min", _encode(rule.min, "min")
    elif above or below:
        yield ("max" if above else "min"), values[-1]


def _longer(current: bytes | None, adding: Any) -> bytes | None:
    """Return the list with what it lacks, or `None` when it lacks nothing or is no list."""
    if current is None or current == b"null":
        return _encode(list(adding), "add")
    known = decode(current)
    if not isinstance(known, list):
        return None
    new = [_encode(value, "add") for value in adding if not _holds(known, value)]
    if not new:
        return None
    end = current.rindex(b"]")
    return current[:end] + (b"," if known else b"") + b",".join(new) + current[end:]


def _path(dotted: str) -> Path:
    return tuple(dotted.split("."))


def _given(rule: Rule) -> Iterator[tuple[str, Any]]:
    for entry in fields(rule):
        value = getattr(rule, entry.name)
        if value is not NOT_GIVEN:
            yield entry.name, value


def _holds(values: Iterable[Any], wanted: Any) -> bool:
    """Tell whether `wanted` is among JSON `values`, where `true` is not 1 as it is in Python."""
    return any(value == wanted and isinstance(value, bool) == isinstance(wanted, bool) for value in values)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _encode(value: Any, name: str) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:
        pass  # perhaps for an integer beyond 64 bits, which JSON has, too
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError):
        raise ValueError(f"{name} cannot be written as JSON") from None


def _reads(config: Config) -> frozenset[str]:
    keys = frozenset(path.partition(".")[0] for path in config.rules)
    if "stream_options" in keys:
        keys |= {"stream"}
    return keys if keys.isdisjoint(ALL_CAPS) else keys | ALL_CAPS


STEP = Step(
    "set_params",
    Config,
    apply,
    shorthand="rules",
    reads=_reads,
    enforces=lambda config: any(map(_limits, config.rules.values())),
)
