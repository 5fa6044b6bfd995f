"""An upstream that bills prompts as GPT-5.6 and Anthropic do: by what its cache holds, at breakpoints only.

Rules (OpenAI's and Anthropic's prompt caching guides): a prefix is written where a breakpoint stands, at most
four of them; OpenAI sets one on the last user or tool message unless `mode` is `explicit`; what was written
is found again before the last breakpoint of a later prompt; nothing below 1,024 tokens is cached; reading
costs a tenth, writing a quarter more than plain input. Four characters are a token.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from tests.support.raw_upstream import Call

LEAST_TOKENS = 1024
READ, PLAIN, WRITE = 0.1, 1.0, 1.25
_MOST_WRITES = 4


class CachingProvider:
    """A script for `RawUpstream`. `bills` has the price of each prompt, in plain input tokens, in order."""

    def __init__(self, refuses: tuple[str, ...] = ()) -> None:
        self.bills: list[float] = []
        self.refused = 0
        self.keys: list[Any] = []
        self._refuses = refuses
        self._known: set[tuple[Any, ...]] = set()
        self._lock = threading.Lock()

    def __call__(self, call: Call) -> None:
        """Answer one request with its bill."""
        request = json.loads(call.body)
        found = next((name for name in self._refuses if f'"{name}"'.encode() in call.body), None)
        with self._lock:
            if found is not None:
                self.refused += 1
                error = {"message": f"Unknown parameter: '{found}'.", "param": None}
                call.json(json.dumps({"error": error}).encode(), b"400 Bad Request")
                return
            self.bills.append(self._bill(request))
            self.keys.append(request.get("prompt_cache_key"))
        call.json(b'{"choices":[{"message":{"content":"ok"},"finish_reason":"stop"}]}')

    def _bill(self, request: Mapping[str, Any]) -> float:
        scope = (request["model"], request.get("prompt_cache_key"))
        prefix: tuple[str, ...] = ()
        total = found = read = 0
        marks: list[tuple[tuple[str, ...], int]] = []
        for text, is_marked in _blocks(request):
            prefix = (*prefix, text)
            total += len(text) // 4
            if (scope, prefix) in self._known:
                found = total
            if is_marked and total >= LEAST_TOKENS:
                marks.append((prefix, total))
                read = found
        written = max((tokens for _, tokens in marks[-_MOST_WRITES:]), default=0)
        for mark, _ in marks[-_MOST_WRITES:]:
            self._known.add((scope, mark))
        tokens = max(0, written - read)
        return read * READ + tokens * WRITE + (total - read - tokens) * PLAIN


def _blocks(request: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield the texts of a prompt in order, and whether a breakpoint stands behind each."""
    messages = request["messages"]
    if "system" in request:
        messages = [{"role": "system", "content": request["system"]}, *messages]
    is_explicit = "max_tokens" in request or request.get("prompt_cache_options") == {"mode": "explicit"}
    last = max(index for index, message in enumerate(messages) if message["role"] in ("user", "tool"))
    for index, message in enumerate(messages):
        content = message["content"]
        parts = [{"text": content}] if isinstance(content, str) else content
        for place, part in enumerate(parts):
            is_implicit = not is_explicit and index == last and place == len(parts) - 1
            is_marked = "prompt_cache_breakpoint" in part or "cache_control" in part
            yield f"{message['role']}:{part['text']}", is_marked or is_implicit
