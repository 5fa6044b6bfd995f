"""Together's batches: OpenAI's shape with another purpose, upload path and spelling, and no metadata.

Owns the answers that wrap what was created, lists without an envelope, a failure told as one sentence, and
files that are checked before use. A batch whose creation was not answered is found by its file: there is no
tag, and a file is used once. Sources: `together` 3.1.1 types/batch_*.py and file_response.py; the direct
upload stands in Together's REST reference (the SDK's own way leads to a storage host by redirects, which Weir
does not follow).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proxy.upstream.providers.answers import checked, json_object
from proxy.upstream.providers.batch_api import (
    ApiLimits,
    BatchInput,
    FileRefused,
    RemoteBatch,
    Unavailable,
)
from proxy.upstream.providers.batch_objects import read_batch, read_text
from proxy.upstream.providers.client import Fields, ProviderClient
from proxy.upstream.providers.openai_batches import OpenAiBatches

LIMITS = ApiLimits(jobs=50_000, bytes=100_000_000)

_CHECKING = frozenset({"pending", "queued", "running"})
_BAD = frozenset({"failed", "invalid_format"})


class TogetherBatches(OpenAiBatches):
    """`BatchApi` over Together."""

    upload_path = "/v1/files/upload"
    purpose = "batch-api"

    def __init__(self, client: ProviderClient, credential: Fields = (), limits: ApiLimits = LIMITS) -> None:
        super().__init__(client, credential, limits)

    def form(self, batch: BatchInput) -> Mapping[str, str]:
        """Return the form's fields, name and type of the file among them."""
        return {"purpose": self.purpose, "file_name": batch.file_name, "file_type": "jsonl"}

    def wanted(self, batch: BatchInput, file_id: str | None) -> Mapping[str, Any]:
        """Return the body of a creation."""
        return {"input_file_id": file_id, "endpoint": batch.endpoint, "completion_window": "24h"}

    def read(self, value: Mapping[str, Any]) -> RemoteBatch:
        """Return a batch; a sentence about its failure is a problem of the whole."""
        job = value.get("job")
        value = job if isinstance(job, dict) else value
        error = read_text(value.get("error"))
        problems = [] if error is None else [{"code": _code(error), "message": error}]
        expiry = {"expires_at": value.get("job_deadline")}
        return read_batch({**value, **expiry, "errors": problems})

    async def create(self, batch: BatchInput, file_id: str | None) -> RemoteBatch:
        """Create the batch unless its file is still checked. Raises `FileRefused` for a bad one."""
        file = json_object(checked(await self.calls.send("GET", self._file_path(file_id or ""))))
        state = str(file.get("processing_status")).lower()
        if state in _BAD:
            report = file.get("validation_report")
            told = report.get("error") if isinstance(report, dict) else None
            raise FileRefused("invalid_file", read_text(told) or "the file did not pass its check")
        if state in _CHECKING:
            raise Unavailable("the file is still being checked", may_have_happened=False)
        return await super().create(batch, file_id)


def _code(error: str) -> str:
    """Return a code for a sentence: only the quota is told apart, by which smaller batches may pass."""
    words = error.lower()
    return "token_limit_exceeded" if "token" in words and ("limit" in words or "quota" in words) else "failed"
