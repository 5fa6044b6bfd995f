"""The answer to a merged call, cut into one for each caller. Pure; vectors, texts and scores stay as written.

What belongs to whom is told by `index` where the API has one (an upstream may answer in any order), by
position in moderations. Each caller's own indices begin at zero, its usage is its part of the whole, and an
answer's `id` is told apart by a suffix for all but the first: some callers keep answers by it.

An answer that does not have exactly what was asked for is `None`: nobody can tell whose is missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import msgspec

from proxy.core.document import Document, DocumentError
from proxy.core.json_values import decode
from proxy.lanes.coalesce.filling import filled
from proxy.lanes.coalesce.merge_parts import Part
from proxy.lanes.coalesce.merge_prompts import prompt_lists
from proxy.lanes.coalesce.merge_usage import divide_usage

Weigh = Callable[[Sequence[Sequence[str]]], Sequence[int]]
"""Weighs members by their texts: tokens, or what is in proportion to them."""

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_TELLING_BYTES = 256
_LISTS = {"embeddings": "data", "moderations": "results", "completions": "choices"}
_INDEX = re.compile(rb'"index"[ \t\r\n]*+:[ \t\r\n]*+(\d{1,9})(?=[ \t\r\n]*+[,}])')


class Mould(msgspec.Struct, frozen=True):
    """What is known before an answer comes: whose inputs stand where, and what weighs texts.

    `most_choice_tokens` is how long each choice may be, `None` where the request does not say.
    """

    dialect: str
    parts: tuple[Part, ...]
    weigh: Weigh
    most_choice_tokens: int | None = None

    @property
    def choices_per_item(self) -> int:
        """How many elements of the answer's list each input has."""
        return self.parts[0].choices_per_item

    def spans(self) -> list[tuple[int, int]]:
        """Return which elements of the answer's list are whose: first and one past the last."""
        spans: list[tuple[int, int]] = []
        begin = 0
        for part in self.parts:
            end = begin + len(part.items) * self.choices_per_item
            spans.append((begin, end))
            begin = end
        return spans

    def input_weights(self) -> Sequence[int]:
        """Return what the members' inputs weigh: for token ids their number."""
        if not self.parts[0].is_text:
            return [part.most_tokens for part in self.parts]
        return self.weigh([part.texts() for part in self.parts])

    def most_outputs(self) -> Sequence[int] | None:
        """Return how many tokens each member's choices can have in all, `None` where that is not known."""
        if self.most_choice_tokens is None:
            return None
        return [(end - begin) * self.most_choice_tokens for begin, end in self.spans()]


def split_answer(body: bytes, mould: Mould) -> list[bytes] | None:
    """Return each member's own answer, in order; `None` when the whole cannot be divided."""
    field = _LISTS[mould.dialect]
    answer, elements = _taken_apart(body, field)
    spans = mould.spans()
    if answer is None or len(elements) != spans[-1][1] or answer.duplicates:
        return None
    if mould.dialect != "moderations":
        ordered = in_order(elements)
        if ordered is None:
            return None
        elements = ordered
    values = {field: [_own_list(elements[begin:end], mould.dialect) for begin, end in spans]}
    usages = _usages(answer, elements, spans, mould)
    if usages is not None:
        values["usage"] = usages
    if mould.dialect == "completions":
        lists = prompt_lists(answer, [len(part.items) for part in mould.parts])
        if lists is None:
            return None
        values |= lists
    own_id = answer.get("id")
    if own_id is not None:
        values["id"] = [_own_id(own_id, number) for number in range(len(spans))]
    return filled(answer, values, len(spans))


def _own_list(elements: Sequence[bytes], dialect: str) -> bytes:
    if dialect != "moderations":
        elements = [with_index(each, position) for position, each in enumerate(elements)]
    return b"[" + b",".join(elements) + b"]"


def _taken_apart(body: bytes, field: str) -> tuple[Document | None, tuple[bytes, ...]]:
    """Return an answer whose list is not of interest any more, and the raw elements of its list.

    Vectors are by far the most of most answers: what is around them is looked at without them.
    """
    try:
        listed = bytes(_OBJECT.decode(body)[field])
        elements = tuple(map(bytes, _ARRAY.decode(listed)))
        # Searching for megabytes takes long, and the beginning of a list of objects tells where it stands.
        begin = body.index(listed[:_TELLING_BYTES])
        if body.find(listed[:_TELLING_BYTES], begin + 1) < 0:
            return Document.parse(body[:begin] + b"[]" + body[begin + len(listed) :]), elements
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError):
        # Text that only tolerant readers take, such as half a surrogate pair.
        pass
    except DocumentError:
        return None, ()
    try:
        answer = Document.parse(body)
    except DocumentError:
        return None, ()
    return answer, answer.array(field) or ()


def in_order(elements: Sequence[bytes]) -> tuple[bytes, ...] | None:
    """Return elements by their `index`; `None` unless each index from zero is there once."""
    by_index: dict[int, bytes] = {}
    for element in elements:
        index = index_of(element)
        if index is not None:
            by_index[index] = element
    if len(by_index) != len(elements) or max(by_index, default=-1) != len(elements) - 1:
        return None
    return tuple(by_index[index] for index in range(len(elements)))


def index_of(element: bytes) -> int | None:
    """Return the `index` of a raw list element, `None` where it has none."""
    found = _plain_index(element)
    if found is not None:
        return int(found[1])
    try:
        value = Document.parse(element).value("index")
    except DocumentError:
        return None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def with_index(element: bytes, index: int) -> bytes:
    """Return a raw list element with another `index`."""
    found = _plain_index(element)
    if found is not None:
        return b"%b%d%b" % (element[: found.start(1)], index, element[found.end(1) :])
    return Document.parse(element).set("index", b"%d" % index).to_bytes()


def _plain_index(element: bytes) -> re.Match[bytes] | None:
    """Find `"index": N` where it shows without parsing that it is the element's own.

    Inside a JSON string its quotes would be escaped, and with one opening brace in all there is no object
    in the element that it could belong to.
    """
    key = element.find(b'"index"')
    if key < 0 or not element.startswith(b"{") or element.find(b"{", 1) >= 0:
        return None
    return _INDEX.match(element, key) if element.find(b'"index"', key + 1) < 0 else None


def with_own_id(answer: Document, number: int) -> Document:
    """Return the answer with an `id` of its own for the member of that number; the first keeps it."""
    given = answer.get("id")
    return answer if given is None else answer.set("id", _own_id(given, number))


def _own_id(given: bytes, number: int) -> bytes:
    if number == 0 or not given.startswith(b'"') or len(given) < 3:
        return given
    return b'%b-%d"' % (given[:-1], number)


def texts_of(choices: Sequence[bytes]) -> list[str]:
    """Return the texts of raw completion choices."""
    values = [decode(choice) for choice in choices]
    texts = [value.get("text") for value in values if isinstance(value, dict)]
    return [text for text in texts if isinstance(text, str)]


def _usages(
    answer: Document, elements: Sequence[bytes], spans: Sequence[tuple[int, int]], mould: Mould
) -> list[bytes] | None:
    usage = answer.get("usage")
    if usage is None or not usage.startswith(b"{"):
        return None
    outputs: Sequence[int] = [0] * len(spans)
    if mould.dialect == "completions":
        outputs = mould.weigh([texts_of(elements[begin:end]) for begin, end in spans])
    return divide_usage(usage, mould.input_weights(), outputs, mould.most_outputs())
