"""The API shapes that Weir knows, and which path speaks which."""

from __future__ import annotations

import re

from proxy.dialects.chat import CHAT
from proxy.dialects.completions import COMPLETIONS
from proxy.dialects.dialect import Dialect
from proxy.dialects.embeddings import EMBEDDINGS
from proxy.dialects.messages import MESSAGES
from proxy.dialects.moderations import MODERATIONS
from proxy.dialects.responses import RESPONSES

__all__ = ["ALL_CAPS", "DIALECTS", "Dialect", "dialect_for_path", "names_model"]

DIALECTS: tuple[Dialect, ...] = (CHAT, COMPLETIONS, EMBEDDINGS, MODERATIONS, RESPONSES, MESSAGES)

ALL_CAPS = frozenset(name for dialect in DIALECTS for name in dialect.cap_field_names)
"""Every field that caps an answer in some API."""

_BY_PATH = {dialect.path: dialect for dialect in DIALECTS}

# Azure's paths: /openai/deployments/{deployment}/{operation} and, without a deployment, /openai/responses.
_AZURE = re.compile(r"/openai/(?:deployments/[^/]+/)?(completions|embeddings|responses)")
_DEPLOYMENT = re.compile(r"/deployments/[^/]+/", re.IGNORECASE)


def dialect_for_path(path: str) -> Dialect | None:
    """Return the dialect spoken at a request path, query excluded, or `None`.

    Known are, exactly: the paths of `DIALECTS`; these without `/v1` and behind any prefix
    (`/openai/v1/embeddings`); everything that ends in `/chat/completions`; Azure's deployment paths. Anything
    below them, such as `/v1/messages/batches`, and what merely resembles them, such as
    `/v1/threads/{id}/messages`, is another API.
    """
    exact = _BY_PATH.get(path)
    if exact is not None:
        return exact
    if path.endswith("/chat/completions"):
        return CHAT
    for dialect in DIALECTS:
        if path.endswith(dialect.path) or path == dialect.path.removeprefix("/v1"):
            return dialect
    azure = _AZURE.fullmatch(path)
    return None if azure is None else _BY_PATH["/v1/" + azure[1]]


def names_model(path: str) -> bool:
    """Tell whether a request path says which model answers, as Azure's deployments do."""
    return _DEPLOYMENT.search(path) is not None
