"""Anthropic: Message Batches: counts are zero until all is over, results come as one stream, no tags."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

from aiohttp import web

from proxy.core.upstream import Provider
from tests.support.batch_servers.base import BatchServer, Held, Json, Refusal, check_ids, only


class AnthropicServer(BatchServer):
    """`/v1/messages/batches`."""

    provider = Provider.ANTHROPIC
    endpoint = "/v1/messages"
    model = "claude-haiku-4-5"
    key_header = "x-api-key"
    is_tagged = False
    may_fail = False

    def add_routes(self, router: web.UrlDispatcher) -> None:
        base = "/v1/messages/batches"
        router.add_post(base, self.create)
        router.add_get(base, self.list_batches)
        router.add_get(f"{base}/{{id}}", self.show)
        router.add_delete(f"{base}/{{id}}", self.delete)
        router.add_post(f"{base}/{{id}}/cancel", self.stop)
        router.add_get(f"{base}/{{id}}/results", self.results)

    def is_key(self, request: web.Request) -> bool:
        if request.headers.get("anthropic-version") != "2026-10-21":
            raise Refusal(400, "invalid_request_error", "anthropic-version: header is required")
        return super().is_key(request)

    def error(self, status: int, code: str, message: str) -> Json:
        kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
        return {
            "type": "error",
            "error": {"type": kinds.get(status, "invalid_request_error"), "message": message},
        }

    def body(self, text: str) -> Json:
        return {**super().body(text), "max_tokens": 10}

    def answer(self, body: Json) -> Json:
        content = body["messages"][-1]["content"]
        text = content if isinstance(content, str) else content[0]["text"]
        return {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": [{"type": "text", "text": f"re: {text}"}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 5, "output_tokens": 2, "service_tier": "batch"},
        }

    async def create(self, request: web.Request) -> web.Response:
        body = await request.json()
        only(body, {"requests"}, set())
        check_ids(body["requests"])
        for each in body["requests"]:
            only(each, {"custom_id", "params"}, set())
            params = each["params"]
            if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", each["custom_id"]) is None:
                raise Refusal(400, "invalid_request_error", "custom_id")
            if params.get("stream") or "speed" in params or not params.get("max_tokens"):
                raise Refusal(400, "invalid_request_error", "params")
        lines = [{"custom_id": each["custom_id"], "body": each["params"]} for each in body["requests"]]
        held = Held(self.new_id("msgbatch_"), lines, self.endpoint, self.model)
        self.hold(held, request)
        return web.json_response(self.shown(held))

    def shown(self, held: Held) -> Json:
        counts = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
        if held.ended is None:
            counts["processing"] = len(held.lines)
        else:
            for line in self.done(held):
                counts["succeeded" if self.fate(line["body"]) == "good" else "errored"] += 1
            if held.ended in ("expired", "cancelled"):
                word = "expired" if held.ended == "expired" else "canceled"
                counts[word] = len(self.undone(held))
        status = "ended" if held.ended else "canceling" if held.is_cancelling else "in_progress"
        moment = datetime.fromtimestamp(held.created, UTC).isoformat().replace("+00:00", "Z")
        return {
            "id": held.id,
            "type": "message_batch",
            "processing_status": status,
            "request_counts": counts,
            "created_at": moment,
            "expires_at": moment,
            "ended_at": moment if held.ended else None,
            "cancel_initiated_at": moment if held.is_cancelling else None,
            "archived_at": None,
            # Nobody has to follow where this leads.
            "results_url": f"https://elsewhere.invalid/{held.id}" if held.ended else None,
        }

    async def list_batches(self, request: web.Request) -> web.Response:
        held = sorted(self.batches.values(), key=lambda each: each.created, reverse=True)
        ids = [each.id for each in held]
        at = ids.index(request.query["after_id"]) + 1 if "after_id" in request.query else 0
        page = [self.shown(self.look(each.id)) for each in held[at : at + 1]]
        return web.json_response(
            {
                "data": page,
                "has_more": at + 1 < len(ids),
                "first_id": page[0]["id"] if page else None,
                "last_id": page[-1]["id"] if page else None,
            }
        )

    async def show(self, request: web.Request) -> web.Response:
        return web.json_response(self.shown(self.look(request.match_info["id"])))

    async def stop(self, request: web.Request) -> web.Response:
        return web.json_response(self.shown(self.cancel(request.match_info["id"])))

    async def results(self, request: web.Request) -> web.Response:
        held = self.look(request.match_info["id"])
        if held.ended is None:
            raise Refusal(404, "not_found_error", "there are no results yet")
        lines: list[Json] = []
        for line in self.undone(held):
            kind = "expired" if held.ended == "expired" else "canceled"
            lines.append({"custom_id": line["custom_id"], "result": {"type": kind}})
        for line in self.done(held):
            lines.append({"custom_id": line["custom_id"], "result": self.result(line["body"])})
        text = "".join(json.dumps(line) + "\n" for line in lines)
        return web.Response(text=text, content_type="application/x-jsonl")

    def result(self, body: Json) -> Json:
        fate = self.fate(body)
        if fate == "good":
            return {"type": "succeeded", "message": self.answer(body)}
        return {"type": "errored", "error": self.error(400 if fate == "bad" else 429, "", f"it is {fate}")}

    async def delete(self, request: web.Request) -> web.Response:
        batch_id = request.match_info["id"]
        held = self.batches.get(batch_id)
        if held is None:
            raise Refusal(404, "not_found_error", "there is no such batch")
        if held.ended is None:
            raise Refusal(400, "invalid_request_error", "it has not ended")
        del self.batches[batch_id]
        self.deleted.append(batch_id)
        return web.json_response({"id": batch_id, "type": "message_batch_deleted"})
