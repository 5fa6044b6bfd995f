"""OpenAI: files up, files down, everything strict. The other dialects of its shape change what they spell
otherwise.
"""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from proxy.core.upstream import Provider
from tests.support.batch_servers.base import (
    BatchServer,
    Held,
    Json,
    Refusal,
    chat_answer,
    check_ids,
    only,
)


class OpenAiServer(BatchServer):
    """`/v1/files` and `/v1/batches`."""

    provider = Provider.OPENAI
    purpose = "batch"
    upload_path = "/files"
    form_fields: frozenset[str] = frozenset({"purpose", "file"})
    part_type = "application/jsonl"
    windows: frozenset[str] = frozenset({"24h"})
    line_url = "/v1/chat/completions"
    creation_keys: tuple[frozenset[str], frozenset[str]] = (
        frozenset({"input_file_id", "endpoint", "completion_window"}),
        frozenset({"metadata", "output_expires_after"}),
    )

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, tuple[str, bytes]] = {}

    def add_routes(self, router: web.UrlDispatcher) -> None:
        base = self.base_path
        router.add_post(f"{base}{self.upload_path}", self.upload)
        router.add_get(f"{base}/files", self.list_files)
        router.add_get(f"{base}/files/{{id}}", self.show_file)
        router.add_get(f"{base}/files/{{id}}/content", self.content)
        router.add_delete(f"{base}/files/{{id}}", self.delete_file)
        router.add_post(f"{base}/batches", self.create)
        router.add_get(f"{base}/batches", self.list_batches)
        router.add_get(f"{base}/batches/{{id}}", self.show)
        router.add_post(f"{base}/batches/{{id}}/cancel", self.stop)

    def answer(self, body: Json) -> Json:
        return chat_answer(self.model, body)

    # ---- files

    async def upload(self, request: web.Request) -> web.Response:
        form = await request.post()
        if set(form) != self.form_fields or form["purpose"] != self.purpose:
            raise Refusal(400, "invalid_form", f"fields {sorted(form)}")
        self.check_form(dict(form))
        file = form["file"]
        assert isinstance(file, web.FileField)
        if file.content_type != self.part_type:
            raise Refusal(400, "invalid_form", f"a part of type {file.content_type}")
        file_id = self.new_id("file-")
        self.files[file_id] = (file.filename, file.file.read())
        return web.json_response(self.file(file_id))

    def check_form(self, form: dict[str, Any]) -> None:
        """Refuse form fields with a wrong value."""

    def file(self, file_id: str) -> Json:
        """Return a file as it is shown."""
        if file_id not in self.files:
            raise Refusal(404, "not_found", "there is no such file")
        name, content = self.files[file_id]
        return {
            "id": file_id,
            "object": "file",
            "bytes": len(content),
            "filename": name,
            "purpose": self.purpose,
            "status": "processed",
        }

    async def list_files(self, request: web.Request) -> web.Response:
        if request.query.get("purpose", self.purpose) != self.purpose:
            raise Refusal(400, "invalid_value", "purpose")
        listed = [self.file(each) for each in self.files if each not in self.results()]
        return web.json_response({"object": "list", "data": listed, "has_more": False})

    def results(self) -> set[str]:
        """Return the ids of result files."""
        pairs = ((held.output, held.errors) for held in self.batches.values())
        return {each for pair in pairs for each in pair if each is not None}

    async def show_file(self, request: web.Request) -> web.Response:
        return web.json_response(self.file(request.match_info["id"]))

    async def content(self, request: web.Request) -> web.Response:
        self.file(request.match_info["id"])
        return web.Response(body=self.files[request.match_info["id"]][1])

    async def delete_file(self, request: web.Request) -> web.Response:
        file_id = request.match_info["id"]
        self.file(file_id)
        del self.files[file_id]
        self.deleted.append(file_id)
        return web.json_response({"id": file_id, "object": "file", "deleted": True})

    # ---- batches

    async def create(self, request: web.Request) -> web.Response:
        body = await request.json()
        only(body, set(self.creation_keys[0]), set(self.creation_keys[1]))
        if body["completion_window"] not in self.windows:
            raise Refusal(400, "invalid_value", "completion_window")
        if body["endpoint"] != self.line_url:
            raise Refusal(400, "url_mismatch", "endpoint")
        self.check_creation(body)
        file_id = body["input_file_id"]
        self.file(file_id)
        lines = [json.loads(line) for line in self.files[file_id][1].splitlines()]
        check_ids(lines)
        for line in lines:
            only(line, {"custom_id", "method", "url", "body"}, set())
            if (line["method"], line["url"]) != ("POST", self.line_url):
                raise Refusal(400, "url_mismatch", "url")
            if line["body"]["model"] != lines[0]["body"]["model"] or "stream" in line["body"]:
                raise Refusal(400, "model_mismatch", "model")
        batch_id = self.new_id("batch_")
        held = Held(batch_id, lines, body["endpoint"], self.model, tag=body.get("metadata"), file_id=file_id)
        self.hold(held, request)
        return web.json_response(self.created(held))

    def check_creation(self, body: Json) -> None:
        """Refuse a creation with a wrong value."""

    def created(self, held: Held) -> Json:
        """Return the answer to a creation."""
        return self.shown(held)

    def shown(self, held: Held) -> Json:
        """Return a batch as it is shown."""
        status = "cancelling" if held.is_cancelling and held.ended is None else held.ended or "in_progress"
        code, message = self.script.failure
        errors = {"object": "list", "data": [{"code": code, "message": message, "line": None, "param": None}]}
        return {
            "id": held.id,
            "object": "batch",
            "endpoint": held.endpoint,
            "input_file_id": held.file_id,
            "completion_window": "24h",
            "status": status,
            "errors": errors if held.ended == "failed" else None,
            "output_file_id": held.output,
            "error_file_id": held.errors,
            "created_at": int(held.created),
            "expires_at": int(held.created) + 86_400,
            "request_counts": {
                "total": len(held.lines),
                "completed": len(self.done(held)),
                "failed": 0,
            },
            "metadata": held.tag,
        }

    async def list_batches(self, request: web.Request) -> web.Response:
        newest_first = sorted(self.batches.values(), key=lambda held: held.created, reverse=True)
        data = [self.shown(held) for held in newest_first]
        return web.json_response({"object": "list", "data": data, "has_more": False})

    async def show(self, request: web.Request) -> web.Response:
        return web.json_response(self.shown(self.look(request.match_info["id"])))

    async def stop(self, request: web.Request) -> web.Response:
        return web.json_response(self.shown(self.cancel(request.match_info["id"])))

    def end(self, held: Held, ending: str) -> None:
        super().end(held, ending)
        outcomes = [self.outcome(line) for line in self.done(held)]
        good = [each for each in outcomes if each["response"]["status_code"] == 200]
        bad = [each for each in outcomes if each["response"]["status_code"] != 200]
        bad += [
            {"custom_id": line["custom_id"], "response": None, "error": {"code": f"batch_{ending}"}}
            for line in self.undone(held)
        ]
        if good:
            held.output = self._result(good)
        if bad or self.always_error_file:
            held.errors = self._result(bad)

    always_error_file = False

    def _result(self, lines: list[Json]) -> str:
        file_id = f"file-out-{len(self.files)}-{len(self.deleted)}"
        self.files[file_id] = ("out", b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        return file_id
