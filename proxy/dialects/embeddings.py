"""OpenAI's Embeddings: nothing to rewrite, usage to read."""

from __future__ import annotations

from proxy.dialects.plain import PlainDialect


class EmbeddingsDialect(PlainDialect):
    """`/v1/embeddings`."""

    name = "embeddings"
    path = "/v1/embeddings"


EMBEDDINGS = EmbeddingsDialect()
