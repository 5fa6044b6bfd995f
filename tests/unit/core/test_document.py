from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.document import Document, DocumentError
from tests.unit.core.json_texts import KEYS, VALUES, Written, objects

BOM = b"\xef\xbb\xbf"


def reason(body: bytes, max_depth: int = 512) -> str:
    with pytest.raises(DocumentError) as caught:
        Document.parse(body, max_depth)
    return caught.value.reason


# --- reading ---------------------------------------------------------------------------------------------


@given(objects())
def test_an_unedited_document_is_the_very_bytes_of_the_caller(written: Written) -> None:
    raw = written.text.encode()
    document = Document.parse(raw)
    assert document.to_bytes() is raw
    assert not document.edited


@given(objects())
def test_the_last_of_duplicated_keys_wins_and_every_occurrence_can_be_seen(written: Written) -> None:
    document = Document.parse(written.text.encode())
    names = [name for name, _ in written.members]
    assert document.keys() == tuple(dict.fromkeys(names))
    assert document.duplicates == {name for name in names if names.count(name) > 1}
    for name in KEYS:
        values = [value.encode() for key, value in written.members if key == name]
        assert document.every(name) == tuple(values)
        assert document.get(name) == (values[-1] if values else None)


@given(objects())
def test_reading_spans_first_changes_no_answer(written: Written) -> None:
    document = Document.parse(written.text.encode())
    assert document.duplicates is not None
    for name, _ in written.members:
        last = [value for key, value in written.members if key == name][-1]
        assert document.get(name) == last.encode()


def test_a_key_written_with_escapes_is_the_same_key() -> None:
    document = Document.parse(b'{"max\\u005ftokens":5,"model":"m"}')
    assert document.get("max_tokens") == b"5"
    assert document.set("max_tokens", b"3").to_bytes() == b'{"max\\u005ftokens":3,"model":"m"}'


def test_values_are_decoded_tolerantly() -> None:
    document = Document.parse(b'{"a":"\\ud83c","b":NaN,"c":"\xff","d":[1,{"e":null}],"f":1e400}')
    assert document.value("a") == "\ud83c"
    assert document.value("b", "default") == "default"
    assert document.value("c") == "\N{REPLACEMENT CHARACTER}"
    assert document.value("d") == [1, {"e": None}]
    assert document.value("f") == float("inf")
    assert document.value("absent", 7) == 7


@given(objects(min_size=1), st.data())
def test_what_json_reads_is_what_value_returns(written: Written, data: st.DataObject) -> None:
    document = Document.parse(written.text.encode())
    name = data.draw(st.sampled_from([name for name, _ in written.members]))
    last = [value for key, value in written.members if key == name][-1]
    if "NaN" not in last and "Infinity" not in last:
        assert document.value(name) == json.loads(last)


# --- bodies that are no plain objects ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"", "empty"),
        (b" \r\n\t", "empty"),
        (BOM, "empty"),
        (b"[]", "not_an_object"),
        (b'"hi"', "not_an_object"),
        (b"1", "not_an_object"),
        (b"null", "not_an_object"),
        (BOM + b"[1]", "not_an_object"),
        (b"NaN", "not_an_object"),
        (b"{", "not_json"),
        (b'{"a":1', "not_json"),
        (b'{"a":1}x', "not_json"),
        (b'{"a":1}{"a":2}', "not_json"),
        (b'{"a":1,}', "not_json"),
        (b"{,}", "not_json"),
        (b'{"a":tru}', "not_json"),
        (b'{"a":01}', "not_json"),
        (b'{"a":1NaN}', "not_json"),
        (b'{"a":[1,}', "not_json"),
        (b'{"a":"\\x"}', "not_json"),
        (b'{"a":"\n"}', "not_json"),
        (b"model=gpt-4o", "not_json"),
        ('{"a":1}'.encode("utf-16"), "not_json"),
        (b"[" * 20_000, "too_deep"),
        (b'{"tools":' + b"[" * 20_000 + b"]" * 20_000 + b"}", "too_deep"),
        (b'{"a":{"b":' * 600 + b"1" + b"}}" * 600, "too_deep"),
    ],
)
def test_each_odd_body_has_one_reason(body: bytes, word: str) -> None:
    assert reason(body) == word


@pytest.mark.parametrize("levels", [9, 10])
def test_depth_is_counted_exactly(levels: int) -> None:
    raw = b'{"a":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"
    assert Document.parse(raw, levels).to_bytes() is raw
    assert reason(raw, levels - 1) == "too_deep"


def test_brackets_in_strings_are_no_depth() -> None:
    raw = b'{"a":"' + b'[{\\"' * 2000 + b'","b":[' + b'{"c":"[["},' * 900 + b"{}]}"
    assert Document.parse(raw).to_bytes() is raw


def test_a_deep_element_is_found_among_many_flat_ones() -> None:
    deep = b"[" * 520 + b"]" * 520
    assert reason(b'{"messages":[' + b'{"a":[]},' * 900 + deep + b"]}") == "too_deep"


def test_a_byte_order_mark_is_kept() -> None:
    document = Document.parse(BOM + b'{"a":1}')
    assert document.get("a") == b"1"
    assert document.set("b", b"2").to_bytes() == BOM + b'{"a":1,"b":2}'


def test_odd_numbers_and_bytes_pass_as_they_are() -> None:
    raw = (
        b'{"seed":9007199254740993,"x":1e400,"logit_bias":{"1":1E2},"y":1.10,"z":-0,"long":'
        + b"7" * 5000
        + b',"nan":[NaN,-Infinity],"surrogate":"\\ud83c","bytes":"\xff\xfe","\xff":1}'
    )
    document = Document.parse(raw)
    assert document.set("max_tokens", b"5").to_bytes() == raw[:-1] + b',"max_tokens":5}'
    assert document.get("nan") == b"[NaN,-Infinity]"
    assert document.array("nan") == (b"NaN", b"-Infinity")


@given(st.binary(max_size=40) | st.text('{}[]":,\\ a1eN\u00e9', max_size=30).map(str.encode))
def test_no_bytes_raise_anything_but_a_document_error(body: bytes) -> None:
    try:
        document = Document.parse(body)
    except DocumentError as error:
        word = error.reason
    else:
        word = "read"
        assert Document.parse(document.set("new", b"1").to_bytes()).get("new") == b"1"
    assert word in {"read", "empty", "not_json", "not_an_object", "too_deep"}


@given(objects(), st.data())
def test_damaged_bodies_are_refused_or_read_whole(written: Written, data: st.DataObject) -> None:
    raw = bytearray(written.text.encode())
    index = data.draw(st.integers(0, len(raw) - 1))
    raw[index : index + 1] = data.draw(st.sampled_from([b"", b'"', b"\\", b"}", b"]", b",", b":", b"\xff"]))
    try:
        document = Document.parse(bytes(raw))
    except DocumentError:
        return
    keys = document.keys()
    for key in keys:
        assert document.every(key)[-1] == document.get(key)


# --- editing -----------------------------------------------------------------------------------------------


@given(objects(), st.sampled_from(KEYS), VALUES)
def test_set_replaces_every_occurrence_and_nothing_else(written: Written, key: str, value: str) -> None:
    document = Document.parse(written.text.encode())
    edited = document.set(key, value.encode())
    if any(name == key for name, _ in written.members):
        assert edited.to_bytes() == written.with_value(key, value).encode()
    assert edited.get(key) == value.encode()
    assert edited.duplicates == document.duplicates
    assert document.to_bytes() == written.text.encode()


def test_an_absent_key_is_appended_right_after_the_last_value() -> None:
    assert Document.parse(b'{ "a" : 1 }\n').set("b", b"[2]").to_bytes() == b'{ "a" : 1,"b":[2] }\n'
    assert Document.parse(b"{}").set("b", b"2").set("c", b"3").to_bytes() == b'{"b":2,"c":3}'
    assert Document.parse(b" { } ").set("b", b"2").to_bytes() == b' {"b":2 } '


@given(objects(), st.sampled_from(KEYS), VALUES)
def test_setting_what_is_there_returns_the_same_object(written: Written, key: str, value: str) -> None:
    document = Document.parse(written.text.encode())
    edited = document.set(key, value.encode())
    assert edited.set(key, value.encode()) is edited
    current = document.every(key)
    if len(set(current)) == 1:
        assert document.set(key, current[0]) is document
        assert edited.set(key, current[0]).to_bytes() is document.raw


@given(objects(), st.sampled_from(KEYS))
def test_delete_removes_every_occurrence_with_its_comma(written: Written, key: str) -> None:
    document = Document.parse(written.text.encode())
    edited = document.delete(key)
    again = Document.parse(edited.to_bytes())
    assert again.every(key) == () == edited.every(key)
    for name in KEYS:
        if name != key:
            assert again.every(name) == document.every(name) == edited.every(name)
    keys = document.keys()
    assert again.keys() == edited.keys() == tuple(name for name in keys if name != key)
    if edited is not document:
        assert len(edited.to_bytes()) < len(document.raw)
    assert edited.delete(key) is edited


@pytest.mark.parametrize(
    ("raw", "keys", "rest"),
    [
        (b'{ "a": 1, "b": 2, "c": 3 }', "a", b'{ "b": 2, "c": 3 }'),
        (b'{ "a": 1, "b": 2, "c": 3 }', "b", b'{ "a": 1, "c": 3 }'),
        (b'{ "a": 1, "b": 2, "c": 3 }', "bc", b'{ "a": 1 }'),
        (b'{ "a": 1, "b": 2, "c": 3 }', "ac", b'{ "b": 2 }'),
        (b'{"a":1}', "a", b"{}"),
        (b'{"a":1,"a":2,"b":3}', "a", b'{"b":3}'),
    ],
)
def test_what_stays_keeps_its_spacing(raw: bytes, keys: str, rest: bytes) -> None:
    document = Document.parse(raw)
    for key in keys:
        document = document.delete(key)
    assert document.to_bytes() == rest


Edit = tuple[str, str, str]


@given(
    objects(),
    st.lists(st.tuples(st.sampled_from(["set", "delete"]), st.sampled_from(KEYS), VALUES), max_size=6),
)
def test_any_series_of_edits_gives_what_a_dictionary_would(written: Written, edits: list[Edit]) -> None:
    document = Document.parse(written.text.encode())
    expected = {key: value.encode() for key, value in written.members}
    for action, key, value in edits:
        if action == "set":
            document = document.set(key, value.encode())
            expected[key] = value.encode()
        else:
            document = document.delete(key)
            expected.pop(key, None)
    again = Document.parse(document.to_bytes())
    for reader in (document, again, document.without_duplicates()):
        keys = reader.keys()
        assert {key: reader.get(key) for key in keys} == expected
    assert Document.parse(document.without_duplicates().to_bytes()).duplicates == frozenset()


def test_a_key_is_appended_where_the_last_one_was_deleted() -> None:
    document = Document.parse(b'{"a":1, "c":3 }')
    assert document.delete("c").set("z", b"1").to_bytes() == b'{"a":1,"z":1 }'
    assert document.delete("a").delete("c").set("z", b"1").set("y", b"2").to_bytes() == b'{"z":1,"y":2 }'


def test_a_deleted_key_that_is_set_again_stands_where_it_stood() -> None:
    document = Document.parse(b'{"a":1,"b":2}')
    assert document.delete("a").set("a", b"3").to_bytes() == b'{"a":3,"b":2}'
    assert document.delete("a").set("a", b"1").to_bytes() is document.raw
    appended = document.set("c", b"1")
    assert appended.delete("c").to_bytes() is document.raw


def test_without_duplicates_leaves_the_occurrence_that_was_read() -> None:
    document = Document.parse(b'{"max_tokens":9999, "model":"m", "max_tokens":10}')
    single = document.without_duplicates()
    assert single.to_bytes() == b'{"model":"m", "max_tokens":10}'
    assert single.duplicates == frozenset()
    assert single.every("max_tokens") == (b"10",)
    assert single.set("max_tokens", b"5").to_bytes() == b'{"model":"m", "max_tokens":5}'
    clean = Document.parse(b'{"a":1}')
    assert clean.without_duplicates() is clean


# --- paths and arrays --------------------------------------------------------------------------------------


def test_paths_reach_into_objects_and_arrays() -> None:
    document = Document.parse(b'{"a":{"b":[1, {"c":"x"}]},"s":"text"}')
    assert document.get_path(("a", "b", 1, "c")) == b'"x"'
    assert document.get_path(("a", "b", -2)) == b"1"
    assert document.get_path(("a", "b", 7)) is None
    assert document.get_path(("s", "b")) is None
    assert document.get_path(()) is None


def test_a_value_is_set_at_a_path_and_its_surroundings_stay() -> None:
    document = Document.parse(b'{"a": {"b" : [1, {"c": 1E2} ]} ,"d":1}')
    assert document.set_path(("a", "b", 1, "c"), b"3").to_bytes() == b'{"a": {"b" : [1, {"c": 3} ]} ,"d":1}'
    assert document.set_path(("a", "n", "m"), b"3").get("a") == b'{"b" : [1, {"c": 1E2} ],"n":{"m":3}}'
    assert document.set_path(("n", "m"), b"3").to_bytes().endswith(b',"n":{"m":3}}')
    assert document.set_path(("a", "b", 1, "c"), b"1E2") is document


def test_null_parents_become_objects_and_others_are_left_alone() -> None:
    document = Document.parse(b'{"a":null,"b":"x","c":[]}')
    assert document.set_path(("a", "k"), b"1").get("a") == b'{"k":1}'
    assert document.set_path(("b", "k"), b"1") is document
    assert document.set_path(("c", 0), b"1") is document


def test_duplicates_are_edited_at_every_level() -> None:
    document = Document.parse(b'{"r":{"e":1,"e":2},"r":{"e":3,"x":0,"e":4}}')
    assert document.every_path(("r", "e")) == (b"1", b"2", b"3", b"4")
    edited = document.set_path(("r", "e"), b"5")
    assert edited.every_path(("r", "e")) == (b"5",) * 4
    assert edited.to_bytes() == b'{"r":{"e":5,"x":0,"e":5},"r":{"e":5,"x":0,"e":5}}'


def test_a_member_or_element_is_deleted_at_a_path() -> None:
    document = Document.parse(b'{"a":{"b":[1, 2, 3],"c":4}}')
    assert document.delete_path(("a", "b", 1)).to_bytes() == b'{"a":{"b":[1, 3],"c":4}}'
    assert document.delete_path(("a", "b", -1)).to_bytes() == b'{"a":{"b":[1, 2],"c":4}}'
    assert document.delete_path(("a", "b")).to_bytes() == b'{"a":{"c":4}}'
    assert document.delete_path(("a",)).to_bytes() == b"{}"
    for path in ((), ("x",), ("a", "x"), ("a", "b", 3), ("a", "c", "d")):
        assert document.delete_path(path) is document


@given(st.lists(VALUES, max_size=6), st.sets(st.integers(0, 7)), st.sampled_from(["", " ", "\n "]))
def test_kept_elements_keep_their_bytes_and_order(values: list[str], kept: set[int], space: str) -> None:
    text = f"[{space}" + f"{space},{space}".join(values) + f"{space}]" if values else f"[{space}]"
    document = Document.parse(b'{"x":1, "m" : ' + text.encode() + b'  ,"y":2}')
    elements = tuple(value.encode() for value in values)
    assert document.array("m") == elements
    edited = document.keep_elements("m", kept)
    assert edited.array("m") == tuple(value for index, value in enumerate(elements) if index in kept)
    assert Document.parse(edited.to_bytes()).array("m") == edited.array("m")
    if kept.issuperset(range(len(values))):
        assert edited is document


def test_what_is_no_array_has_no_elements() -> None:
    document = Document.parse(b'{"m":"x","n":{"a":1}}')
    for key in ("m", "n", "absent"):
        assert document.array(key) is None
        assert document.keep_elements(key, []) is document


NESTED_TWICE = [
    (b'{"a":{"b":{"c":9},"b":5}}', b'{"a":{"b":{"c":1},"b":5}}', b'{"a":{"b":{},"b":5}}'),
    (b'{"a":{"b":5,"b":{"c":9}}}', b'{"a":{"b":5,"b":{"c":1}}}', b'{"a":{"b":5,"b":{}}}'),
    (b'{"a":{"b":{"c":9,"c":8}}}', b'{"a":{"b":{"c":1,"c":1}}}', b'{"a":{"b":{}}}'),
    (b'{"a":{"b":{"c":9,"x":1},"b":{"c":2}}}', b'{"a":{"b":{"c":1,"x":1},"b":{"c":1}}}', None),
    (b'{"a":{"b":{"c":9},"b":[1]}}', b'{"a":{"b":{"c":1},"b":[1]}}', None),
    (b'{"a":{ "b" : {"c":9} , "\\u0062":null}}', b'{"a":{ "b" : {"c":1} , "\\u0062":{"c":1}}}', None),
]


@pytest.mark.parametrize(("body", "is_set", "deleted"), NESTED_TWICE)
def test_a_path_leads_through_every_duplicate_at_every_level(
    body: bytes, is_set: bytes, deleted: bytes | None
) -> None:
    document = Document.parse(body)
    assert b"9" in document.every_path(("a", "b", "c"))
    assert document.set_path(("a", "b", "c"), b"1").to_bytes() == is_set
    if deleted is not None:
        assert document.delete_path(("a", "b", "c")).to_bytes() == deleted


def test_digits_are_a_key_or_an_index_whichever_stands_there() -> None:
    document = Document.parse(b'{"x":{"a":{"0":{"b":9}},"a":[{"b":8}]}}')
    assert document.every_path(("x", "a", "0", "b")) == (b"9", b"8")
    assert (
        document.set_path(("x", "a", "0", "b"), b"1").to_bytes() == b'{"x":{"a":{"0":{"b":1}},"a":[{"b":1}]}}'
    )
    assert document.set_path(("x", "a", "9" * 5_000, "b"), b"1") is not None
