"""Scripted batch APIs, one file for each dialect, strict about what its provider refuses.

They are written from reference material, not from the adapters: what these servers accept, the provider does.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.support.batch_servers.anthropic import AnthropicServer
from tests.support.batch_servers.azure import AzureServer, OlderAzureServer
from tests.support.batch_servers.base import BatchServer
from tests.support.batch_servers.gemini import GeminiServer
from tests.support.batch_servers.groq import GroqServer
from tests.support.batch_servers.mistral import MistralServer
from tests.support.batch_servers.openai import OpenAiServer
from tests.support.batch_servers.openrouter import OpenRouterServer
from tests.support.batch_servers.together import TogetherServer

SERVERS: tuple[Callable[[], BatchServer], ...] = (
    OpenAiServer,
    AzureServer,
    OlderAzureServer,
    AnthropicServer,
    GeminiServer,
    MistralServer,
    GroqServer,
    TogetherServer,
    OpenRouterServer,
)
