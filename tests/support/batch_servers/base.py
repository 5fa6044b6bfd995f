"""What all scripted batch APIs share: a script, batches that end after a few looks, and counters.

The text of a request says what becomes of it: `bad` is refused with 400, `busy` with 429, anything else is
answered. Of a batch that expires or is cancelled the first half has been done.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from proxy.core.upstream import Provider

Json = dict[str, Any]
KEY = "sk-test"


@dataclass
class Held:
    """A batch as a server knows it; `looks` counts how often it was asked for."""

    id: str
    lines: list[Json]
    endpoint: str
    model: str
    created: float = field(default_factory=time.time)
    tag: Json | None = None
    file_id: str | None = None
    looks: int = 0
    ended: str | None = None
    is_cancelling: bool = False
    output: str | None = None
    errors: str | None = None


@dataclass
class Script:
    """What happens: `ending` of batches (completed, failed, expired), `failure` its reason.

    lost      so many creations are done but not answered
    answers   given to the next calls instead of what they asked for: status, body, headers
    is_held   batches stay at work
    """

    ending: str = "completed"
    failure: tuple[str, str] = ("invalid_request", "it is bad")
    lost: int = 0
    answers: list[tuple[int, Any, dict[str, str]]] = field(default_factory=list)
    is_held: bool = False


class Refusal(Exception):
    """A refusal in the dialect's shape."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class BatchServer(ABC):
    """One provider's API; subclasses add the routes below `base_path`."""

    provider: Provider
    base_path = "/v1"
    endpoint = "/v1/chat/completions"
    model = "some-model"
    key_header = "Authorization"
    is_tagged = True
    """The provider lists our tag, or our file."""
    tells_undone = True
    """What was not done has a line that says so."""
    can_cancel = True
    may_fail = True
    """A batch can be refused after its creation."""

    @property
    def upstream_path(self) -> str:
        """The path of the base URL that an operator configures."""
        return self.base_path

    def __init__(self) -> None:
        self.script = Script()
        self.batches: dict[str, Held] = {}
        self.executions: Counter[str] = Counter()
        self.deleted: list[str] = []
        self.seen: list[web.Request] = []

    @abstractmethod
    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Add the API's routes."""

    @abstractmethod
    def answer(self, body: Json) -> Json:
        """Return the answer to a request."""

    def error(self, status: int, code: str, message: str) -> Json:
        """Return an error's body."""
        return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}

    def body(self, text: str) -> Json:
        """Return a request that the API takes."""
        return {"model": self.model, "messages": [{"role": "user", "content": text}]}

    def app(self) -> web.Application:
        """Return the API as an application."""
        app = web.Application(middlewares=[self._guard], client_max_size=1 << 26)
        self.add_routes(app.router)
        return app

    def is_key(self, request: web.Request) -> bool:
        """Tell whether a request brings the key as the dialect wants it."""
        wanted = f"Bearer {KEY}" if self.key_header == "Authorization" else KEY
        return request.headers.get(self.key_header) == wanted

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        self.seen.append(request)
        if self.script.answers or not request.content_type.startswith("multipart/"):
            await request.read()  # a handler reads a form by itself
        if self.script.answers:
            status, body, headers = self.script.answers.pop(0)
            if isinstance(body, str):
                return web.Response(status=status, text=body, headers=headers, content_type="text/html")
            return web.json_response(body, status=status, headers=headers)
        try:
            if not self.is_key(request):
                raise Refusal(401, "invalid_api_key", "that is no key")
            return await handler(request)
        except Refusal as refusal:
            return web.json_response(
                self.error(refusal.status, refusal.code, str(refusal)), status=refusal.status
            )

    # ---- batches

    def hold(self, held: Held, request: web.Request) -> None:
        """Keep a new batch; drop the line where the script says that the answer is lost."""
        self.batches[held.id] = held
        if self.script.lost:
            self.script.lost -= 1
            assert request.transport is not None
            request.transport.close()

    def new_id(self, prefix: str) -> str:
        """Return an id that was not given before."""
        return f"{prefix}{len(self.batches) + len(self.seen):04d}"

    def look(self, batch_id: str) -> Held:
        """Return a batch, a little further than at the last look."""
        held = self.batches.get(batch_id)
        if held is None:
            raise Refusal(404, "not_found", "there is no such batch")
        held.looks += 1
        if held.ended is None and held.looks > 1 and (held.is_cancelling or not self.script.is_held):
            self.end(held, "cancelled" if held.is_cancelling else self.script.ending)
        return held

    def end(self, held: Held, ending: str) -> None:
        """End a batch; what it did is counted."""
        held.ended = ending
        for line in self.done(held):
            self.executions[line["custom_id"]] += 1

    def done(self, held: Held) -> list[Json]:
        """Return the lines that were worked on, the last first."""
        if held.ended in (None, "failed"):
            return []
        half = (len(held.lines) + 1) // 2
        return list(reversed(held.lines if held.ended == "completed" else held.lines[:half]))

    def undone(self, held: Held) -> list[Json]:
        """Return the lines that were not, of a batch that ended early."""
        if held.ended not in ("expired", "cancelled"):
            return []
        return held.lines[(len(held.lines) + 1) // 2 :]

    def cancel(self, batch_id: str) -> Held:
        """Begin to cancel a batch; one that has ended is refused."""
        held = self.batches.get(batch_id)
        if held is None:
            raise Refusal(404, "not_found", "there is no such batch")
        if held.ended is not None:
            raise Refusal(409, "conflict", "it has ended")
        held.is_cancelling = True
        return held

    def fate(self, body: Json) -> str:
        """Return `bad`, `busy` or `good`."""
        text = str(body.get("messages"))
        return "bad" if "bad" in text else "busy" if "busy" in text else "good"

    def outcome(self, line: Json) -> Json:
        """Return what an OpenAI-shaped result line tells of a request that was worked on."""
        body = line["body"]
        match self.fate(body):
            case "bad":
                response = {"status_code": 400, "body": self.error(400, "bad_value", "it is bad")}
            case "busy":
                response = {"status_code": 429, "body": self.error(429, "rate_limit_exceeded", "later")}
            case _:
                response = {"status_code": 200, "body": self.answer(body)}
        return {
            "id": f"batch_req_{line['custom_id']}",
            "custom_id": line["custom_id"],
            "response": {"request_id": "req_1", **response},
            "error": None,
        }


def chat_answer(model: str, body: Json) -> Json:
    """Return a completion that repeats what it was asked."""
    text = body["messages"][-1]["content"]
    message = {"role": "assistant", "content": f"re: {text}"}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
    }


def only(body: Json, required: set[str], optional: set[str]) -> None:
    """Refuse a body with other keys."""
    if not required <= set(body) <= required | optional:
        raise Refusal(400, "unknown_parameter", f"keys {sorted(body)}")


def check_ids(lines: list[Json]) -> None:
    """Refuse a batch without lines, or with an id twice."""
    ids = [line.get("custom_id") for line in lines]
    if not ids or len(set(ids)) != len(ids) or not all(isinstance(each, str) for each in ids):
        raise Refusal(400, "duplicate_custom_id", "ids")
