"""Chat and completions chunks put together again: see `proxy.dialects.assembled_answer`.

Text grows; a name, a role or an id is said once, however often a server repeats it; lists of numbered parts
(tool calls) are joined by their number, other lists grow; of everything else the last value that is not null
counts. Fields that nobody documents follow the same rules.
"""

from __future__ import annotations

from typing import Any

from proxy.core.json_values import decode
from proxy.core.sse import event_data
from proxy.dialects.openai_events import compact_json

_GROWING = frozenset(
    {
        "arguments",
        "content",
        "input",
        "reasoning",
        "reasoning_content",
        "reasoning_text",
        "refusal",
        "summary",
        "text",
        "thinking",
    }
)
_ENVELOPE_LEFT_OUT = frozenset({"choices", "object", "obfuscation", "usage"})


class _Text(list[str]):
    """A text that is still growing, so that a long one is not copied for each piece."""


class ChunkAssembler:
    """One stream of chunks. `kind` is the complete answer's `object`.

    It is complete with so many `choices`, and not without usage where that is needed: a stream may break off
    between one choice's end and another's beginning, and before its usage.
    """

    def __init__(self, kind: str, choices: int = 1, needs_usage: bool = False) -> None:
        self.size_bytes = 0
        self._kind = kind
        self._wanted_choices = choices
        self._needs_usage = needs_usage
        self._envelope: dict[str, Any] = {}
        self._usage: Any = None
        self._choices: dict[int, dict[str, Any]] = {}
        self._is_done = False

    def take(self, event: bytes) -> None:
        """Read one chunk."""
        data = event_data(event)
        if data.startswith(b"[DONE]"):
            self._is_done = True
            return
        chunk = decode(data) if data[:1] == b"{" else None
        if not isinstance(chunk, dict):
            return
        for key, value in chunk.items():
            if key not in _ENVELOPE_LEFT_OUT and self._envelope.get(key) is None:
                self._envelope[key] = value
        usage = chunk.get("usage") or _usage_of_groq(chunk)
        if usage is not None:
            self._usage = usage
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                self._grow(choice)
        self.size_bytes += len(data) if choices else 0

    def _grow(self, choice: dict[str, Any]) -> None:
        index = choice.get("index", 0)
        if not isinstance(index, int):
            return
        grown = self._choices.setdefault(index, {"index": index})
        delta = choice.get("delta")
        if isinstance(delta, dict):
            _merge(grown.setdefault("message", {}), delta)
        _merge(grown, {key: value for key, value in choice.items() if key not in ("delta", "index")})

    @property
    def has_ended(self) -> bool:
        """Whether `[DONE]` has come, or the end of each choice."""
        return self._is_done or (
            len(self._choices) >= self._wanted_choices
            and all(choice.get("finish_reason") for choice in self._choices.values())
        )

    def body(self) -> bytes | None:
        """Return the complete answer, `None` before its last word or where something is missing."""
        choices = [self._choices[index] for index in sorted(self._choices)]
        is_short = len(choices) < self._wanted_choices or (self._needs_usage and self._usage is None)
        if is_short or not self.has_ended:
            return None
        answer = {
            **self._envelope,
            "object": self._kind,
            "choices": [_finished_choice(choice) for choice in choices],
        }
        if self._usage is not None:
            answer["usage"] = self._usage
        return compact_json(answer)


def _usage_of_groq(chunk: dict[str, Any]) -> Any:
    """Return the usage where Groq has put it in streams that were not asked for any."""
    more = chunk.get("x_groq")
    return more.get("usage") if isinstance(more, dict) else None


def _finished_choice(choice: dict[str, Any]) -> dict[str, Any]:
    finished: dict[str, Any] = _finished(choice)
    message = finished.get("message")
    if isinstance(message, dict):
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            message["tool_calls"] = [
                {key: value for key, value in call.items() if key != "index"}
                if isinstance(call, dict)
                else call
                for call in calls
            ]
            message["content"] = message.get("content") or None
        message.setdefault("content", None)
    return finished


def _merge(into: dict[str, Any], new: dict[str, Any]) -> None:
    for key, value in new.items():
        known = into.get(key)
        if value is None:
            into.setdefault(key, None)
        elif isinstance(value, str) and key in _GROWING:
            if isinstance(known, _Text):
                known.append(value)
            else:
                into[key] = _Text((value,))
        elif isinstance(value, dict):
            if not isinstance(known, dict):
                known = into[key] = {}
            _merge(known, value)
        elif isinstance(value, list):
            if not isinstance(known, list) or isinstance(known, _Text):
                known = into[key] = []
            _extend(known, value)
        elif value != "" or known is None:
            into[key] = value


def _extend(known: list[Any], new: list[Any]) -> None:
    for part in new:
        number = part.get("index") if isinstance(part, dict) else None
        if not isinstance(number, int):
            known.append(part)
            continue
        same = next((each for each in known if isinstance(each, dict) and each.get("index") == number), None)
        if same is None:
            same = {}
            known.append(same)
        _merge(same, part)


def _finished(value: Any) -> Any:
    match value:
        case _Text():
            return "".join(value)
        case dict():
            return {key: _finished(inner) for key, inner in value.items()}
        case list():
            numbers = [part.get("index") for part in value if isinstance(part, dict)]
            if value and len(numbers) == len(value) and all(isinstance(number, int) for number in numbers):
                value = sorted(value, key=lambda part: int(part["index"]))
            return [_finished(part) for part in value]
        case _:
            return value
