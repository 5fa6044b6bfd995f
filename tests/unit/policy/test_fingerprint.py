from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from proxy.policy.model import PolicySet

Loader = Callable[..., PolicySet]

BASE = """\
version: 1
upstreams: {{a: {{base_url: 'http://h/v1', api_key: '${{KEY}}', proxy: '{proxy}'}}}}
routes:
  - {{name: r, match: {{path: /x, model: ['{model}']}}, steps: [{{words: [{word}]}}]}}
"""


def version(load_text: Loader, key: str = "k", proxy: str = "env", model: str = "m", word: str = "w") -> str:
    text = BASE.format(proxy=proxy, model=model, word=word)
    return load_text(text, {"KEY": key}).version


def test_is_twelve_hex_digits(load_text: Loader) -> None:
    assert re.fullmatch(r"[0-9a-f]{12}", version(load_text))


def test_is_the_same_for_the_same_policy_written_otherwise(load_text: Loader) -> None:
    one = load_text("version: 1\nroutes: [{name: r, match: {path: /x}, commit_after: 5s}]\n")
    other = load_text('# why\nroutes:\n  - match:\n      path: ["/x"]\n    name: "r"\nversion: 1\n')
    assert one.version == other.version


@pytest.mark.parametrize("changed", [{"model": "n"}, {"word": "v"}, {"proxy": "off"}])
def test_differs_when_something_effective_does(load_text: Loader, changed: dict[str, str]) -> None:
    assert version(load_text) != version(load_text, **changed)


def test_says_nothing_about_secrets(load_text: Loader) -> None:
    assert version(load_text, key="a") == version(load_text, key="b")
    assert version(load_text, proxy="http://u:p@h:1") == version(load_text, proxy="http://u:q@h:1")
    assert version(load_text, proxy="http://h:1") != version(load_text, proxy="http://h:2")


def test_the_presence_of_a_key_is_effective(load_text: Loader) -> None:
    with_key = load_text("version: 1\nupstreams: {a: {base_url: http://h, api_key: k}}\n")
    without = load_text("version: 1\nupstreams: {a: {base_url: http://h}}\n")
    assert with_key.version != without.version


def test_the_order_of_routes_is_effective(load_text: Loader) -> None:
    one, other = "{name: a, match: {path: /a}}", "{name: b, match: {path: /b}}"
    assert (
        load_text(f"version: 1\nroutes: [{one}, {other}]\n").version
        != load_text(f"version: 1\nroutes: [{other}, {one}]\n").version
    )
