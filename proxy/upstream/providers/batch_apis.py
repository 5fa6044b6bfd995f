"""Which provider speaks which batch API: one line for each adapter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from proxy.core.upstream import Provider
from proxy.upstream.providers.batch_api import BatchApi
from proxy.upstream.providers.client import Fields, ProviderClient
from proxy.upstream.providers.openai_batches import GENERIC_LIMITS, OpenAiBatches

BATCH_APIS: Mapping[Provider, Callable[[ProviderClient, Fields], BatchApi]] = {
    Provider.OPENAI: OpenAiBatches,
    Provider.GENERIC: partial(OpenAiBatches, limits=GENERIC_LIMITS),
}


def batch_api(client: ProviderClient, credential: Fields) -> BatchApi | None:
    """Return the batch API of an upstream under a credential, `None` where there is no adapter for it."""
    adapter = BATCH_APIS.get(client.target.upstream.provider)
    return None if adapter is None else adapter(client, credential)
