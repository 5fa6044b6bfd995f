"""Groq: OpenAI's shape, windows from a day to a week."""

from __future__ import annotations

from proxy.core.upstream import Provider
from tests.support.batch_servers.openai import OpenAiServer


class GroqServer(OpenAiServer):
    """`/openai/v1`."""

    provider = Provider.GROQ
    base_path = "/openai/v1"
    model = "openai/gpt-oss-20b"
    windows = frozenset({"24h", "48h", "72h", "96h", "120h", "144h", "7d"})
