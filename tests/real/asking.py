"""How the tests of llama.cpp's server ask, and what of two of its answers may differ."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

from tests.real.registry import KEY
from tests.real.served import Setup
from tests.support.raw_client import RawAnswer, RawClient

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
QUESTION = [{"role": "user", "content": "Where is the water?"}]
STEADY: dict[str, Any] = {"temperature": 0, "seed": 1}
BEARER = (("Authorization", f"Bearer {KEY}"),)
ANEW = (
    (re.compile(rb'"timings":\{[^{}]*\}'), b'"timings":{}'),
    (re.compile(rb'"(created|created_at)":\d+'), rb'"\1":0'),
    (re.compile(rb"(chatcmpl-|resp_|msg_)[0-9A-Za-z]{32}"), rb"\1anew"),
)


def ask(client: RawClient, path: str, headers: tuple[tuple[str, str], ...] = (), **body: Any) -> RawAnswer:
    return client.request("POST", path, json.dumps(body).encode(), headers)


def directly(setup: Setup) -> RawClient:
    host, _, port = setup.server.url.removeprefix("http://").partition(":")
    return RawClient((host, int(port)))


def settled(body: bytes) -> bytes:
    """Return a body without what the server makes anew for each answer; every other byte stays."""
    for pattern, replacement in ANEW:
        body = pattern.sub(replacement, body)
    return body


def events(body: bytes) -> list[bytes]:
    """Return a stream's events without comments, in an order that does not depend on the order of choices."""
    assert body.endswith(b"\n\n")
    return sorted(event for event in settled(body).split(b"\n\n")[:-1] if not event.startswith(b":"))


def wait_until(happened: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
