"""Shape the answer: a JSON schema, the model's verbosity, a standing instruction to be brief.

A schema and a verbosity are given only where the caller said nothing about either. The instruction stands at
the tail of the system text, the same bytes in every request, so that cached prefixes stay; a system text is
made only by option. What the model writes is never touched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from proxy.core.decision import StepStatus
from proxy.core.document import Document, Path
from proxy.core.globs import fits
from proxy.core.json_values import decode
from proxy.dialects.structured_output import asks_for_citations, may_call_tools, wants_format
from proxy.dialects.system_text import has_system_text, with_instruction
from proxy.steps.step import Outcome, Step, StepContext, skipped, unchanged

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_DEEPEST_SCHEMA = 64

_FORMAT_PATHS: Mapping[str, Path] = {
    "chat": ("response_format",),
    "responses": ("text", "format"),
    "messages": ("output_config", "format"),
}
_VERBOSITY_PATHS: Mapping[str, Path] = {"chat": ("verbosity",), "responses": ("text", "verbosity")}


@dataclass(frozen=True, slots=True)
class Config:
    """What answers are to look like."""

    schema: Mapping[str, Any] | None = field(
        default=None, metadata={"help": "JSON Schema of the answer, for requests that ask for no format."}
    )
    name: str = field(default="answer", metadata={"help": "Name of the schema."})
    strict: bool = field(
        default=True,
        metadata={"help": "Whether the schema is enforced to the letter, where an API can do both."},
    )
    schema_with_tools: bool = field(
        default=False, metadata={"help": "Give the schema also to requests that may call tools."}
    )
    verbosity: Literal["low", "medium", "high"] | None = field(
        default=None, metadata={"help": "How much the model says, for requests that do not say it."}
    )
    verbosity_models: tuple[str, ...] = field(
        default=("gpt-5*", "gpt-6*"),
        metadata={"help": "Models that take a verbosity, exact names or * patterns."},
    )
    terse: str | None = field(
        default=None, metadata={"help": "Instruction to put at the end of the system text, exact text."}
    )
    create_system: bool = field(
        default=False, metadata={"help": "Give a system text to requests that have none."}
    )

    def __post_init__(self) -> None:
        if self.schema is None and self.verbosity is None and self.terse is None:
            raise ValueError("schema, verbosity or terse must be given")
        if self.schema is not None:
            _check_schema(self.schema, self.strict)
        if _NAME.fullmatch(self.name) is None:
            raise ValueError("name must be 1 to 64 letters, digits, _ or -")
        if self.terse is not None:
            if not self.terse.strip():
                raise ValueError("terse must not be blank")
            try:
                self.terse.encode()
            except UnicodeEncodeError:
                raise ValueError("terse must be Unicode text without lone surrogates") from None
        elif self.create_system:
            raise ValueError("create_system needs terse")


def apply(document: Document, config: Config, context: StepContext) -> Outcome:
    """Give the request whatever of the three the policy names and the caller left open."""
    edited = document
    detail: list[tuple[str, str | int]] = []
    reason = ""
    if config.schema is not None:
        shaped, why_not = _with_schema(edited, config, context)
        detail += [("schema", config.name)] if shaped is not edited else []
        edited, reason = shaped, reason or why_not
    if config.verbosity is not None:
        shaped, why_not = _with_verbosity(edited, config.verbosity, config, context)
        detail += [("verbosity", config.verbosity)] if shaped is not edited else []
        edited, reason = shaped, reason or why_not
    if config.terse is not None:
        shaped, why_not = _with_terse(edited, config.terse, config, context)
        detail += [("terse", "added")] if shaped is not edited else []
        edited, reason = shaped, reason or why_not
    if edited is document:
        return skipped(document, reason) if reason else unchanged(document)
    keys = edited.keys()
    added = tuple(key for key in keys if document.get(key) is None)
    return Outcome(edited, StepStatus.APPLIED, reason, tuple(detail), added)


def _with_schema(document: Document, config: Config, context: StepContext) -> tuple[Document, str]:
    path = _FORMAT_PATHS.get(context.dialect.name)
    if path is None:
        return document, "this API has no structured output"
    if wants_format(document) or document.get_path(path) not in (None, b"null"):
        return document, ""
    if not config.schema_with_tools and may_call_tools(document):
        return document, "no schema for requests that may call tools"
    obstacle = _obstacle(document, path, context) or _unfit(document, context)
    if obstacle:
        return document, obstacle
    return _placed(document, path, _format(config, context.dialect.name))


def _format(config: Config, dialect_name: str) -> bytes:
    named = {"name": config.name, "schema": config.schema, "strict": config.strict}
    match dialect_name:
        case "chat":
            return orjson.dumps({"type": "json_schema", "json_schema": named})
        case "responses":
            return orjson.dumps({"type": "json_schema"} | named)
        case _:
            # Anthropic enforces every schema and gives them no names.
            return orjson.dumps({"type": "json_schema", "schema": config.schema})


def _unfit(document: Document, context: StepContext) -> str:
    """Return why an answer to this request cannot be JSON, if so."""
    modalities = document.value("modalities")
    if isinstance(modalities, list) and "audio" in modalities:
        return "no schema for spoken answers"
    if context.dialect.name == "messages":
        if asks_for_citations(document):
            return "no schema for answers with citations"
        messages = document.elements("messages")
        last = decode(messages[-1]) if messages else None
        if isinstance(last, dict) and last.get("role") == "assistant":
            return "no schema for an answer that the caller began"
    return ""


def _with_verbosity(
    document: Document, verbosity: str, config: Config, context: StepContext
) -> tuple[Document, str]:
    path = _VERBOSITY_PATHS.get(context.dialect.name)
    if path is None:
        return document, "this API has no verbosity"
    if document.get_path(path) not in (None, b"null"):
        return document, ""
    bare = context.model.rsplit("/", 1)[-1]
    if not any(fits(pattern, name) for pattern in config.verbosity_models for name in (context.model, bare)):
        return document, "the model takes no verbosity"
    obstacle = _obstacle(document, path, context)
    return (document, obstacle) if obstacle else _placed(document, path, orjson.dumps(verbosity))


def _with_terse(document: Document, terse: str, config: Config, context: StepContext) -> tuple[Document, str]:
    name = context.dialect.name
    if not has_system_text(name):
        return document, "this API has no system text"
    return with_instruction(document, name, terse, context.model, create=config.create_system)


def _obstacle(document: Document, path: Path, context: StepContext) -> str:
    key = str(path[0])
    refused = key in context.refused and document.get(key) is None
    return f"the upstream refuses {key}" if refused else ""


def _placed(document: Document, path: Path, raw: bytes) -> tuple[Document, str]:
    edited = document.set_path(path, raw)
    return edited, "" if edited is not document else f"{path[0]} is not an object"


def _check_schema(schema: Mapping[str, Any], strict: bool) -> None:
    if schema.get("type") != "object":
        raise ValueError("schema must be of type object at its root: no API takes another")
    try:
        orjson.dumps(schema)
    except (TypeError, UnicodeEncodeError):
        raise ValueError("schema cannot be written as JSON") from None
    if not strict:
        return
    for path, inner in _objects(schema, "schema", 0):
        properties = inner.get("properties", {})
        if inner.get("additionalProperties") is not False:
            raise ValueError(f"{path} needs additionalProperties: false (or strict: false)")
        missing = set(properties) - set(inner.get("required", ())) if isinstance(properties, Mapping) else ()
        if missing:
            names = ", ".join(sorted(map(str, missing)))
            raise ValueError(f"{path} must list {names} under required (or strict: false)")


def _objects(schema: Any, path: str, depth: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every object that a schema describes, with where it stands."""
    if depth > _DEEPEST_SCHEMA:
        raise ValueError(f"schema is nested more deeply than {_DEEPEST_SCHEMA} levels")
    if not isinstance(schema, Mapping):
        return
    if schema.get("type") == "object" or "properties" in schema:
        yield path, schema
    for key in ("properties", "$defs", "definitions"):
        inner = schema.get(key)
        for name, value in inner.items() if isinstance(inner, Mapping) else ():
            yield from _objects(value, f"{path}.{key}.{name}", depth + 1)
    yield from _objects(schema.get("items"), f"{path}.items", depth + 1)
    alternatives = schema.get("anyOf")
    for index, value in enumerate(alternatives if isinstance(alternatives, list) else ()):
        yield from _objects(value, f"{path}.anyOf[{index}]", depth + 1)


STEP = Step("shape_output", Config, apply)
