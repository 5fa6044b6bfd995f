"""Several files as one set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from proxy.core.decision import Urgency
from proxy.policy.findings import PolicyErrors
from proxy.policy.load import check, load
from proxy.policy.model import PolicySet, Upstream

Write = Callable[..., str]
Loader = Callable[..., PolicySet]
Problems = Callable[..., list[str]]

HOME = Upstream(name="home", base_url="http://127.0.0.1:9/v1")


def said(directory: Path) -> list[str]:
    return [str(finding).replace(f"{directory}/", "") for finding in check([str(directory)], {})]


def test_routes_stand_in_the_order_of_file_names(write: Write, tmp_path: Path) -> None:
    write("version: 1\nroutes: [{name: last, match: {path: /b}}]", "20-b.yaml")
    write("version: 1\nroutes: [{name: first, match: {path: /a}}]", "10-a.yaml")
    assert [route.name for route in load([str(tmp_path)], {}, HOME).routes] == ["first", "last"]


def test_upstreams_and_defaults_of_all_files_are_united(write: Write, tmp_path: Path) -> None:
    write("version: 1\nupstreams: {a: {base_url: http://a/v1}}\ndefaults: {upstream: b}", "1.yaml")
    write("version: 1\nupstreams: {b: {base_url: http://b/v1}}\ndefaults: {usage: off}", "2.yaml")
    write("version: 1\nroutes: [{name: r, match: {}, upstream: a}]", "3.yaml")
    policies = load([str(tmp_path)], {})
    assert (set(policies.upstreams), policies.default_upstream) == ({"a", "b"}, "b")
    assert policies.routes[0].usage.value == "off"


def test_what_is_given_twice_names_both_places(write: Write, tmp_path: Path) -> None:
    text = (
        "version: 1\nupstreams:\n  a: {base_url: http://a/v1}\ndefaults:\n  usage: off\n"
        "routes:\n  - {name: r, match: {path: /x}}\n"
    )
    write(text, "1.yaml")
    write(text, "2.yaml")
    found = said(tmp_path)
    assert found[0].startswith("2.yaml:3:6: upstreams.a: upstream a is given twice (first in ")
    assert found[0].endswith("1.yaml:3)")
    assert "2.yaml:5:3: defaults: default usage is given twice" in found[1]
    assert "2.yaml:7:5: routes[0].name: route r is given twice" in found[2]


def test_an_unknown_upstream_is_named_with_a_suggestion(problems: Problems) -> None:
    text = (
        "version: 1\nupstreams: {cloud: {base_url: http://a/v1}}\ndefaults: {upstream: clod}\n"
        "routes: [{name: r, match: {}, upstream: clouds}]\n"
    )
    assert problems(text) == [
        "3:22: defaults.upstream: unknown upstream clod (did you mean cloud?)",
        "4:41: routes[0].upstream: unknown upstream clouds (did you mean cloud?)",
    ]


def test_an_upstream_that_a_step_names_must_be_there(write: Write) -> None:
    text = """
version: 1
upstreams: {cloud: {base_url: http://a/v1}, house: {base_url: http://b/v1}}
defaults: {upstream: cloud}
routes:
  - name: r
    match: {}
    steps:
      - choose_model: [{when: {tools: true}, upstream: house, model: small}, {upstream: hause}]
"""
    (finding,) = check([write(text)], {})
    assert str(finding).endswith(
        ":6:5: routes[0].steps.choose_model: unknown upstream hause (did you mean house?)"
    )
    policies = load([write(text.replace("hause", "house"))], {})
    assert "small" in policies.models


def test_several_upstreams_need_a_default(problems: Problems) -> None:
    (problem,) = problems(
        "version: 1\nupstreams:\n  a: {base_url: http://a/v1}\n  b: {base_url: http://b/v1}\n"
    )
    assert problem == "4:6: upstreams: several upstreams, and defaults.upstream does not say which is used"


def test_one_upstream_is_the_default(load_text: Loader) -> None:
    assert load_text("version: 1\nupstreams: {a: {base_url: http://a/v1}}\n").default_upstream == "a"


def test_a_set_without_upstreams_takes_the_one_that_is_brought(load_text: Loader) -> None:
    policies = load_text("version: 1\nroutes: [{name: r, match: {}, upstream: home}]\n")
    assert policies.upstreams == {"home": HOME}
    assert policies.default_upstream == "home"


def test_a_set_with_upstreams_does_not_take_the_one_that_is_brought(load_text: Loader) -> None:
    assert set(load_text("version: 1\nupstreams: {a: {base_url: http://a/v1}}\n").upstreams) == {"a"}


def test_no_upstream_at_all_is_an_error(write: Write) -> None:
    with pytest.raises(PolicyErrors, match="no upstream is defined"):
        load([write("version: 1\nroutes: [{name: r, match: {}}]\n")], {})


def test_a_route_that_asks_for_a_pool_is_soon(load_text: Loader) -> None:
    routes = load_text(
        "version: 1\nroutes:\n"
        "  - {name: a, match: {path: /a}, coalesce: {}}\n"
        "  - {name: b, match: {path: /b}, coalesce: {}, urgency: {default: interactive}}\n"
        "  - {name: c, match: {path: /c}}\n"
    ).routes
    assert [route.urgency.default for route in routes] == [
        Urgency.SOON,
        Urgency.INTERACTIVE,
        Urgency.INTERACTIVE,
    ]
