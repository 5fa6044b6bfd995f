"""Owns which bodies may pass although they were not read, or not read as a more lenient server reads them.

Plain forwarding would have served them; but that must neither dodge a limit nor choose an upstream.
"""

from __future__ import annotations

from proxy.core.document import Document, DocumentError, TooManyParts
from proxy.core.errors import BODY_TOO_LARGE, INVALID_BODY, REJECTED_BY_POLICY, ProxyError
from proxy.policy.model import Route
from proxy.steps.step import Rejected, refuse_lookalikes

_NOT_JSON = "The body is not valid JSON, and this route must read it."
_MESSAGES = {
    "not_an_object": "The body is not a JSON object, and this route must read it.",
    "too_deep": "The body is nested more deeply than this route reads.",
    "too_many_parts": "The body has more members or elements than this route reads.",
}
_MODEL = ("model",)


def check_passes_unread(problem: DocumentError, candidates: tuple[Route, ...], *, is_known_api: bool) -> None:
    """Raise ProxyError for a body that could not be read and must not pass.

    One with too many parts is treated as one too large to be read (413), others as invalid (400).
    """
    if isinstance(problem, TooManyParts):
        if any(route.refuses_unread for route in candidates):
            raise ProxyError(BODY_TOO_LARGE, _MESSAGES[problem.reason])
    elif is_known_api and problem.reason != "empty" and _may_enforce(candidates):
        raise ProxyError(INVALID_BODY, _MESSAGES.get(problem.reason, _NOT_JSON))


def is_readable_elsewhere(problem: DocumentError) -> bool:
    """Tell whether an upstream takes such a body for JSON although it is not read here."""
    return problem.reason in ("too_deep", "too_many_parts")


def check_names(document: Document, candidates: tuple[Route, ...]) -> None:
    """Raise ProxyError (400) for a key that could be read as `model`, where limits may depend on it."""
    if _may_enforce(candidates) and document.has_odd_keys():
        try:
            refuse_lookalikes(document, _MODEL)
        except Rejected as rejection:
            raise ProxyError(REJECTED_BY_POLICY, rejection.message, rejection.param) from None


def _may_enforce(candidates: tuple[Route, ...]) -> bool:
    """Tell whether any route that the body may lead to limits what callers send."""
    for route in candidates:
        if route.enforces:
            return True
        if not route.match.needs_body:
            return False
    return False
