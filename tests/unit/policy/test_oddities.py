from __future__ import annotations

from collections.abc import Callable

import pytest

from proxy.policy.load import check

Write = Callable[..., str]
Problems = Callable[..., list[str]]


def warnings(problems: Problems, *routes: str) -> list[str]:
    found = problems("version: 1\nroutes:\n" + "".join(f"  - {route}\n" for route in routes))
    assert all(": warning: " in problem for problem in found), found
    return [problem.partition(": warning: ")[2] for problem in found]


def shadowed(problems: Problems, first: str, second: str) -> bool:
    found = warnings(problems, f"{{name: a, match: {first}}}", f"{{name: b, match: {second}}}")
    return any("can never match" in warning for warning in found)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("{}", "{path: /v1/x}"),
        ("{path: /v1/x}", "{path: /v1/x, method: POST}"),
        ("{path: '/v1/*'}", "{path: [/v1/a, '/v1/b*']}"),
        ("{path: /x, model: ['gpt-*', 'o1']}", "{path: /x, model: ['gpt-4o*', o1]}"),
        ("{path: /x, headers: {x-a: '*'}}", "{path: /x, headers: {x-a: '1', x-b: '2'}}"),
        ("{path: /x, stream: true}", "{path: /x, stream: true, tools: false}"),
        ("{path: /x, tokens: {min: 10}}", "{path: /x, tokens: {min: 20, max: 30}}"),
    ],
)
def test_a_route_behind_a_wider_one_can_never_match(problems: Problems, first: str, second: str) -> None:
    assert shadowed(problems, first, second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("{path: /v1/x}", "{}"),
        ("{path: /v1/a}", "{path: [/v1/a, /v1/b]}"),
        ("{path: '/v1/*'}", "{path: '/v*'}"),
        ("{path: /x, model: 'gpt-*'}", "{path: /x}"),
        ("{path: /x, headers: {x-a: '1'}}", "{path: /x, headers: {x-b: '1'}}"),
        ("{path: /x, stream: true}", "{path: /x, stream: false}"),
        ("{path: /x, tokens: {min: 10}}", "{path: /x, tokens: {max: 30}}"),
        ("{path: /x, tokens: {max: 10}}", "{path: /x}"),
    ],
)
def test_a_route_that_still_gets_requests_is_not_reported(
    problems: Problems, first: str, second: str
) -> None:
    assert not shadowed(problems, first, second)


def test_a_shadow_names_the_route_that_casts_it(problems: Problems) -> None:
    found = problems("version: 1\nroutes:\n  - {name: all, match: {}}\n  - {name: b, match: {path: /x}}\n")
    assert len(found) == 1
    assert found[0].startswith("4:5: routes.b: warning: this route can never match: all (")
    assert found[0].endswith("policy.yaml:3) takes all its requests first")


@pytest.mark.parametrize("pattern", ["gpt-.*", "^gpt", "gpt-4$", "gpt-[45]", "(a|b)", "a|b", "gpt\\d"])
def test_what_looks_like_a_regular_expression_is_pointed_out(problems: Problems, pattern: str) -> None:
    (warning,) = warnings(problems, f"{{name: r, match: {{path: /x, model: '{pattern}'}}}}")
    assert warning.startswith("this looks like a regular expression")


def test_ordinary_patterns_are_not_pointed_out(problems: Problems) -> None:
    for pattern in ("gpt-4.1*", "gpt-4o", "*", "ft:gpt-4o:org::id", "meta/llama-3.1"):
        assert warnings(problems, f"{{name: r, match: {{path: /x, model: '{pattern}'}}}}") == []


def test_body_conditions_on_every_path_are_pointed_out(problems: Problems) -> None:
    (warning,) = warnings(problems, "{name: r, match: {model: a}}")
    assert warning == "without match.path every request's body has to be read"


def test_steps_on_an_unknown_api_are_pointed_out(problems: Problems) -> None:
    (warning,) = warnings(problems, "{name: r, match: {path: /v1/files}, steps: [plain]}")
    assert warning == "no step works on /v1/files: its API shape is not known"
    assert warnings(problems, "{name: r, match: {path: /v1/chat/completions}, steps: [plain]}") == []


@pytest.mark.parametrize(
    ("step", "path", "said"),
    [
        (
            "cap_output: {max: 5}",
            "/v1/embeddings",
            "cap_output does nothing on /v1/embeddings: that API has no output cap",
        ),
        (
            "add_stop: [x]",
            "/v1/responses",
            "add_stop does nothing on /v1/responses: that API has no stop sequences",
        ),
        (
            "shape_output: {terse: x}",
            "/v1/completions",
            "shape_output does nothing on /v1/completions: that API has no answer to shape",
        ),
        (
            "choose_model: [{model: x}]",
            "/v1/moderations",
            "choose_model does nothing on /v1/moderations: that API has no choice of model",
        ),
    ],
)
def test_steps_without_meaning_for_an_api_are_pointed_out(
    write: Write, step: str, path: str, said: str
) -> None:
    text = f"version: 1\nroutes: [{{name: r, match: {{path: {path}}}, steps: [{{{step}}}]}}]\n"
    assert [finding.problem for finding in check([write(text)], {})] == [said]
    assert check([write(text.replace(path, "/v1/chat/completions"))], {}) == []


def test_sections_without_effect_are_pointed_out(problems: Problems) -> None:
    pooled = "{name: r, match: {path: /x}, coalesce: {}, urgency: {default: interactive}}"
    assert warnings(problems, pooled) == ["has no effect: the route's requests are all interactive"]
    deferred = "{name: r, match: {path: /x}, urgency: {default: deferrable}}"
    assert warnings(problems, deferred) == ["nothing is deferred: the route has no batch section"]
    assert warnings(problems, "{name: r, match: {path: /x}, coalesce: {}}") == []
    assert warnings(problems, "{name: r, match: {path: /x}, urgency: {default: deferrable}, batch: {}}") == []
