"""Azure OpenAI: capitalised states, ISO dates, null counts, files processed first, empty error files."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from proxy.core.upstream import Provider
from tests.support.batch_servers.base import Held, Json, Refusal
from tests.support.batch_servers.openai import OpenAiServer


class AzureServer(OpenAiServer):
    """The versionless API, `/openai/v1`."""

    provider = Provider.AZURE
    base_path = "/openai/v1"
    key_header = "api-key"
    model = "our-batch-deployment"
    part_type = "application/json"
    form_fields = frozenset({"purpose", "file", "expires_after[anchor]", "expires_after[seconds]"})
    always_error_file = True

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()

    def check_form(self, form: dict[str, Any]) -> None:
        self._check_expiry(int(form["expires_after[seconds]"]), form["expires_after[anchor]"])

    def check_creation(self, body: Json) -> None:
        expiry = body["output_expires_after"]
        self._check_expiry(expiry["seconds"], expiry["anchor"])
        if self.asked[body["input_file_id"]] < 2:
            raise Refusal(400, "invalid_request", "the file is not processed")

    def _check_expiry(self, seconds: int, anchor: str) -> None:
        if not 1_209_600 <= seconds <= 2_592_000 or anchor != "created_at":
            raise Refusal(400, "invalid_request", "expires_after has to be 14 to 30 days")

    async def show_file(self, request: web.Request) -> web.Response:
        file_id = request.match_info["id"]
        self.asked[file_id] += 1
        status = "processed" if self.asked[file_id] > 1 else "pending"
        return web.json_response({**self.file(file_id), "status": status})

    def shown(self, held: Held) -> Json:
        shown = super().shown(held)
        for name in ("created_at", "expires_at"):
            shown[name] = datetime.fromtimestamp(shown[name], UTC).isoformat()
        counts = {"total": None, "completed": None, "failed": None}
        return {**shown, "status": str(shown["status"]).capitalize(), "request_counts": counts}

    async def list_batches(self, request: web.Request) -> web.Response:
        return web.json_response({"value": [self.shown(held) for held in self.batches.values()]})


class OlderAzureServer(AzureServer):
    """The API with a version in its query, beside the paths of deployments."""

    base_path = "/openai"
    line_url = "/chat/completions"

    @property
    def upstream_path(self) -> str:
        return f"{self.base_path}/deployments/{self.model}"

    def is_key(self, request: web.Request) -> bool:
        if request.query.getall("api-version", []) != ["2024-10-21"]:
            raise Refusal(404, "404", "Resource not found")
        return super().is_key(request)
