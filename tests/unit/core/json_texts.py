"""JSON objects as text, with every freedom of spelling that JSON leaves, and a record of what was written."""

from __future__ import annotations

import json
from dataclasses import dataclass

from hypothesis import strategies as st

SPACES = st.sampled_from(["", "", "", " ", "\n  ", "\t", "\r\n"])
SPELLINGS = [
    '""',
    '"a"',
    '"\\u00e9\\/\\n\\t"',
    '"é 你 \U0001f600"',
    '"\\ud83d"',
    '"\\\\"',
    '"\\\\\\""',
    '"}],{\\"a\\":1,"',
    '"a\\":2,\\"b"',
    "0",
    "-0",
    "1E2",
    "1.10",
    "1e400",
    "9007199254740993",
    "123456789012345678901234567890",
    "0.10000000000000000555",
    "true",
    "null",
    "NaN",
    "-Infinity",
    "[]",
    "{}",
    "[ ]",
    "{ }",
]
KEYS = ["a", "b", "ab", "é", "max_tokens", "", "x y", "NaN", "q\"'\\"]


def _container(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    items = st.lists(st.tuples(SPACES, children, SPACES), max_size=3)
    arrays = items.map(lambda parts: "[" + ",".join(a + v + b for a, v, b in parts) + "]")
    pairs = st.lists(st.tuples(SPACES, st.sampled_from(KEYS), SPACES, children), max_size=3)
    objects = pairs.map(lambda ps: "{" + ",".join(f"{a}{json.dumps(k)}{b}:{v}" for a, k, b, v in ps) + "}")
    return st.one_of(arrays, objects)


VALUES = st.recursive(st.sampled_from(SPELLINGS), _container, max_leaves=5)


def spelled_keys(key: str) -> st.SearchStrategy[str]:
    """Return ways to write a key: plainly, in ASCII, with every character escaped."""
    escaped = '"' + "".join(f"\\u{ord(character):04x}" for character in key) + '"'
    return st.sampled_from([json.dumps(key, ensure_ascii=False), json.dumps(key), escaped])


@dataclass(frozen=True)
class Written:
    """An object's text and its members as (key, raw value)."""

    text: str
    members: tuple[tuple[str, str], ...]
    pieces: tuple[str, ...]
    """The text, cut so that piece 2i + 1 is the value of member i."""

    def with_value(self, key: str, value: str) -> str:
        """Return the text with every occurrence of `key` holding another value."""
        pieces = list(self.pieces)
        for index, (name, _) in enumerate(self.members):
            if name == key:
                pieces[2 * index + 1] = value
        return "".join(pieces)


@st.composite
def objects(draw: st.DrawFn, values: st.SearchStrategy[str] = VALUES, min_size: int = 0) -> Written:
    """Draw an object: compact, spaced as Python does, or spaced at random; keys may occur twice."""
    names = draw(st.lists(st.sampled_from(KEYS), min_size=min_size, max_size=6))
    style = draw(st.sampled_from(["compact", "python", "random"]))
    pieces = ["{" if style != "random" else draw(SPACES) + "{"]
    members: list[tuple[str, str]] = []
    for index, name in enumerate(names):
        value = draw(values)
        key = draw(spelled_keys(name)) if style == "random" else json.dumps(name, ensure_ascii=False)
        match style:
            case "compact":
                before, colon = ("," if index else ""), ":"
            case "python":
                before, colon = (", " if index else ""), ": "
            case _:
                before = draw(SPACES) + ("," if index else "") + draw(SPACES)
                colon = draw(SPACES) + ":" + draw(SPACES)
        pieces[-1] += before + key + colon
        pieces += [value, ""]
        members.append((name, value))
    pieces[-1] += "}" if style != "random" else draw(SPACES) + "}" + draw(SPACES)
    return Written("".join(pieces), tuple(members), tuple(pieces))
