"""/v1/moderations: one result for each text, one for a multimodal input.

It owns this shape on the wire. A text is flagged for a category when it contains the category's name, so
that a test can say what it wants; nothing is judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from proxy.sim import body as fields
from proxy.sim.body import wrong_type
from proxy.sim.errors import Family, invalid, missing
from proxy.sim.prompt import plain_text
from proxy.sim.text import count_tokens, seeded
from proxy.sim.work import Bill, Call, Event, Shape, Work

CATEGORIES = (
    "harassment",
    "harassment/threatening",
    "hate",
    "hate/threatening",
    "illicit",
    "illicit/violent",
    "self-harm",
    "self-harm/intent",
    "self-harm/instructions",
    "sexual",
    "sexual/minors",
    "violence",
    "violence/graphic",
)


def read(call: Call) -> Work:
    """Return the work in a moderation request. Raises ApiError."""
    model = fields.text(call.body, "model") or "omni-moderation-latest"
    inputs, is_multimodal = _inputs(call.body.get("input"))
    key = f"{call.scenario.seed} {model}"
    answer = ModerationsAnswer(call.identity.make("modr-"), model, key, inputs, is_multimodal)
    return Work(answer=answer, model=model, input_tokens=sum(count_tokens(text) for text in inputs))


SHAPE = Shape("/v1/moderations", Family.OPENAI, read)


def _inputs(value: object) -> tuple[tuple[str, ...], bool]:
    """Return the texts to judge and whether they are the parts of one multimodal input."""
    if value is None:
        raise missing("input")
    if isinstance(value, str):
        return (value,), False
    if not isinstance(value, list):
        raise wrong_type("input", "a string or an array", value)
    if not value:
        raise invalid("input", "Invalid 'input': empty array. Expected at least one input.", "empty_array")
    if all(isinstance(item, str) for item in value):
        return tuple(value), False
    if all(isinstance(item, Mapping) and item.get("type") in ("text", "image_url") for item in value):
        return (plain_text(value),), True
    raise invalid(
        "input", "'$.input' is invalid: expected strings only, or text and image_url objects only.", None
    )


@dataclass(frozen=True, slots=True)
class ModerationsAnswer:
    """One result for each text."""

    answer_id: str
    model: str
    key: str
    inputs: tuple[str, ...]
    is_multimodal: bool

    def whole(self, bill: Bill) -> dict[str, object]:
        """Return the results in the order of the inputs."""
        return {
            "id": self.answer_id,
            "model": self.model,
            "results": [self._result(text) for text in self.inputs],
        }

    def _result(self, text: str) -> dict[str, object]:
        generator = seeded(self.key, text)
        lower = text.lower()
        found = {name: name in lower for name in CATEGORIES}
        scores = {name: round(generator.random() * 0.01 + 0.9 * found[name], 8) for name in CATEGORIES}
        types = ["text", "image"] if self.is_multimodal else ["text"]
        return {
            "flagged": any(found.values()),
            "categories": found,
            "category_scores": scores,
            "category_applied_input_types": dict.fromkeys(CATEGORIES, types),
        }

    def events(self, bill: Bill) -> Iterator[Event]:
        """Yield nothing: this endpoint does not stream."""
        return iter(())
