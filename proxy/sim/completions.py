"""/v1/completions: prompts as a string, strings, or token arrays; choices numbered `prompt * n + j`.

It owns this shape on the wire. A prompt's choices are the same alone and in an array.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from proxy.sim import body as fields
from proxy.sim.body import Json
from proxy.sim.cache import automatic_marks
from proxy.sim.chat import usage_of
from proxy.sim.chat_rules import check_sampling, check_stream_options
from proxy.sim.errors import Family, invalid
from proxy.sim.generation import Ask, Choice, ask_key, generate
from proxy.sim.inputs import read_inputs
from proxy.sim.tiers import read_tier
from proxy.sim.work import DONE, Bill, Call, Event, Shape, Work, data_event

_DEFAULT_CAP = 16
_MAX_PROMPTS = 2048
_NO_PROMPT = "<|endoftext|>"


def read(call: Call) -> Work:
    """Return the work in a completions request. Raises ApiError."""
    body = call.body
    model = fields.required_text(body, "model")
    check_sampling(body)
    check_stream_options(body)
    prompts = read_inputs(body, "prompt", _MAX_PROMPTS, default=_NO_PROMPT)
    cap = fields.integer(body, "max_tokens", 0)
    cap = _DEFAULT_CAP if cap is None else cap
    count = _choices_per_prompt(body)
    choices = tuple(
        generate(_ask(call, model, tokens, cap), index, call.scenario.timing, call.faults)
        for tokens in prompts
        for index in range(count)
    )
    options = fields.mapping(body, "stream_options") or {}
    echoes = [
        "".join(tokens) if fields.flag(body, "echo") else "" for tokens in prompts for _ in range(count)
    ]
    answer = CompletionsAnswer(
        call.identity.make("cmpl-"),
        call.identity.created,
        model,
        choices,
        tuple(echoes),
        fields.flag(options, "include_usage"),
        fields.integer(body, "logprobs", 0, 5) is not None,
    )
    return Work(
        answer=answer,
        model=model,
        input_tokens=sum(len(tokens) for tokens in prompts),
        cache_marks=automatic_marks(prompts[0], call.scenario.cache) if len(prompts) == 1 else (),
        choices=choices,
        is_stream=fields.flag(body, "stream"),
        tier=read_tier(body),
        requested_tokens=cap * len(choices),
    )


SHAPE = Shape("/v1/completions", Family.OPENAI, read)


def _ask(call: Call, model: str, tokens: Sequence[str], cap: int) -> Ask:
    key = ask_key(call.scenario.seed, model, tokens)
    return Ask(key=key, cap_tokens=cap, stops=fields.stop_sequences(call.body))


def _choices_per_prompt(body: Json) -> int:
    count = fields.integer(body, "n", 1, 128) or 1
    best_of = fields.integer(body, "best_of", 1, 20)
    if best_of is not None and best_of < count:
        raise invalid("best_of", f"'best_of' must be at least 'n', but got {best_of} and {count}.", None)
    if best_of is not None and best_of > 1 and fields.flag(body, "stream"):
        raise invalid("best_of", "'best_of' cannot be used with 'stream'.", None)
    return count


@dataclass(frozen=True, slots=True)
class CompletionsAnswer:
    """Choices in the order of their index; `echoes` holds the prompt to repeat before each, mostly empty."""

    answer_id: str
    created: int
    model: str
    choices: tuple[Choice, ...]
    echoes: tuple[str, ...]
    includes_usage: bool
    has_logprobs: bool

    def whole(self, bill: Bill) -> dict[str, object]:
        """Return the `text_completion` object."""
        choices = [
            self._choice(
                index,
                echo + choice.text,
                choice.finish.value,
                [echo, *choice.pieces] if echo else choice.pieces,
            )
            for index, (choice, echo) in enumerate(zip(self.choices, self.echoes, strict=True))
        ]
        return {**self._envelope(choices), "usage": usage_of(bill)}

    def events(self, bill: Bill) -> Iterator[Event]:
        """Yield chunks, choices interleaved token by token, then usage if asked, then `[DONE]`."""
        for index, echo in enumerate(self.echoes):
            if echo:
                yield self._event(0, [self._choice(index, echo, None, [echo])])
        last = max(choice.tokens for choice in self.choices)
        for step in range(max(last, 1)):
            for index, choice in enumerate(self.choices):
                if step < len(choice.pieces):
                    piece = choice.pieces[step]
                    yield self._event(step, [self._choice(index, piece, None, [piece])])
                if step == max(choice.tokens - 1, 0):
                    yield self._event(step, [self._choice(index, "", choice.finish.value, [])])
        end = max(last - 1, 0)
        if self.includes_usage:
            yield Event(end, data_event({**self._envelope([]), "usage": usage_of(bill)}))
        yield Event(end, DONE, closing=True)

    def _event(self, step: int, choices: list[object]) -> Event:
        chunk = self._envelope(choices)
        if self.includes_usage:
            chunk["usage"] = None
        return Event(step, data_event(chunk))

    def _envelope(self, choices: Sequence[object]) -> dict[str, object]:
        return {
            "id": self.answer_id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": list(choices),
        }

    def _choice(self, index: int, text: str, finish: str | None, pieces: Sequence[str]) -> dict[str, object]:
        return {"text": text, "index": index, "logprobs": self._logprobs(pieces), "finish_reason": finish}

    def _logprobs(self, pieces: Sequence[str]) -> dict[str, object] | None:
        if not self.has_logprobs:
            return None
        offsets = [sum(len(piece) for piece in pieces[:index]) for index in range(len(pieces))]
        return {
            "tokens": list(pieces),
            "token_logprobs": [-0.01] * len(pieces),
            "top_logprobs": None,
            "text_offset": offsets,
        }
