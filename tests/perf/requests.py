"""The requests that the benchmark sends: chat completions as an SDK writes them."""

from __future__ import annotations

import json

_HEADERS = (
    "Host: 127.0.0.1:{port}\r\nAccept: application/json\r\nContent-Type: application/json\r\n"
    "User-Agent: OpenAI/Python 2.0.0\r\nX-Stainless-Lang: python\r\nX-Stainless-Runtime: CPython\r\n"
    "Authorization: Bearer sk-bench\r\n"
)
_SENTENCE = "The weir holds back what can wait and lets through what cannot. "


def chat_body(size_bytes: int, *, stream: bool = False) -> bytes:
    """Return a chat completion request of about `size_bytes`, as a conversation of several turns."""
    head: dict[str, object] = {"model": "gpt-4o-mini", **({"stream": True} if stream else {})}
    messages = [{"role": "system", "content": "You answer questions about rivers."}]
    turn_bytes = min(4096, max(64, size_bytes // 6))
    while len(json.dumps({**head, "messages": messages})) + turn_bytes + 40 < size_bytes:
        role = "user" if len(messages) % 2 else "assistant"
        messages.append(
            {"role": role, "content": (_SENTENCE * (turn_bytes // len(_SENTENCE) + 1))[:turn_bytes]}
        )
    messages.append({"role": "user", "content": "What is a weir?"})
    return json.dumps({**head, "messages": messages, "temperature": 0.2}, separators=(",", ":")).encode()


def raw_request(port: int, body: bytes, extra: str = "") -> bytes:
    """Return the bytes of a request with `body`; `extra` are further header lines, each with its line end."""
    head = f"POST /v1/chat/completions HTTP/1.1\r\n{_HEADERS.format(port=port)}{extra}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
