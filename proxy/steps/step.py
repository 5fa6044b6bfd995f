"""The contract of a step: one pure request rewrite that a policy names.

A step takes a document and returns an outcome. It performs no I/O, keeps no state and never raises for
anything that a caller can send: what it cannot handle is `skipped` with a reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from proxy.core.decision import StepStatus
from proxy.core.document import Document, Path
from proxy.core.prefixes import PrefixLookup, SentPrefix
from proxy.core.price import PriceLookup
from proxy.dialects.dialect import Dialect

_LONGEST_NAME_CHARS = 64


class TokenCounting(Protocol):
    """What a step may ask about tokens (implemented by `proxy.tokens`)."""

    def count_text(self, text: str, model: str) -> TokenFigure:
        """Count one text."""
        ...

    def count_message(self, raw: bytes, model: str) -> TokenFigure:
        """Count one message given as its raw JSON."""
        ...


class TokenFigure(Protocol):
    """A token count that knows whether it is exact."""

    @property
    def tokens(self) -> int:
        """The count."""
        ...

    @property
    def exact(self) -> bool:
        """Whether the model's own vocabulary was used on the whole text."""
        ...


def _no_header(name: str) -> str | None:
    return None


class StepContext(msgspec.Struct, frozen=True):
    """Everything a step may know besides the document and its own configuration.

    `refused` names the parameters that this upstream is known to refuse for this model; a step must not
    add them. `header` returns a request header's value by its lower-case name; values are for decisions,
    never for reasons or details, because some are credentials. `prices` and `prefixes` (what was sent before)
    are `None` where nobody knows: then nothing is claimed about cost. `names_model` tells that the request's
    path says which model answers, whatever the body does.
    """

    dialect: Dialect
    model: str
    provider: str
    tokens: TokenCounting
    refused: frozenset[str] = frozenset()
    header: Callable[[str], str | None] = _no_header
    prices: PriceLookup | None = None
    prefixes: PrefixLookup | None = None
    names_model: bool = False


class Outcome(msgspec.Struct, frozen=True):
    """What a step did. `document` is the very object that came in unless `status` is `APPLIED`.

    `added` names top-level parameters that the caller had not sent and the step introduced: these are what
    may be taken back when an upstream refuses them, but for those in `required`, without which a limit would
    not hold. `inner` names members that the step put deeper into what the caller sent; they are taken back
    with everything else. `model` is the model that the step wrote into the document, `upstream` the name of
    the upstream that it sends the request to; `None` leaves either as it is.
    `tokens` are those of the conversation before and after, where the step counted them. `sent` is what to
    remember for the next request of this conversation.
    """

    document: Document
    status: StepStatus
    reason: str = ""
    detail: tuple[tuple[str, str | int], ...] = ()
    added: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    model: str | None = None
    upstream: str | None = None
    tokens: tuple[int, int] | None = None
    sent: SentPrefix | None = None


class Rejected(Exception):
    """A policy forbids this request: it is answered with a 400 that names the parameter."""

    def __init__(self, message: str, param: str | None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


def refuse_lookalikes(document: Document, path: Path) -> None:
    """Raise `Rejected` for a key that a server which folds keys would read as one of `path`.

    For steps that limit what is at `path`: whoever folds keys would find there what the step did not.
    """
    found = document.lookalike(path)
    if found is not None:
        name = found[:_LONGEST_NAME_CHARS].encode("ascii", "backslashreplace").decode("ascii")
        limited = ".".join(map(str, path))
        raise Rejected(
            f"the key {name} could be taken for {limited}, on which this route's limits depend", name
        )


@dataclass(frozen=True, slots=True)
class Step:
    """A step as the registry knows it.

    `config` is the dataclass that a policy's mapping (or, through `shorthand`, its list or scalar) becomes;
    field metadata `{"help": ...}` feeds the docs and the JSON Schema. `apply` raises `Rejected` only.
    `enforces` tells whether a configuration limits what callers may send, so that a body that cannot be
    read must be refused rather than passed. `counts_tokens` says that applying may count tokens, which takes
    long for long bodies. `models` and `upstreams` return the names that a configuration may send requests to,
    so that loading can check the one and metrics can be labelled with the other. `reads` returns the
    top-level keys that a configuration looks at besides `model`: where none is present, the outcome depends
    on nothing else in the document, and at most appends members. `None` says that it depends on more.
    """

    name: str
    config: type[Any]
    apply: Callable[[Document, Any, StepContext], Outcome]
    shorthand: str | None = None
    enforces: Callable[[Any], bool] = field(default=lambda config: False)
    counts_tokens: bool = False
    reads: Callable[[Any], frozenset[str] | None] = field(default=lambda config: None)
    models: Callable[[Any], frozenset[str]] = field(default=lambda config: frozenset())
    upstreams: Callable[[Any], frozenset[str]] = field(default=lambda config: frozenset())


def unchanged(document: Document) -> Outcome:
    """Return the outcome of a step that found nothing to do."""
    return Outcome(document, StepStatus.UNCHANGED)


def skipped(document: Document, reason: str) -> Outcome:
    """Return the outcome of a step that does not apply here, with the reason why."""
    return Outcome(document, StepStatus.SKIPPED, reason)
