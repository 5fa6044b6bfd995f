"""The upstreams' APIs as the worker uses them: one client per upstream, credentials opened only in memory.

Owns the clients. An upstream that was configured anew gets a new client; the former one is closed with the
rest, because work may still be under way on it.
"""

from __future__ import annotations

from collections.abc import Mapping

from proxy.core.upstream import Upstream
from proxy.jobs.credentials import open_credential
from proxy.jobs.model import Batch, HeaderFields, Job
from proxy.jobs.sealing import SealError, Vault
from proxy.jobs.worker.ports import Directory
from proxy.upstream.providers.batch_api import BatchApi, CredentialsRefused, Unavailable, Unsupported
from proxy.upstream.providers.batch_apis import batch_api
from proxy.upstream.providers.client import CallFailed, ProviderClient


class Providers:
    """Clients by upstream name. Create it in the event loop, and close it."""

    def __init__(self, directory: Directory, environment: Mapping[str, str], vault: Vault) -> None:
        self._directory = directory
        self._environment = environment
        self._vault = vault
        self._clients: dict[str, tuple[Upstream, ProviderClient]] = {}
        self._retired: list[ProviderClient] = []

    async def close(self) -> None:
        """Close every client."""
        for client in [*self._retired, *(client for _, client in self._clients.values())]:
            await client.close()
        self._retired, self._clients = [], {}

    def provider_of(self, upstream_name: str) -> str:
        """Return the provider's name in the price table, empty for an upstream that is gone."""
        upstream = self._directory.upstream(upstream_name)
        return "" if upstream is None else upstream.provider.value

    def client(self, upstream_name: str) -> ProviderClient:
        """Return the client of an upstream. Raises `CallFailed` when it is not (or badly) configured."""
        upstream = self._directory.upstream(upstream_name)
        if upstream is None:
            raise CallFailed(f"there is no upstream {upstream_name}", may_have_happened=False)
        known = self._clients.get(upstream_name)
        if known is not None and known[0] == upstream:
            return known[1]
        try:
            client = ProviderClient.for_upstream(upstream, self._environment)
        except (OSError, ValueError) as problem:
            raise CallFailed(str(problem), may_have_happened=False) from None
        if known is not None:
            self._retired.append(known[1])
        self._clients[upstream_name] = (upstream, client)
        return client

    def credential(self, job: Job) -> HeaderFields:
        """Return the caller's own credential, nothing where the upstream has its own. Raises `SealError`."""
        return self._opened(job.account, job.credential)

    def batch_api(self, batch: Batch) -> BatchApi:
        """Return the API that a batch is worked on with. Raises `BatchApiError`."""
        return self._api(batch.group.upstream, batch.group.account, batch.credential)

    def batch_api_for(self, job: Job) -> BatchApi:
        """Return the API that a job's batch would be worked on with. Raises `BatchApiError`."""
        return self._api(job.upstream, job.account, job.credential)

    def _api(self, upstream: str, account: str, blob: bytes | None) -> BatchApi:
        try:
            client = self.client(upstream)
            api = batch_api(client, self._opened(account, blob))
        except CallFailed as failed:
            raise Unavailable(str(failed), may_have_happened=False) from None
        except SealError as problem:
            raise CredentialsRefused(str(problem)) from None
        if api is None:
            provider = client.target.upstream.provider.value
            raise Unsupported(f"Weir has no adapter for the batches of {provider}")
        return api

    def _opened(self, account: str, blob: bytes | None) -> HeaderFields:
        return () if blob is None else open_credential(self._vault, account, blob)
