"""Send a request to another model, or another upstream, by ordered rules about what it asks.

The first rule whose conditions hold decides; without one the request stays as it is. Rules look at what the
person asked last and what led up to it, so that an agent's tool calls do not change the model midway. A model
that is known to refuse something of the caller's is not chosen, nor another upstream for a request whose ids
only its own upstream knows, nor anything where the path names the model. Embeddings and moderations keep
their model: answers of two do not compare.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import orjson

from proxy.core.decision import StepStatus
from proxy.core.document import Document
from proxy.core.globs import fits
from proxy.dialects.model_limits import refused_parameter
from proxy.dialects.question import Question, last_question, shows_images
from proxy.dialects.references import refers_to_upstream
from proxy.dialects.structured_output import may_call_tools, wants_format
from proxy.steps.step import Outcome, Step, StepContext, skipped, unchanged
from proxy.tokens.bounds import upper_bound_bytes

_LONGEST_NAME = 200
_FINE_TUNED = "ft:"


@dataclass(frozen=True, slots=True)
class TokenBounds:
    """Inclusive bounds; an absent one is open."""

    min: int | None = field(default=None, metadata={"help": "Fewest tokens."})
    max: int | None = field(default=None, metadata={"help": "Most tokens."})

    def __post_init__(self) -> None:
        if self.min is None and self.max is None:
            raise ValueError("tokens needs min or max")
        if min(bound for bound in (self.min, self.max) if bound is not None) < 0:
            raise ValueError("tokens must not be negative")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError("tokens.min must not be above tokens.max")


@dataclass(frozen=True, slots=True)
class When:
    """Conditions about a request; all that are given must hold."""

    tokens: TokenBounds | None = field(
        default=None, metadata={"help": "Size of the turns up to the last question, in tokens."}
    )
    keywords: tuple[str, ...] = field(
        default=(),
        metadata={"help": "Any of these stands in the last question; * is any text. Case is ignored."},
    )
    not_keywords: tuple[str, ...] = field(
        default=(), metadata={"help": "None of these stands in the last question."}
    )
    tools: bool | None = field(default=None, metadata={"help": "Whether tools may be called."})
    images: bool | None = field(default=None, metadata={"help": "Whether any turn holds an image."})
    schema: bool | None = field(
        default=None, metadata={"help": "Whether the caller asks for an answer in a JSON format."}
    )
    headers: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict,
        metadata={"help": "Patterns by header name, any of which may fit; the pattern * asks for presence."},
    )

    def __post_init__(self) -> None:
        for name in ("keywords", "not_keywords"):
            if any(not keyword.replace("*", "").strip() for keyword in getattr(self, name)):
                raise ValueError(f"{name} must not be blank: every question would hold it")
        for header, patterns in self.headers.items():
            if not header.strip() or not patterns:
                raise ValueError("headers must have a name and at least one pattern each")


@dataclass(frozen=True, slots=True)
class Rule:
    """Where the requests go for which everything under `when` holds."""

    when: When = field(default=When(), metadata={"help": "Conditions; without any the rule always holds."})
    model: str | None = field(default=None, metadata={"help": "The model that answers instead."})
    upstream: str | None = field(
        default=None, metadata={"help": "The upstream that the request goes to instead of the route's."}
    )
    keep: bool = field(
        default=False, metadata={"help": "Leave the request as it is; later rules are not asked."}
    )

    def __post_init__(self) -> None:
        if self.keep == (self.model is not None or self.upstream is not None):
            raise ValueError("a rule needs model, upstream or both, or keep: true alone")
        if self.model is not None:
            is_plain = self.model.isprintable() and self.model.strip() == self.model
            if not self.model or not is_plain or len(self.model) > _LONGEST_NAME:
                raise ValueError(f"model must be a plain name of at most {_LONGEST_NAME} characters")


@dataclass(frozen=True, slots=True)
class Config:
    """Rules in order of precedence."""

    rules: tuple[Rule, ...] = field(metadata={"help": "The first rule that holds decides."})

    def __post_init__(self) -> None:
        if not self.rules:
            raise ValueError("rules must name at least one")
        for rule in self.rules[:-1]:
            if rule.when == When():
                raise ValueError("rules after one without conditions are never asked")


def apply(document: Document, config: Config, context: StepContext) -> Outcome:
    """Follow the first rule that holds."""
    if context.dialect.name in ("embeddings", "moderations"):
        return skipped(document, "answers of another model would not compare")
    asked = document.value("model")
    if not isinstance(asked, str) or not asked:
        return skipped(document, "the request names no model")
    if context.names_model:
        return skipped(document, "the path names the model")
    facts = _Facts(document, context)
    for number, rule in enumerate(config.rules, 1):
        if facts.fit(rule.when):
            return _follow(document, rule, number, asked, context)
    return unchanged(document)


def _follow(document: Document, rule: Rule, number: int, asked: str, context: StepContext) -> Outcome:
    model = None if rule.model == asked else rule.model
    if model is None and rule.upstream is None:
        return Outcome(document, StepStatus.UNCHANGED, detail=(("rule", number),))
    if rule.upstream is not None and refers_to_upstream(document, context.dialect.name):
        return skipped(document, "what the request refers to exists at its own upstream only")
    if rule.upstream is not None and model is None and asked.startswith(_FINE_TUNED):
        return skipped(document, "a fine-tuned model exists at its own upstream only")
    if model is not None:
        refused = refused_parameter(document, context.dialect.name, model)
        if refused is not None:
            return skipped(document, f"{model} refuses the caller's {refused}")
    detail: list[tuple[str, str | int]] = [("rule", number)]
    if model is not None:
        detail.append(("model", model))
        document = document.set("model", orjson.dumps(model))
    if rule.upstream is not None:
        detail.append(("upstream", rule.upstream))
    return Outcome(document, StepStatus.APPLIED, detail=tuple(detail), model=model, upstream=rule.upstream)


class _Facts:
    """What rules ask about one request, found out when the first rule asks."""

    __slots__ = ("_context", "_document", "_folded", "_question")

    def __init__(self, document: Document, context: StepContext) -> None:
        self._document = document
        self._context = context
        self._question: Question | None = None
        self._folded: str | None = None

    def fit(self, when: When) -> bool:
        """Tell whether all conditions hold, the cheap ones first."""
        document, name = self._document, self._context.dialect.name
        return (
            self._headers_fit(when.headers)
            and (when.tools is None or may_call_tools(document) is when.tools)
            and (when.schema is None or wants_format(document) is when.schema)
            and (when.images is None or shows_images(document, name) is when.images)
            and (not when.keywords or self._says_any(when.keywords))
            and (not when.not_keywords or not self._says_any(when.not_keywords))
            and (when.tokens is None or self._tokens_fit(when.tokens))
        )

    def _headers_fit(self, headers: Mapping[str, Iterable[str]]) -> bool:
        for name, patterns in headers.items():
            value = self._context.header(name.lower())
            if value is None or not any(fits(pattern, value) for pattern in patterns):
                return False
        return True

    def _says_any(self, keywords: Iterable[str]) -> bool:
        if self._folded is None:
            self._folded = self._asked().text.casefold()
        text = self._folded
        return any(fits(f"*{keyword.casefold()}*", text) for keyword in keywords)

    def _tokens_fit(self, bounds: TokenBounds) -> bool:
        """Count only as far as the bounds ask: beyond both of them nothing changes any more."""
        least = bounds.min or 0
        most = bounds.max
        question = self._asked()
        parts: tuple[bytes | str, ...] = question.turns or (question.text,)
        ceiling = sum(map(upper_bound_bytes, parts))
        if ceiling < least or (least == 0 and most is not None and ceiling <= most):
            return ceiling >= least
        tokens, model = 0, self._context.model
        enough = least if most is None else most + 1
        for part in reversed(parts):
            counter = self._context.tokens
            if isinstance(part, str):
                tokens += counter.count_text(part, model).tokens
            else:
                tokens += counter.count_message(part, model).tokens
            if tokens >= enough:
                break
        return least <= tokens and (most is None or tokens <= most)

    def _asked(self) -> Question:
        if self._question is None:
            self._question = last_question(self._document, self._context.dialect.name)
        return self._question


STEP = Step(
    "choose_model",
    Config,
    apply,
    shorthand="rules",
    counts_tokens=True,
    models=lambda config: frozenset(rule.model for rule in config.rules if rule.model is not None),
    upstreams=lambda config: frozenset(rule.upstream for rule in config.rules if rule.upstream is not None),
)
