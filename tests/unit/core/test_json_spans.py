from __future__ import annotations

import itertools

from proxy.core.json_spans import parse_object


def members(text: bytes) -> list[tuple[str, bytes]]:
    return [(key, text[start:end]) for key, _, start, end in parse_object(text, 512).members()]


def test_values_made_to_look_like_the_rest_of_the_text_do_not_mislead() -> None:
    # Lengths that fit by chance: the shortcut over the last value of `a` would land inside another value.
    assert members(b'{"a":1,"b":{ },"a":{"z":1,"b":{}}}') == [
        ("a", b"1"),
        ("b", b"{ }"),
        ("a", b'{"z":1,"b":{}}'),
    ]
    assert members(b'{"a":12,"a":1}') == [("a", b"12"), ("a", b"1")]
    assert members(b'{"a":1,"a":12}') == [("a", b"1"), ("a", b"12")]


def test_every_spacing_of_small_objects_is_read_alike() -> None:
    for comma, colon in itertools.product((",", ", ", " ,", "\n,\t"), (":", ": ", " :", " :\r\n")):
        for keys in itertools.product("ab", repeat=3):
            values = ["[1]", '"x,y"', "{}"]
            pairs = [f'"{key}"{colon}{value}' for key, value in zip(keys, values, strict=True)]
            text = ("{" + comma.join(pairs) + "}").encode()
            expected = [(key, value.encode()) for key, value in zip(keys, values, strict=True)]
            assert members(text) == expected


def test_offsets_point_at_keys_and_values() -> None:
    text = ' {"é": 1, "b" :2}'.encode()
    source = parse_object(text, 512)
    assert [(text[start : start + 3], text[begin:end]) for _, start, begin, end in source.members()] == [
        ('"é'.encode(), b"1"),
        (b'"b"', b"2"),
    ]
    assert text[: source.end()].endswith(b"2")
