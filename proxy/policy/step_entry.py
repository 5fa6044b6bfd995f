"""Owns one entry of a route's `steps`: from `name`, `name: {…}` or a step's shorthand to a bound step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from proxy.policy.findings import did_you_mean
from proxy.policy.hints import record_of
from proxy.policy.kinds import Place
from proxy.policy.model import BoundStep
from proxy.policy.nodes import MapNode, Node, ScalarNode
from proxy.policy.records import MapOf
from proxy.steps.step import Step


@dataclass(frozen=True, slots=True)
class StepEntry:
    """The kind of a step's entry. `steps` are the ones that exist."""

    steps: Sequence[Step]

    def read(self, node: Node, place: Place) -> BoundStep:
        """Return the step with its configuration."""
        if isinstance(node, ScalarNode):
            step = self._named(node, place)
            return BoundStep(step, record_of(step.config).read(MapNode(node.mark, ()), place.key(step.name)))
        if not isinstance(node, MapNode) or len(node.entries) != 1:
            raise place.refused(
                node, "a step is a name with its options, such as cap_output: {max: 800}", self._advice(node)
            )
        name, options = node.entries[0]
        step = self._named(name, place)
        return BoundStep(step, self._config(step, options, place.key(step.name)))

    def _named(self, name: ScalarNode, place: Place) -> Step:
        for step in self.steps:
            if step.name == name.text:
                return step
        raise place.refused(
            name, f"unknown step {name.text}", did_you_mean(name.text, [step.name for step in self.steps])
        )

    def _advice(self, node: Node) -> str:
        if isinstance(node, MapNode) and len(node.entries) > 1:
            return "begin each step with its own - , and indent its options"
        return ""

    def _config(self, step: Step, options: Node, place: Place) -> Any:
        record = record_of(step.config)
        if isinstance(options, ScalarNode) and options.plain and not options.text:
            raise place.refused(
                options, "the step has no options", f"write {step.name} alone, or {{}} for its defaults"
            )
        if step.shorthand is None:
            return record.read(options, place)
        kind = record.keys[step.shorthand].kind
        if isinstance(options, MapNode) and not isinstance(kind, MapOf):
            return record.read(options, place)
        value = kind.read(options, place)
        try:
            return record.build({step.shorthand: value})
        except ValueError as error:
            raise place.refused(options, str(error)) from None

    def schema(self) -> dict[str, Any]:
        """Return the schema of any one step."""
        return {"anyOf": [alternative for step in self.steps for alternative in _alternatives(step)]}


def _alternatives(step: Step) -> list[dict[str, Any]]:
    record = record_of(step.config)
    options: dict[str, Any] = record.schema()
    if step.shorthand is not None:
        kind = record.keys[step.shorthand].kind
        shorthand = kind.schema()
        options = shorthand if isinstance(kind, MapOf) else {"anyOf": [shorthand, options]}
    entry = {
        "type": "object",
        "additionalProperties": False,
        "required": [step.name],
        "properties": {step.name: options},
    }
    needs_options = any(key.required for key in record.keys.values())
    return [entry] if needs_options else [{"const": step.name}, entry]
