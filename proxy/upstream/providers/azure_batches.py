"""Azure OpenAI's batches: OpenAI's shape with files that are processed first, and two kinds of paths.

Owns what differs: the wait for a file's processing, expiry of files between 14 and 30 days (which also raises
the number of files that a resource may hold from 500 to 10,000), limits, and the paths and query of resources
that are not addressed by `/openai/v1`. Capitalised states, ISO dates, null counts and error files of no bytes
are `batch_objects`' and the worker's anyway. Azure never expires a batch; Weir's jobs have deadlines of their
own. Source: MicrosoftDocs/azure-ai-docs, includes/batch/batch-rest.md and global-batch-limits.md; REST
reference of the API version below.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from proxy.upstream.providers.answers import checked, json_object
from proxy.upstream.providers.batch_api import ApiLimits, BatchInput, FileRefused, RemoteBatch, Unavailable
from proxy.upstream.providers.client import Fields, ProviderClient
from proxy.upstream.providers.openai_batches import OpenAiBatches

LIMITS = ApiLimits(jobs=100_000, bytes=200_000_000)

API_VERSION = "2024-10-21"
"""The version that is asked for where the base URL is not that of the versionless API."""

FILE_SECONDS = 14 * 86_400
"""How long Azure keeps an input file at least; Weir deletes it as soon as its batch is settled."""

_LOOKS = 20
_LOOK_SECONDS = 0.5
_DEPLOYMENT = "/deployments/"


class AzureBatches(OpenAiBatches):
    """`BatchApi` over an Azure OpenAI resource. The model of a line is the name of a Batch deployment."""

    part_type = "application/json"

    def __init__(
        self,
        client: ProviderClient,
        credential: Fields = (),
        limits: ApiLimits = LIMITS,
        look_seconds: float = _LOOK_SECONDS,
    ) -> None:
        super().__init__(client, credential, limits)
        self._look_seconds = look_seconds
        resource = self.calls.base_path.partition(_DEPLOYMENT)[0]
        self._is_versionless = resource.endswith("/v1")
        if not self._is_versionless:
            self.files_path = self.upload_path = f"{resource}/files"
            self.batches_path = f"{resource}/batches"
            self.query = f"?api-version={API_VERSION}"

    def line_url(self, endpoint: str) -> str | None:
        """See `BatchApi`: without `/v1` where the API has a version of its own."""
        return endpoint if self._is_versionless else endpoint.removeprefix("/v1")

    def form(self, batch: BatchInput) -> Mapping[str, str]:
        """Return the form's fields, the expiry of the file among them."""
        expiry = {"expires_after[anchor]": "created_at", "expires_after[seconds]": str(FILE_SECONDS)}
        return {"purpose": self.purpose, **expiry}

    def wanted(self, batch: BatchInput, file_id: str | None) -> Mapping[str, Any]:
        """Return the body of a creation; the endpoint has to be that of the lines."""
        return {
            **super().wanted(batch, file_id),
            "endpoint": self.line_url(batch.endpoint),
            "output_expires_after": {"anchor": "created_at", "seconds": FILE_SECONDS},
        }

    async def create(self, batch: BatchInput, file_id: str | None) -> RemoteBatch:
        """Create the batch once its file is processed. Raises `FileRefused` for a file that cannot be."""
        await self._processed(file_id or "")
        return await super().create(batch, file_id)

    async def _processed(self, file_id: str) -> None:
        for look in range(_LOOKS):
            if look:
                await asyncio.sleep(self._look_seconds)
            file = json_object(checked(await self.calls.send("GET", self._file_path(file_id))))
            state = str(file.get("status")).lower()
            if state == "processed":
                return
            if state in ("error", "failed", "deleted"):
                details = file.get("status_details") or "the file could not be processed"
                raise FileRefused("invalid_file", str(details)[:500])
        raise Unavailable("the file is still being processed", may_have_happened=False)
