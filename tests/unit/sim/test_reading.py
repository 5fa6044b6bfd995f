from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from proxy.sim.reading import ScenarioError, load_mapping, read_dataclass, setting


@dataclass(frozen=True, slots=True)
class Inner:
    size: int = setting(1, "a size", low=1, high=9)
    share: float = setting(0.5, "a share")


@dataclass(frozen=True, slots=True)
class Outer:
    name: str
    inner: Inner = Inner()
    many: tuple[Inner, ...] = ()
    words: tuple[str, ...] = ()
    table: Mapping[str, str] = field(default_factory=dict)
    maybe: int | None = None
    is_on: bool = False


def read(text: str) -> Outer:
    value, place = load_mapping(text.encode(), "x.yaml")
    return read_dataclass(Outer, value, place)


def problem(text: str) -> str:
    with pytest.raises(ScenarioError) as found:
        read(text)
    return str(found.value)


def test_reads_nested_values_and_keeps_defaults() -> None:
    assert read(
        "name: a\ninner: {size: 3}\nmany: [{share: 1}]\nwords: [x, y]\ntable: {k: v}\nis_on: true"
    ) == Outer("a", Inner(3), (Inner(1, 1.0),), ("x", "y"), {"k": "v"}, None, True)


def test_reads_json() -> None:
    assert read('{"name": "a", "maybe": 4}').maybe == 4


def test_one_string_stands_for_a_list_of_one() -> None:
    assert read("name: a\nwords: x").words == ("x",)


def test_an_unknown_key_is_named_with_its_line_and_the_nearest_known_one() -> None:
    assert problem("name: a\ninner:\n  sise: 3") == "x.yaml:3: inner.sise: unknown key (did you mean 'size'?)"


def test_an_unknown_key_like_none_lists_those_that_are_known() -> None:
    assert problem("name: a\ninner: {zzz: 3}") == "x.yaml:2: inner.zzz: unknown key (known: size, share)"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: no", "x.yaml:1: name: expected a string, not true or false: quote it"),
        ("name: 012", "x.yaml:1: name: expected a string, not a whole number: quote it"),
        ("name: a\ninner: {size: 1.5}", "x.yaml:2: inner.size: expected a whole number, not a number"),
        ("name: a\ninner: {size: true}", "x.yaml:2: inner.size: expected a whole number, not true or false"),
        ("name: a\ninner: {size: 0}", "x.yaml:2: inner.size: must be at least 1, not 0"),
        ("name: a\ninner: {size: 10}", "x.yaml:2: inner.size: must be at most 9, not 10"),
        ("name: a\ninner: {share: .nan}", "x.yaml:2: inner.share: must be finite"),
        ("name: a\nmany: [{}, 3]", "x.yaml:2: many[1]: expected a mapping, not a whole number"),
        ("name: a\nmany: {}", "x.yaml:2: many: expected a list, not a mapping"),
        ("name: a\ntable: {1: x}", "x.yaml:2: table: key 1 is a whole number, not a string: quote it"),
        ("name: a\nname: b", "x.yaml:2: name: key given twice"),
        ("inner: {}", "x.yaml:1: key 'name' is missing"),
        ("[1]", "x.yaml:1: expected a mapping, not a list"),
    ],
)
def test_says_what_is_wrong_and_where(text: str, said: str) -> None:
    assert problem(text) == said


def test_bad_syntax_is_an_error_with_its_line() -> None:
    assert "line 2" in problem("name: a\n  inner: [")


def test_an_empty_file_has_only_defaults() -> None:
    value, _ = load_mapping(b"", "x.yaml")
    assert value == {}
