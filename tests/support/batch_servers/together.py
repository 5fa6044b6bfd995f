"""Together: UPPERCASE states, what is created comes wrapped, lists come bare, and nothing keeps a tag."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from proxy.core.upstream import Provider
from tests.support.batch_servers.base import Held, Json, Refusal
from tests.support.batch_servers.openai import OpenAiServer


class TogetherServer(OpenAiServer):
    """`/v1`."""

    provider = Provider.TOGETHER
    model = "meta-llama/Llama-3.3-70B-Instruct-Turbo"
    purpose = "batch-api"
    upload_path = "/files/upload"
    form_fields = frozenset({"purpose", "file", "file_name", "file_type"})
    creation_keys = (
        frozenset({"input_file_id", "endpoint"}),
        frozenset({"completion_window", "model_id", "priority"}),
    )

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_post(f"{self.base_path}/files", self.to_storage)
        super().add_routes(router)

    async def to_storage(self, request: web.Request) -> web.Response:
        raise web.HTTPFound("https://storage.invalid/upload")

    def check_form(self, form: dict[str, Any]) -> None:
        if form["file_type"] != "jsonl" or not form["file_name"].endswith(".jsonl"):
            raise Refusal(400, "invalid_form", "type of the file")

    def file(self, file_id: str) -> Json:
        shown = super().file(file_id)
        del shown["status"]
        return {**shown, "FileType": "jsonl", "processing_status": "COMPLETED"}

    async def show_file(self, request: web.Request) -> web.Response:
        file_id = request.match_info["id"]
        self.asked[file_id] += 1
        state = "COMPLETED" if self.asked[file_id] > 1 else "RUNNING"
        return web.json_response({**self.file(file_id), "processing_status": state})

    def check_creation(self, body: Json) -> None:
        if self.asked[body["input_file_id"]] < 2:
            raise Refusal(400, "invalid_request", "the file is not checked")

    def created(self, held: Held) -> Json:
        return {"job": self.shown(held), "warning": None}

    def shown(self, held: Held) -> Json:
        shown = super().shown(held)
        kept = ("id", "endpoint", "input_file_id", "output_file_id", "error_file_id")
        words = {"cancelling": "IN_PROGRESS"}
        return {
            **{name: shown[name] for name in kept},
            "status": words.get(shown["status"], str(shown["status"]).upper()),
            "error": self.script.failure[1] if held.ended == "failed" else None,
            "progress": 100.0 if held.ended else 0.0,
            "created_at": datetime.fromtimestamp(held.created, UTC).isoformat(),
            "job_deadline": datetime.fromtimestamp(held.created + 86_400, UTC).isoformat(),
        }

    async def list_batches(self, request: web.Request) -> web.Response:
        return web.json_response([self.shown(held) for held in self.batches.values()])
