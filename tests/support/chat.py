"""Chat requests, events and one-route policies that tests of the data path share."""

from __future__ import annotations

import json

PATH = "/v1/chat/completions"
CHAT = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
CHAT_STREAM = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}'
ANSWER = b'{"choices":[{"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}]}'
DONE = b"data: [DONE]\n\n"


def delta(text: str) -> bytes:
    """Return a chunk event with visible content."""
    return b'data: {"choices":[{"index":0,"delta":{"content":%b}}]}\n\n' % json.dumps(text).encode()


def finish(reason: str = "stop") -> bytes:
    """Return the chunk event that ends a choice."""
    return b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"%b"}]}\n\n' % reason.encode()


def chat_policy(*route_lines: str, base_url: str | None = None, upstream: str = "") -> str:
    """Return a policy of one route named `chat`. With `base_url` it defines the upstream `up`.

    `route_lines` are YAML lines of the route, `upstream` further YAML flow entries of the upstream.
    """
    lines = ["version: 1"]
    if base_url is not None:
        lines.append(f"upstreams: {{up: {{base_url: '{base_url}'{', ' + upstream if upstream else ''}}}}}")
    lines += ["routes:", "  - name: chat", f"    match: {{path: {PATH}}}"]
    lines += [f"    {line}" for line in route_lines]
    return "\n".join(lines) + "\n"
