"""Which provider speaks which batch API: one line for each adapter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from proxy.core.document import Document
from proxy.core.upstream import Provider
from proxy.upstream.providers import anthropic_batches
from proxy.upstream.providers.anthropic_batches import AnthropicBatches
from proxy.upstream.providers.azure_batches import AzureBatches
from proxy.upstream.providers.batch_api import BatchApi
from proxy.upstream.providers.client import Fields, ProviderClient
from proxy.upstream.providers.gemini_batches import GeminiBatches
from proxy.upstream.providers.groq_batches import GroqBatches
from proxy.upstream.providers.mistral_batches import MistralBatches
from proxy.upstream.providers.openai_batches import GENERIC_LIMITS, OpenAiBatches
from proxy.upstream.providers.openrouter_batches import OpenRouterBatches
from proxy.upstream.providers.together_batches import TogetherBatches

LineObstacle = Callable[[str, Document, Callable[[str], str | None]], str | None]
"""Path, body and header lookup of a request to why it cannot be in a batch, `None` if it can."""

BATCH_APIS: Mapping[Provider, Callable[[ProviderClient, Fields], BatchApi]] = {
    Provider.OPENAI: OpenAiBatches,
    Provider.AZURE: AzureBatches,
    Provider.ANTHROPIC: AnthropicBatches,
    Provider.GEMINI: GeminiBatches,
    Provider.MISTRAL: MistralBatches,
    Provider.GROQ: GroqBatches,
    Provider.TOGETHER: TogetherBatches,
    Provider.OPENROUTER: OpenRouterBatches,
    Provider.GENERIC: partial(OpenAiBatches, limits=GENERIC_LIMITS),
}

LINE_OBSTACLES: Mapping[Provider, LineObstacle] = {
    Provider.ANTHROPIC: anthropic_batches.line_obstacle,
}


def batch_api(client: ProviderClient, credential: Fields) -> BatchApi | None:
    """Return the batch API of an upstream under a credential, `None` where there is no adapter for it."""
    adapter = BATCH_APIS.get(client.target.upstream.provider)
    return None if adapter is None else adapter(client, credential)


def line_obstacle(
    provider: Provider, endpoint: str, document: Document, header: Callable[[str], str | None]
) -> str | None:
    """Return why the provider refuses a request as a line of a batch, `None` where nothing is known."""
    obstacle = LINE_OBSTACLES.get(provider)
    return None if obstacle is None else obstacle(endpoint, document, header)
