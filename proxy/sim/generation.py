"""What a simulated model writes: text, JSON or tool calls, cut by stop sequences and caps like a model's.

It owns determinism: an answer depends on the seed, the model, the prompt and the choice's index, and on
nothing else that a proxy might add to a request. It knows no API shape.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from proxy.sim.fitting import fitting_value
from proxy.sim.scenario import Faults, Timing
from proxy.sim.text import digest_of, prose, seeded, split_tokens
from proxy.sim.tools import ToolSpec

ANY_JSON: dict[str, object] = {
    "type": "object",
    "properties": {"answer": {"type": "string"}, "score": {"type": "integer", "minimum": 0, "maximum": 100}},
    "required": ["answer", "score"],
}

_EFFORT_SHARES = {
    "none": 0.0,
    "minimal": 0.0,
    "low": 0.25,
    "medium": 1.0,
    "high": 2.0,
    "xhigh": 3.0,
    "max": 4.0,
}
EFFORTS = tuple(_EFFORT_SHARES)


class Finish(Enum):
    """Why a choice ended."""

    STOP = "stop"
    LENGTH = "length"
    TOOLS = "tool_calls"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call whose arguments (or free text) come in fragments: a token each, and one for the name."""

    name: str
    fragments: tuple[str, ...]
    is_custom: bool = False

    @property
    def arguments(self) -> str:
        """Return the whole argument text."""
        return "".join(self.fragments)


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer. Tokens are produced in order: reasoning, then text or calls."""

    pieces: tuple[str, ...]
    finish: Finish
    reasoning: tuple[str, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    stop_sequence: str | None = None

    @property
    def text(self) -> str:
        """Return the visible text."""
        return "".join(self.pieces)

    @property
    def tokens(self) -> int:
        """Return all output tokens, the hidden ones included."""
        calls = sum(1 + len(call.fragments) for call in self.calls)
        return len(self.reasoning) + len(self.pieces) + calls


@dataclass(frozen=True, slots=True)
class Ask:
    """What a model is to write. `json_schema` is None for prose; `cap_tokens` covers reasoning too."""

    key: str
    cap_tokens: int | None = None
    stops: tuple[str, ...] = ()
    calls: tuple[ToolSpec, ...] = ()
    json_schema: object = None
    reasoning_tokens: int = 0


def ask_key(seed: int, model: str, tokens: Sequence[str]) -> str:
    """Return what an answer depends on."""
    return digest_of((str(seed), model, "".join(tokens)))


def is_reasoning_model(model: str) -> bool:
    """Tell whether a model thinks before it writes, by the families that OpenAI documents as doing so."""
    return model.startswith(("o1", "o3", "o4", "gpt-5"))


def reasoning_tokens(timing: Timing, faults: Faults, model: str, effort: str | None) -> int:
    """Return how many reasoning tokens `model` spends at `effort` (None = its default, medium)."""
    if faults.reasoning is not None:
        return faults.reasoning
    if not is_reasoning_model(model):
        return 0
    return round(timing.reasoning_tokens * _EFFORT_SHARES[effort or "medium"])


def generate(ask: Ask, index: int, timing: Timing, faults: Faults) -> Choice:
    """Return choice number `index` of an answer."""
    cap = ask.cap_tokens
    thought = prose(seeded(ask.key, "reasoning", str(index)), ask.reasoning_tokens)[:cap]
    left = None if cap is None else cap - len(thought)
    if ask.calls:
        return _calling(ask, index, thought, left)
    pieces = _pieces(ask, index, timing, faults)
    finish, stop_sequence = Finish.STOP, None
    if left is not None and len(pieces) > left:
        pieces, finish = pieces[:left], Finish.LENGTH
    cut = _first_stop("".join(pieces), ask.stops)
    if cut is not None:
        end, stop_sequence = cut
        pieces, finish = split_tokens("".join(pieces)[:end]), Finish.STOP
    return Choice(pieces, finish, thought, (), stop_sequence)


def _pieces(ask: Ask, index: int, timing: Timing, faults: Faults) -> tuple[str, ...]:
    if faults.content is not None:
        return split_tokens(faults.content)
    generator = seeded(ask.key, "text", str(index))
    if ask.json_schema is not None:
        return split_tokens(json.dumps(fitting_value(ask.json_schema, generator), ensure_ascii=False))
    if faults.tokens is not None:
        return prose(generator, faults.tokens)
    spread = generator.uniform(-timing.output_spread, timing.output_spread)
    return prose(generator, max(1, round(timing.output_tokens * (1 + spread))))


def _first_stop(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """Return where the earliest stop sequence begins and which it is."""
    found = [(text.find(stop), stop) for stop in stops if stop and stop in text]
    return min(found, default=None)


def _calling(ask: Ask, index: int, thought: tuple[str, ...], left: int | None) -> Choice:
    calls: list[ToolCall] = []
    for number, tool in enumerate(ask.calls):
        generator = seeded(ask.key, "tool", tool.name, str(index), str(number))
        if tool.is_custom:
            fragments = prose(generator, 8)
        else:
            value = fitting_value(tool.parameters or {"type": "object"}, generator)
            fragments = split_tokens(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
        if left is not None:
            if left < 1 + len(fragments):
                if left:
                    calls.append(ToolCall(tool.name, fragments[: left - 1], tool.is_custom))
                return Choice((), Finish.LENGTH, thought, tuple(calls))
            left -= 1 + len(fragments)
        calls.append(ToolCall(tool.name, fragments, tool.is_custom))
    return Choice((), Finish.TOOLS, thought, tuple(calls))
