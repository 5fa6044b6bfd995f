"""Mistral: jobs with inline requests that have neither method nor address, and words of its own."""

from __future__ import annotations

import json

from aiohttp import web

from proxy.core.upstream import Provider
from tests.support.batch_servers.base import BatchServer, Held, Json, Refusal, chat_answer, check_ids, only

_WORDS = {
    None: "RUNNING",
    "completed": "SUCCESS",
    "failed": "FAILED",
    "expired": "TIMEOUT_EXCEEDED",
    "cancelled": "CANCELLED",
}


class MistralServer(BatchServer):
    """`/v1/batch/jobs`."""

    provider = Provider.MISTRAL
    model = "mistral-small-latest"
    tells_undone = False

    def __init__(self, *, has_files: bool = False) -> None:
        super().__init__()
        self.has_files = has_files
        self.files: dict[str, bytes] = {}

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_post("/v1/batch/jobs", self.create)
        router.add_get("/v1/batch/jobs", self.list_batches)
        router.add_get("/v1/batch/jobs/{id}", self.show)
        router.add_delete("/v1/batch/jobs/{id}", self.delete)
        router.add_post("/v1/batch/jobs/{id}/cancel", self.stop)
        router.add_get("/v1/files/{id}/content", self.content)
        router.add_delete("/v1/files/{id}", self.delete_file)

    def answer(self, body: Json) -> Json:
        return chat_answer(self.model, body)

    def error(self, status: int, code: str, message: str) -> Json:
        return {"object": "error", "message": message, "type": code, "code": None}

    async def create(self, request: web.Request) -> web.Response:
        body = await request.json()
        only(body, {"endpoint", "model", "requests"}, {"metadata", "timeout_hours"})
        if body["endpoint"] != self.endpoint or not 1 <= body["timeout_hours"] <= 168:
            raise Refusal(422, "invalid_request", "endpoint or timeout")
        check_ids(body["requests"])
        for line in body["requests"]:
            only(line, {"custom_id", "body"}, set())
        job_id = self.new_id("job-")
        held = Held(job_id, body["requests"], body["endpoint"], body["model"], tag=body.get("metadata"))
        self.hold(held, request)
        return web.json_response(self.shown(held))

    def shown(self, held: Held) -> Json:
        word = "CANCELLATION_REQUESTED" if held.is_cancelling and held.ended is None else _WORDS[held.ended]
        return {
            "id": held.id,
            "object": "batch",
            "input_files": [],
            "metadata": held.tag,
            "endpoint": held.endpoint,
            "model": held.model,
            "status": word,
            "created_at": int(held.created),
            "errors": [{"message": self.script.failure[1], "count": 1}] if held.ended == "failed" else [],
            "total_requests": len(held.lines),
            "completed_requests": len(self.done(held)),
            "succeeded_requests": len(self.done(held)),
            "failed_requests": 0,
            "output_file": held.output,
            "error_file": held.errors,
            "outputs": None,
        }

    def outcomes(self, held: Held) -> list[Json]:
        return [self.outcome(line) for line in self.done(held)]

    def end(self, held: Held, ending: str) -> None:
        super().end(held, ending)
        if self.has_files and self.done(held):
            held.output = f"file-{held.id}"
            lines = [json.dumps(each).encode() for each in self.outcomes(held)]
            self.files[held.output] = b"\n".join(lines)

    async def list_batches(self, request: web.Request) -> web.Response:
        if request.query.get("order_by") != "-created" or request.query.get("page") != "0":
            raise Refusal(422, "invalid_request", "query")
        data = [self.shown(held) for held in self.batches.values()]
        return web.json_response({"object": "list", "total": len(data), "data": data})

    async def show(self, request: web.Request) -> web.Response:
        held = self.look(request.match_info["id"])
        shown = self.shown(held)
        if request.query.get("inline") == "true" and held.output is None:
            shown["outputs"] = self.outcomes(held)
        return web.json_response(shown)

    async def stop(self, request: web.Request) -> web.Response:
        return web.json_response(self.shown(self.cancel(request.match_info["id"])))

    async def delete(self, request: web.Request) -> web.Response:
        job_id = request.match_info["id"]
        if self.batches.pop(job_id, None) is None:
            raise Refusal(404, "not_found", "there is no such job")
        self.deleted.append(job_id)
        return web.json_response({"id": job_id, "object": "batch", "deleted": True})

    async def content(self, request: web.Request) -> web.Response:
        return web.Response(body=self.files[request.match_info["id"]])

    async def delete_file(self, request: web.Request) -> web.Response:
        file_id = request.match_info["id"]
        if self.files.pop(file_id, None) is None:
            raise Refusal(404, "not_found", "there is no such file")
        self.deleted.append(file_id)
        return web.json_response({"deleted": True})
