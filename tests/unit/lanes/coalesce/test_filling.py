"""One object written many times is the same as set many times."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from proxy.core.document import Document
from proxy.lanes.coalesce.filling import filled

keys = st.sampled_from(["data", "usage", "id", "new", "ä"])
scalars = st.one_of(st.text(max_size=5), st.integers(), st.lists(st.text(max_size=3), max_size=2))


@given(
    st.dictionaries(st.sampled_from(["object", "data", "usage", "id"]), scalars),
    st.dictionaries(keys, st.lists(scalars, min_size=3, max_size=3)),
    st.booleans(),
)
def test_equals_setting_each(
    whole: dict[str, object], columns: dict[str, list[object]], is_spaced: bool
) -> None:
    document = Document.parse(json.dumps(whole, separators=None if is_spaced else (",", ":")).encode())
    values = {key: [json.dumps(each).encode() for each in column] for key, column in columns.items()}
    made = filled(document, values, 3)
    for number, text in enumerate(made):
        wanted = document
        for key, column in values.items():
            wanted = wanted.set(key, column[number])
        assert json.loads(text) == json.loads(wanted.to_bytes())
        assert text == wanted.to_bytes()


def test_bytes_that_no_json_holds_take_the_long_way() -> None:
    document = Document.parse(b'{"a":"\\u0000","b":1}')
    assert filled(document, {"b": [b"2", b"3"]}, 2) == [b'{"a":"\\u0000","b":2}', b'{"a":"\\u0000","b":3}']


def test_a_key_that_stands_twice_is_filled_twice() -> None:
    document = Document.parse(b'{"a":1,"a":2}')
    assert filled(document, {"a": [b"7"]}, 1) == [b'{"a":7,"a":7}']
