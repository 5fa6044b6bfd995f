"""Gemini: batches by the OpenAI-compatible endpoint, files by Google's own paths and key header."""

from __future__ import annotations

import json

from aiohttp import BodyPartReader, web

from proxy.core.upstream import Provider
from tests.support.batch_servers.base import KEY, Json, Refusal
from tests.support.batch_servers.openai import OpenAiServer


class GeminiServer(OpenAiServer):
    """`/v1beta/openai`."""

    provider = Provider.GEMINI
    base_path = "/v1beta/openai"
    model = "gemini-3.8-flash"

    def add_routes(self, router: web.UrlDispatcher) -> None:
        base = self.base_path
        router.add_post("/upload/v1beta/files", self.upload)
        router.add_get("/v1beta/files", self.list_files)
        router.add_delete("/v1beta/files/{id}", self.delete_file)
        router.add_get("/download/v1beta/files/{id}:download", self.content)
        router.add_post(f"{base}/batches", self.create)
        router.add_get(f"{base}/batches", self.list_batches)
        router.add_get(f"{base}/batches/{{id}}", self.show)
        router.add_post(f"{base}/batches/{{id}}/cancel", self.stop)

    def is_key(self, request: web.Request) -> bool:
        if request.path.startswith(self.base_path):
            return request.headers.get("Authorization") == f"Bearer {KEY}"
        return request.headers.get("x-goog-api-key") == KEY and "Authorization" not in request.headers

    async def upload(self, request: web.Request) -> web.Response:
        if request.headers.get("X-Goog-Upload-Protocol") != "multipart":
            raise Refusal(400, "invalid_argument", "protocol")
        reader = await request.multipart()
        metadata = await reader.next()
        assert isinstance(metadata, BodyPartReader)
        # Parts come one after the other: the second is read after the first.
        told = json.loads(await metadata.read())["file"]
        content = await reader.next()
        assert isinstance(content, BodyPartReader)
        file_id = f"files/{self.new_id('in')}"
        self.files[file_id] = (told["displayName"], bytes(await content.read()))
        return web.json_response({"file": self.google_file(file_id)})

    def google_file(self, name: str) -> Json:
        display, content = self.files[name]
        return {"name": name, "displayName": display, "sizeBytes": str(len(content)), "state": "ACTIVE"}

    async def list_files(self, request: web.Request) -> web.Response:
        # One on a page: whoever wants all of them has to turn pages.
        names = [each for each in self.files if each not in self.results()]
        at = int(request.query.get("pageToken") or 0)
        page: Json = {"files": [self.google_file(name) for name in names[at : at + 1]]}
        if at + 1 < len(names):
            page["nextPageToken"] = str(at + 1)
        return web.json_response(page if names else {})

    async def content(self, request: web.Request) -> web.Response:
        if request.query.get("alt") != "media":
            raise Refusal(400, "invalid_argument", "alt")
        name = f"files/{request.match_info['id']}"
        self.file(name)
        return web.Response(body=self.files[name][1])

    async def delete_file(self, request: web.Request) -> web.Response:
        name = f"files/{request.match_info['id']}"
        self.file(name)
        del self.files[name]
        self.deleted.append(name)
        return web.json_response({})

    def _result(self, lines: list[Json]) -> str:
        name = super()._result(lines)
        self.files[f"files/{name}"] = self.files.pop(name)
        return f"files/{name}"
