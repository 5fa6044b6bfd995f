"""Owns the kinds of single values that a policy can hold: how each is read and how a JSON Schema says it.

One description serves both, so that the schema cannot drift from what is accepted. Compound kinds are in
`proxy.policy.records`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, TypeVar

from proxy.policy import values
from proxy.policy.findings import Broken, FindingList, did_you_mean
from proxy.policy.nodes import MapNode, Node, ScalarNode, kind_of
from proxy.policy.traps import DECIMAL, INTEGER, quoted, trap

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_STAND_INS = (
    "http://placeholder.invalid/v1",
    "/placeholder",
    "placeholder",
    "PLACEHOLDER",
    "whsec_cGxhY2Vob2xkZXItcGxhY2Vob2xkZXItcGxhY2Vob2xk",
    "1m",
    "1MiB",
    "off",
)


@dataclass(frozen=True, slots=True)
class Place:
    """A key path and where to report what is wrong there."""

    path: str
    findings: FindingList

    def key(self, name: str) -> Place:
        """Return the place of a member."""
        return Place(f"{self.path}.{name}" if self.path else name, self.findings)

    def item(self, index: int) -> Place:
        """Return the place of a list element."""
        return Place(f"{self.path}[{index}]", self.findings)

    def refused(self, node: Node, problem: str, hint: str = "") -> Broken:
        """Report an error at `node` and return what is to be raised for it."""
        self.findings.error(node.mark, self.path, problem, hint)
        return Broken()


class Kind(Protocol[T_co]):
    """A kind of value."""

    def read(self, node: Node, place: Place) -> T_co:
        """Return the value of a node; reports and raises `Broken` when it is not of this kind."""
        ...

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema (draft 2020-12) of this kind."""
        ...


def scalar(node: Node, place: Place, wanted: str) -> ScalarNode:
    """Return the node if it is a scalar that says something."""
    if not isinstance(node, ScalarNode):
        if isinstance(node, MapNode) and node.entries and not node.entries[0][0].text.strip("${}"):
            raise place.refused(node, f"{wanted} is wanted, not a mapping", 'quote "${NAME}" between { and }')
        raise place.refused(node, f"{wanted} is wanted, not {kind_of(node)}")
    if node.broken:
        raise Broken
    if node.plain and not node.text:
        raise place.refused(node, f"{wanted} is wanted, nothing is given")
    return node


def known_enough(check: Callable[[str], T], text: str) -> T:
    """Return what a check makes of a text with unknown parts, or of a stand-in that it accepts."""
    for stand_in in (text, *_STAND_INS):
        try:
            return check(stand_in)
        except ValueError:
            continue
    raise AssertionError("no stand-in fits")


def hint_of(error: ValueError) -> str:
    """Return the suggestion that came with an error."""
    return error.hint if isinstance(error, values.Misspelled) else ""


@dataclass(frozen=True, slots=True)
class Text:
    """Text exactly as written. `check` may refuse or normalise it; a `secret` is never shown in a finding.

    `words` are accepted without quotes although YAML reads them as something else. `odd` returns what to warn
    of in a text that can be used, or nothing.
    """

    check: Callable[[str], str] = str
    secret: bool = False
    words: tuple[str, ...] = ()
    odd: Callable[[str], str] = field(default=lambda text: "")

    def read(self, node: Node, place: Place) -> str:
        """Return the text."""
        given = scalar(node, place, "text")
        if given.plain and given.text not in self.words:
            read_as = trap(given.text)
            if read_as is not None and self.secret:
                raise place.refused(node, f"this is read as {read_as}, not as text", "quote it")
            if read_as is not None:
                raise place.refused(
                    node, f"{given.text} is read as {read_as}, not as text", quoted(given.text)
                )
        if given.unknown:
            return known_enough(self.check, given.text)
        try:
            text = self.check(given.text)
        except ValueError as error:
            raise place.refused(node, str(error), hint_of(error)) from None
        if remark := self.odd(text):
            place.findings.warn(node.mark, place.path, remark)
        return text

    def schema(self) -> dict[str, Any]:
        """Return the schema of a string."""
        return {"type": "string"}


@dataclass(frozen=True, slots=True)
class Flag:
    """`true` or `false`, unquoted; nothing else means either."""

    def read(self, node: Node, place: Place) -> bool:
        """Return the boolean."""
        given = scalar(node, place, "true or false")
        if given.plain and given.text in ("true", "false"):
            return given.text == "true"
        if given.substituted:
            raise place.refused(node, "true or false is wanted; a substituted value is always text")
        lowered = given.text.strip().lower()
        if not given.plain and lowered in ("true", "false"):
            raise place.refused(
                node, "true or false is wanted, this is quoted text", f"remove the quotes: {lowered}"
            )
        if lowered in ("true", "yes", "on", "y"):
            raise place.refused(node, f"true or false is wanted, not {given.text}", "did you mean true?")
        if lowered in ("false", "no", "off", "n"):
            raise place.refused(node, f"true or false is wanted, not {given.text}", "did you mean false?")
        raise place.refused(node, "true or false is wanted")

    def schema(self) -> dict[str, Any]:
        """Return the schema of a boolean."""
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Whole:
    """An integer within inclusive bounds."""

    least: int | None = None
    most: int | None = None

    def read(self, node: Node, place: Place) -> int:
        """Return the integer."""
        given = scalar(node, place, "a whole number")
        if given.substituted:
            raise place.refused(node, "a whole number is wanted; a substituted value is always text")
        if not given.plain:
            hint = f"remove the quotes: {given.text}" if INTEGER.fullmatch(given.text) else ""
            raise place.refused(node, "a whole number is wanted, this is text", hint)
        if INTEGER.fullmatch(given.text) is None:
            plainer = given.text.replace("_", "").lstrip("0")
            hint = f"did you mean {plainer}?" if INTEGER.fullmatch(plainer) else ""
            raise place.refused(node, f"a whole number is wanted, not {given.text}", hint)
        number = int(given.text)
        _must_lie_within(self.least, self.most, number, node, place)
        return number

    def schema(self) -> dict[str, Any]:
        """Return the schema of an integer."""
        return {"type": "integer"} | _bounds_schema(self.least, self.most)


@dataclass(frozen=True, slots=True)
class Real:
    """A finite number within inclusive bounds."""

    least: float | None = None
    most: float | None = None

    def read(self, node: Node, place: Place) -> float:
        """Return the number."""
        given = scalar(node, place, "a number")
        if given.substituted or not given.plain:
            raise place.refused(node, "a number is wanted, this is text")
        if INTEGER.fullmatch(given.text) is None and DECIMAL.fullmatch(given.text) is None:
            raise place.refused(node, f"a number is wanted, not {given.text}", "write it like 12 or 0.5")
        number = float(given.text)
        _must_lie_within(self.least, self.most, number, node, place)
        return number

    def schema(self) -> dict[str, Any]:
        """Return the schema of a number."""
        return {"type": "number"} | _bounds_schema(self.least, self.most)


def _must_lie_within(
    least: float | None, most: float | None, number: float, node: Node, place: Place
) -> None:
    if least is not None and number < least:
        raise place.refused(node, f"at least {least} is wanted, not {number}")
    if most is not None and number > most:
        raise place.refused(node, f"at most {most} is wanted, not {number}")


def _bounds_schema(least: float | None, most: float | None) -> dict[str, Any]:
    bounds = {"minimum": least, "maximum": most}
    return {key: bound for key, bound in bounds.items() if bound is not None}


@dataclass(frozen=True, slots=True)
class Spelled:
    """Text with a spelling of its own, such as a duration; `off` stands for `when_off` where allowed."""

    parse: Callable[[str], float]
    pattern: str
    may_be_off: bool = False
    when_off: float | None = None

    def read(self, node: Node, place: Place) -> float | None:
        """Return the value that the text stands for."""
        given = scalar(node, place, "text")
        if given.text == "off" and self.may_be_off:
            return self.when_off
        if given.unknown:
            return known_enough(self.parse, given.text)
        try:
            return self.parse(given.text)
        except ValueError as error:
            or_off = ", or off" if self.may_be_off else ""
            shown = "" if given.substituted else f", not {given.text}"
            hint = "" if given.substituted else hint_of(error)
            raise place.refused(node, f"{error}{or_off}{shown}", hint) from None

    def schema(self) -> dict[str, Any]:
        """Return the schema of such text; a substituted one cannot be judged before it is known."""
        off = "|off" if self.may_be_off else ""
        return {"type": "string", "pattern": rf"^({self.pattern}{off}|.*\$\{{.+)$"}


DURATION = Spelled(values.duration_seconds, values.DURATION_PATTERN)
WAIT = Spelled(values.wait_seconds, values.DURATION_PATTERN)
DURATION_OR_OFF = Spelled(values.duration_seconds, values.DURATION_PATTERN, may_be_off=True)
SIZE = Spelled(values.size_bytes, values.SIZE_PATTERN)
SIZE_OR_OFF = Spelled(values.size_bytes, values.SIZE_PATTERN, may_be_off=True, when_off=0)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words, `off` and `on` among them without quotes, or whatever each word stands for."""

    meanings: tuple[tuple[str, Any], ...]

    @staticmethod
    def of(words: Sequence[str]) -> Choice:
        """Return a choice among words that stand for themselves."""
        return Choice(tuple((word, word) for word in words))

    @staticmethod
    def of_enum(enum: type[Enum]) -> Choice:
        """Return a choice among an enum's members, written as their values."""
        return Choice(tuple((str(member.value), member) for member in enum))

    def read(self, node: Node, place: Place) -> Any:
        """Return what the word stands for."""
        words = [word for word, _ in self.meanings]
        wanted = f"one of {', '.join(words)}"
        given = scalar(node, place, wanted)
        if given.unknown:
            return self.meanings[0][1]
        for word, meaning in self.meanings:
            if word == given.text:
                return meaning
        shown = "" if given.substituted else f", not {given.text}"
        hint = "" if given.substituted else did_you_mean(given.text, words)
        raise place.refused(node, f"{wanted} is wanted{shown}", hint)

    def schema(self) -> dict[str, Any]:
        """Return the schema of an enumeration."""
        return {"enum": [word for word, _ in self.meanings]}
