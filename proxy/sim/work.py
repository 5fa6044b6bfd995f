"""The words that API shapes and the exchange share: a call comes in, a shape reads it into work.

It owns no behaviour beyond arithmetic on what it holds. Times are not here: an event knows only after how
many decode steps it is due.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from proxy.sim.books import Books
from proxy.sim.cache import Mark
from proxy.sim.errors import Family
from proxy.sim.faults import Faults
from proxy.sim.generation import Choice
from proxy.sim.scenario import Scenario
from proxy.sim.text import digest_of


@dataclass(frozen=True, slots=True)
class Identity:
    """What makes one execution's ids unique and yet repeatable: seed, body and arrival number."""

    key: str
    created: int

    def make(self, prefix: str, *parts: str, length: int = 24) -> str:
        """Return an id such as `chatcmpl-…`; equal `parts` give equal ids within one execution."""
        digest = digest_of((self.key, prefix, *parts))
        return prefix + (digest + digest[::-1])[:length]


@dataclass(frozen=True, slots=True)
class Upload:
    """A file as a caller sends it."""

    filename: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Call:
    """One request as a shape gets it. `caller` stands for its credentials, never holds them.

    body_hash   sha256 of the body's bytes, under which the work is counted
    query       parameters of the request target
    upload      the file of a multipart form; its other fields are the body
    """

    path: str
    body: Mapping[str, object]
    headers: Mapping[str, str]
    caller: str
    faults: Faults
    scenario: Scenario
    identity: Identity
    books: Books
    body_hash: str = ""
    query: Mapping[str, str] = field(default_factory=dict)
    upload: Upload | None = None


@dataclass(frozen=True, slots=True)
class Bill:
    """What an answer consumed. `input_tokens` is the whole prompt, cached and written parts included."""

    input_tokens: int
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    tier: str = "default"

    @property
    def total_tokens(self) -> int:
        """Return input plus output."""
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class Event:
    """One SSE event and the decode step after which it is due.

    opening   it precedes all content (a role, `response.created`, `message_start`)
    closing   it tells the caller that the answer is whole (`[DONE]`, `response.completed`, `message_stop`)
    """

    step: int
    raw: bytes
    opening: bool = False
    closing: bool = False


class Answer(Protocol):
    """An answer in its API's shape, complete but not yet sent."""

    def whole(self, bill: Bill) -> Mapping[str, object]:
        """Return the JSON body of a buffered answer."""
        ...

    def events(self, bill: Bill) -> Iterator[Event]:
        """Yield the events of a streamed answer, steps never falling."""
        ...


@dataclass(frozen=True, slots=True)
class Work:
    """What a shape makes of a valid body: all that the exchange needs to time, bill and send it.

    requested_tokens   the caller's output cap, which counts towards the tokens-per-minute limit
    cache_marks        where a cached prefix may end; empty where the endpoint has no prompt cache
    bills_cache_write  whether this API counts the tokens that it puts into the cache
    content            bytes to answer with in place of the answer's JSON
    perform            what is done once the request has been admitted, before it is answered
    remember           what is done with the bill once the answer is out
    runs_now           false where the model runs later, or not at all
    """

    answer: Answer
    model: str
    input_tokens: int
    cache_marks: Sequence[Mark] = ()
    bills_cache_write: bool = False
    choices: tuple[Choice, ...] = ()
    is_stream: bool = False
    tier: str = "default"
    requested_tokens: int = 0
    content: bytes | None = None
    perform: Callable[[], None] | None = None
    remember: Callable[[Bill], None] | None = None
    runs_now: bool = True

    @property
    def last_step(self) -> int:
        """Return the decode step at which the longest choice is complete; choices decode side by side."""
        return max((choice.tokens - 1 for choice in self.choices), default=0)

    def output_tokens_by(self, step: int) -> int:
        """Return how many output tokens all choices together have produced once `step` is done."""
        return sum(min(choice.tokens, step + 1) for choice in self.choices)

    def reasoning_tokens_by(self, step: int) -> int:
        """Return how many of those tokens were reasoning."""
        return sum(min(len(choice.reasoning), step + 1) for choice in self.choices)


@dataclass(frozen=True, slots=True)
class PlainAnswer:
    """An answer that is known beforehand and never streamed."""

    value: Mapping[str, object]

    def whole(self, bill: Bill) -> Mapping[str, object]:
        """Return the value."""
        return self.value

    def events(self, bill: Bill) -> Iterator[Event]:
        """Yield nothing."""
        return iter(())


class Takes(Enum):
    """What an endpoint takes as a body."""

    JSON = "json"
    FORM = "form"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Shape:
    """One endpoint: its route, its conventions and the function that reads a call (raises ApiError).

    runs_model   it takes a slot and counts as an execution; false for what a provider answers from its books
    is_limited   whether it counts towards the rate limits
    takes        what the body of a request is
    """

    path: str
    family: Family
    read: Callable[[Call], Work]
    method: str = "POST"
    runs_model: bool = True
    is_limited: bool = True
    takes: Takes = Takes.JSON

    @property
    def label(self) -> str:
        """Return the name under which requests are counted."""
        return self.path if self.method == "POST" else f"{self.method} {self.path}"


def to_json(value: object) -> bytes:
    """Return compact UTF-8 JSON; lone surrogates, which UTF-8 cannot hold, become question marks."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def data_event(value: object) -> bytes:
    """Return an SSE event without a name, as OpenAI's chat stream has them."""
    return b"data: " + to_json(value) + b"\n\n"


def named_event(name: str, value: object) -> bytes:
    """Return an SSE event with a name, as Anthropic and the Responses API have them."""
    return f"event: {name}\n".encode() + data_event(value)


DONE = b"data: [DONE]\n\n"
