"""OpenRouter: one body that is read as it comes, results in pages, nothing to cancel with, no tags."""

from __future__ import annotations

import json

from aiohttp import web

from proxy.core.upstream import Provider
from tests.support.batch_servers.base import BatchServer, Held, Json, Refusal, chat_answer, check_ids, only


class OpenRouterServer(BatchServer):
    """`/api/v1/batches`."""

    provider = Provider.OPENROUTER
    base_path = "/api/v1"
    model = "openai/gpt-6-luna"
    is_tagged = False
    can_cancel = False

    def __init__(self, *, has_pages: bool = True) -> None:
        super().__init__()
        self.has_pages = has_pages

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_post(f"{self.base_path}/batches", self.create)
        router.add_get(f"{self.base_path}/batches", self.list_batches)
        router.add_get(f"{self.base_path}/batches/{{id}}", self.show)
        router.add_delete(f"{self.base_path}/batches/{{id}}", self.delete)
        if self.has_pages:
            router.add_get(f"{self.base_path}/batches/{{id}}/results", self.page)

    def answer(self, body: Json) -> Json:
        return chat_answer(self.model, body)

    def error(self, status: int, code: str, message: str) -> Json:
        return {"error": {"code": status, "message": message}}

    async def create(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        if list(body)[-1] != "requests":
            raise Refusal(400, "order", "endpoint and model have to come before requests")
        only(body, {"endpoint", "model", "requests"}, {"completion_window", "provider"})
        if body.get("completion_window", "24h") != "24h" or body["endpoint"] != self.endpoint:
            raise Refusal(400, "invalid_value", "window or endpoint")
        check_ids(body["requests"])
        for line in body["requests"]:
            only(line, {"custom_id", "body"}, set())
            if line["body"].get("model", body["model"]) != body["model"]:
                raise Refusal(400, "model_mismatch", "model")
        held = Held(self.new_id("batch-"), body["requests"], body["endpoint"], body["model"])
        self.hold(held, request)
        return web.json_response({**self.shown(held), "status": "validating"}, status=202)

    def shown(self, held: Held) -> Json:
        code, message = self.script.failure
        errors = {"data": [{"code": code, "message": message}]}
        return {
            "id": held.id,
            "object": "batch",
            "endpoint": held.endpoint,
            "model": held.model,
            "status": held.ended or "in_progress",
            "errors": errors if held.ended == "failed" else None,
            "created_at": int(held.created),
            "request_counts": {"total": len(held.lines), "completed": len(self.done(held)), "failed": 0},
        }

    def lines(self, held: Held) -> list[Json]:
        left = [
            {"custom_id": line["custom_id"], "response": None, "error": {"code": f"batch_{held.ended}"}}
            for line in self.undone(held)
        ]
        return [*left, *(self.outcome(line) for line in self.done(held))]

    async def list_batches(self, request: web.Request) -> web.Response:
        held = sorted(self.batches.values(), key=lambda each: each.created, reverse=True)
        ids = [each.id for each in held]
        at = ids.index(request.query["after"]) + 1 if "after" in request.query else 0
        page = [self.shown(self.look(each.id)) for each in held[at : at + 1]]
        last = page[-1]["id"] if page else None
        return web.json_response({"data": page, "has_more": at + 1 < len(ids), "last_id": last})

    async def show(self, request: web.Request) -> web.Response:
        held = self.look(request.match_info["id"])
        shown = self.shown(held)
        if held.ended is not None and not self.has_pages:
            shown["results"] = self.lines(held)
        return web.json_response(shown)

    async def page(self, request: web.Request) -> web.Response:
        held = self.look(request.match_info["id"])
        lines = self.lines(held)
        at = int(request.query.get("cursor") or 0)
        following = str(at + 2) if at + 2 < len(lines) else None
        return web.json_response({"data": lines[at : at + 2], "next_cursor": following})

    async def delete(self, request: web.Request) -> web.Response:
        batch_id = request.match_info["id"]
        if self.batches.pop(batch_id, None) is None:
            raise Refusal(404, "not_found", "there is no such batch")
        self.deleted.append(batch_id)
        return web.Response(status=204)
