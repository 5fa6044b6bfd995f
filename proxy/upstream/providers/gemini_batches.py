"""Gemini's batches through its OpenAI-compatible endpoint, whose files go by Google's own paths.

Owns that the compatible endpoint carries no files: they are uploaded, listed, read and deleted by the native
API (`/upload/v1beta/files`, `/download/v1beta/…`), which takes the key in `x-goog-api-key`. Files are named
`files/…` and forgotten after 48 hours, batches expire then, too. Sources: Google's pages on OpenAI
compatibility, on the Batch API ("creation is not idempotent") and on files; `google-genai` 3.6.1 types.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import quote

from proxy.upstream.providers.answers import checked, json_object
from proxy.upstream.providers.batch_api import (
    ApiLimits,
    BatchApiError,
    BatchInput,
    FileRefused,
    NotFound,
    RemoteBatch,
    RemoteFile,
    Unsupported,
)
from proxy.upstream.providers.calls import Calls, related
from proxy.upstream.providers.client import Fields, ProviderClient
from proxy.upstream.providers.openai_batches import OpenAiBatches

LIMITS = ApiLimits(jobs=50_000, bytes=200_000_000)
"""Google names 2 GB for a file and no number of lines: OpenAI's limits are within that."""

_KEY_HEADER = "x-goog-api-key"
_COMPATIBLE = "/openai"
_PAGES = 20


class GeminiBatches(OpenAiBatches):
    """`BatchApi` over Gemini; the upstream's base URL ends in `/v1beta/openai`."""

    def __init__(self, client: ProviderClient, credential: Fields = (), limits: ApiLimits = LIMITS) -> None:
        super().__init__(client, credential, limits)
        self._native = Calls(client, credential, key_header=_KEY_HEADER)
        self._root = self.calls.base_path.removesuffix(_COMPATIBLE)

    async def upload(self, batch: BatchInput) -> str | None:
        """See `BatchApi`: metadata and lines in one request."""
        metadata = {"file": {"displayName": batch.file_name, "mimeType": "application/jsonl"}}
        head, tail, content_type = related(metadata)
        reply = await self._native.upload_between(
            f"/upload{self._root}/files",
            batch,
            head,
            tail,
            content_type,
            headers=[("X-Goog-Upload-Protocol", "multipart")],
        )
        file = json_object(checked(reply, whole_api=True)).get("file")
        name = file.get("name") if isinstance(file, dict) else None
        if not isinstance(name, str) or not name:
            raise BatchApiError("the file that was made has no name")
        return name

    async def find_files(self, file_name: str) -> tuple[RemoteFile, ...]:
        """See `BatchApi`."""
        found: list[RemoteFile] = []
        token = ""
        for _ in range(_PAGES):
            path = f"{self._root}/files?pageSize=100{'&pageToken=' if token else ''}{quote(token, safe='')}"
            try:
                listed = json_object(checked(await self._native.send("GET", path), whole_api=True))
            except Unsupported:
                break
            for each in listed.get("files") or ():
                if isinstance(each, dict) and each.get("displayName") == file_name and each.get("name"):
                    size = str(each.get("sizeBytes") or "")
                    known = int(size) if size.isascii() and size.isdigit() else None
                    found.append(RemoteFile(str(each["name"]), file_name, known))
            token = str(listed.get("nextPageToken") or "")
            if not token:
                break
        return tuple(found)

    async def results(self, batch: RemoteBatch) -> AsyncIterator[bytes]:
        """See `BatchApi`."""
        for name in (batch.output_file_id, batch.error_file_id):
            if name:
                path = f"/download{self._root}/{quote(name)}:download?alt=media"
                async for line in self._native.lines(path):
                    yield line

    async def delete_file(self, file_id: str) -> None:
        """See `BatchApi`."""
        try:
            checked(await self._native.send("DELETE", f"{self._root}/{quote(file_id)}"))
        except (NotFound, FileRefused, Unsupported):
            return  # gone; what Google made itself may not be deletable and goes after 48 hours
