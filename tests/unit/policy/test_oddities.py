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
        (
            "trim_history: {budget: 5}",
            "/v1/completions",
            "trim_history does nothing on /v1/completions: that API has no conversation",
        ),
        (
            "dedupe_context: {top_k: 3}",
            "/v1/embeddings",
            "dedupe_context does nothing on /v1/embeddings: that API has no passages to read",
        ),
        (
            "align_prefix: {one_shot: true}",
            "/v1/completions",
            "align_prefix does nothing on /v1/completions: that API has no system text",
        ),
    ],
)
def test_steps_without_meaning_for_an_api_are_pointed_out(
    write: Write, step: str, path: str, said: str
) -> None:
    text = f"version: 1\nroutes: [{{name: r, match: {{path: {path}}}, steps: [{{{step}}}]}}]\n"
    assert [finding.problem for finding in check([write(text)], {})] == [said]
    assert check([write(text.replace(path, "/v1/chat/completions"))], {}) == []


def test_trimming_after_passages_were_compared_is_pointed_out(write: Write) -> None:
    def said(*steps: str) -> list[str]:
        listed = ", ".join(f"{{{step}}}" for step in steps)
        path = write(f"version: 1\nroutes: [{{name: r, match: {{path: /v1/messages}}, steps: [{listed}]}}]\n")
        return [finding.problem for finding in check([path], {})]

    trim, everything = "trim_history: {budget: 5}", "dedupe_context: {scope: all}"
    assert said(trim, everything) == []
    assert said("dedupe_context: {scope: last_user}", trim) == []
    assert said(everything, "cap_output: {max: 5}", trim) == [
        "dedupe_context takes what trim_history drops after it for seen: put trim_history first"
    ]


def test_sections_without_effect_are_pointed_out(problems: Problems) -> None:
    pooled = "{name: r, match: {path: /x}, coalesce: {%s}, urgency: {default: interactive}}"
    assert warnings(problems, pooled % "strategies: [warm, pace]") == [
        "has no effect: the route's requests are all interactive and never made to wait like that"
    ]
    assert warnings(problems, pooled % "") == []
    assert warnings(problems, pooled % "strategies: []") == [
        "nothing is carried together: no strategy may be used"
    ]
    soon = pooled.replace("interactive", "soon")
    assert warnings(problems, soon % "strategies: [pace]") == [
        "has no effect: pace does nothing without max_in_flight"
    ]
    assert warnings(problems, soon % "strategies: [pace], max_in_flight: 3") == []
    assert warnings(problems, soon % "strategies: [merge], max_in_flight: 3") == [
        "has no effect: strategies leaves pace out"
    ]
    assert warnings(problems, soon % "max_wait: 5s") == []
    assert warnings(problems, soon % "max_wait: 10m") == [
        "a request may wait 600s for others before it is sent (the default is 20ms)"
    ]
    deferred = "{name: r, match: {path: /x}, urgency: {default: deferrable}}"
    assert warnings(problems, deferred) == ["nothing is deferred: the route has no batch section"]
    direct = "{name: r, match: {path: /x}, urgency: {default: deferrable}, batch: {upstream_tiers: [direct]}}"
    assert warnings(problems, direct) == ["nothing is deferred: direct is no cheaper tier"]
    hasty = "{name: r, match: {path: /x}, urgency: {default: deferrable, deadline: 29s}, batch: {}}"
    assert "nothing is deferred: the deadline is below 30s" in warnings(problems, hasty)
    assert "nothing is deferred: the deadline is below 30s" not in warnings(
        problems, hasty.replace("29s", "30s")
    )


@pytest.mark.parametrize("path", ["/V1/chat/completions", "/v1/Chat/Completions", "'/V1/*'"])
def test_capitals_in_a_path_change_nothing(problems: Problems, path: str) -> None:
    assert shadowed(problems, f"{{path: {path}}}", "{path: /v1/chat/completions}")


def test_capitals_in_a_deployments_name_are_not_pointed_out(problems: Problems) -> None:
    path = "/openai/deployments/GPT-4o/chat/completions"
    assert warnings(problems, f"{{name: r, match: {{path: {path}}}}}") == []


def test_a_step_that_stands_twice_is_pointed_out(problems: Problems) -> None:
    route = "{name: r, match: {path: /v1/completions}, steps: [plain, plain: {level: 1}]}"
    assert warnings(problems, route) == ["plain stands here 2 times; each of them is applied"]


def stop_findings(write: Write, path: str, options: str) -> list[str]:
    text = f"version: 1\nroutes: [{{name: r, match: {{path: {path}}}, steps: [{{add_stop: {options}}}]}}]\n"
    return [finding.problem for finding in check([write(text)], {})]


def test_more_stop_sequences_than_an_api_takes_are_pointed_out(write: Write) -> None:
    chat, five = "/v1/chat/completions", "[a, b, c, d, e]"
    too_many = ["add_stop has 5 sequences, of which at most 4 are ever sent"]
    assert stop_findings(write, chat, five) == too_many
    assert stop_findings(write, "'*'", five) == too_many
    assert stop_findings(write, "/v1/messages", five) == []
    assert stop_findings(write, chat, f"{{sequences: {five}, limit: 8}}") == []
    assert stop_findings(write, chat, "[a, b, c, d]") == []


def test_escapes_in_single_quotes_are_pointed_out(write: Write) -> None:
    chat = "/v1/chat/completions"
    assert stop_findings(write, chat, r"['\nUser:']") == [
        "a stop sequence has a backslash and a letter in it, not a line break or a tab"
    ]
    assert stop_findings(write, chat, r'["\nUser:"]') == []


def test_a_base_url_without_a_path_is_pointed_out_at_its_place(problems: Problems) -> None:
    (problem,) = problems("version: 1\nupstreams: {a: {base_url: 'http://h:8000'}}\n")
    assert problem.startswith("2:27: upstreams.a.base_url: warning: the base URL has no path")


def problems_of(write: Write, path: str, *steps: str) -> list[str]:
    listed = ", ".join(f"{{{step}}}" for step in steps)
    file = write(f"version: 1\nroutes: [{{name: r, match: {{path: {path}}}, steps: [{listed}]}}]\n")
    return [finding.problem for finding in check([file], {})]


CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
ALIGN, TRIM = "align_prefix: {volatile: [date]}", "trim_history: {budget: 5}"


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ((ALIGN, TRIM), ["trim_history changes the prompt after align_prefix: put align_prefix last"]),
        (
            (ALIGN, "shape_output: {terse: x}"),
            ["shape_output changes the prompt after align_prefix: put align_prefix last"],
        ),
        ((TRIM, "shape_output: {terse: x}", ALIGN, "cap_output: {max: 5}"), []),
        (
            ("cap_output: {max: 5}", "choose_model: [{model: x}]"),
            ["steps before choose_model do not see the model that it chooses: put choose_model first"],
        ),
        (("choose_model: [{model: x}]", "cap_output: {max: 5}"), []),
    ],
)
def test_an_order_that_undoes_a_step_is_pointed_out(
    write: Write, steps: tuple[str, ...], said: list[str]
) -> None:
    assert problems_of(write, CHAT, *steps) == said


@pytest.mark.parametrize(
    ("path", "step", "said"),
    [
        (
            RESPONSES,
            "set_params: {reasoning_effort: {default: low}}",
            ["reasoning_effort is a parameter of chat: /v1/responses does not have it"],
        ),
        (
            RESPONSES,
            "set_params: {max_tokens: {max: 100}}",
            ["max_tokens is a parameter of chat: /v1/responses does not have it"],
        ),
        (
            CHAT,
            "set_params: {text.verbosity: {set: low}}",
            ["text is a parameter of Responses: /v1/chat/completions does not have it"],
        ),
        (RESPONSES, "set_params: {reasoning.effort: {default: low}, n: {forbid: true}}", []),
        (CHAT, "set_params: {reasoning_effort: {default: low}}", []),
        ("'*/x'", "set_params: {reasoning_effort: {default: low}}", []),
    ],
)
def test_a_parameter_of_another_api_is_pointed_out(
    write: Write, path: str, step: str, said: list[str]
) -> None:
    assert problems_of(write, path, step) == said


@pytest.mark.parametrize(
    ("path", "steps", "said"),
    [
        (
            CHAT,
            ("set_params: {max_tokens: {max: 100}}",),
            ["max_tokens is bounded, but max_completion_tokens caps an answer, too"],
        ),
        (
            "'*'",
            ("set_params: {max_completion_tokens: {max: 100}}",),
            ["max_completion_tokens is bounded, but max_tokens caps an answer, too"],
        ),
        (CHAT, ("set_params: {max_tokens: {max: 9}, max_completion_tokens: {max: 9}}",), []),
        (CHAT, ("set_params: {max_tokens: {max: 9}}", "cap_output: {max: 9}"), []),
        ("/v1/completions", ("set_params: {max_tokens: {max: 9}}",), []),
    ],
)
def test_a_bound_that_another_cap_passes_by_is_pointed_out(
    write: Write, path: str, steps: tuple[str, ...], said: list[str]
) -> None:
    assert problems_of(write, path, *steps) == said


def test_caps_below_what_an_api_takes_are_pointed_out(write: Write) -> None:
    said = "cap_output.{} is below 16, the least that /v1/responses takes"
    both = "cap_output: {default: 5, max: 15}"
    assert problems_of(write, RESPONSES, both) == [said.format("default"), said.format("max")]
    assert problems_of(write, CHAT, both) == []
    assert problems_of(write, RESPONSES, "cap_output: {default: 16}") == []


SERVER_OF_MODELS = "version: 1\nupstreams: {u: {base_url: 'http://h/v1', provider: %s}}\nroutes:\n  - %s\n"
DEFERRING = "{name: r, match: {path: /v1/chat/completions}, urgency: {default: deferrable}, batch: {}}"


def test_a_server_of_models_has_nothing_to_defer_to(problems: Problems) -> None:
    (found,) = problems(SERVER_OF_MODELS % ("vllm", DEFERRING))
    assert "warning: nothing is deferred: vllm has no cheaper tier" in found
    assert "/v1/batches need no such section" in found
    (found,) = problems(SERVER_OF_MODELS % ("llamacpp, batch_api: {mode: pass}", DEFERRING))
    assert "/v1/batches" not in found, "they are not its own"
    assert problems(SERVER_OF_MODELS % ("openai", DEFERRING)) == []
    chosen = "choose_model: [{when: {tokens: {max: 9}}, model: gpt-4o-mini, upstream: u}]"
    elsewhere = DEFERRING.replace("batch: {}", f"batch: {{}}, steps: [{chosen}]")
    assert "cheaper tier" not in "".join(problems(SERVER_OF_MODELS % ("vllm", elsewhere)))


@pytest.mark.parametrize(
    ("path", "more", "is_heard"),
    [
        ("/v1/chat/completions", "", False),
        ("/v1/chat/completions", ", allow_caller: [prefer]", True),
        ("[/v1/chat/completions, /v1/responses]", "", True),
        ("'/v1/*'", "", True),
    ],
)
def test_a_webhook_that_nothing_can_reach_is_pointed_out(
    problems: Problems, path: str, more: str, is_heard: bool
) -> None:
    secret = "whsec_" + "MTIz" * 8
    hooks = f"webhooks: {{ops: {{url: 'https://h/x', secret: {secret}}}}}\n"
    deferring = f"urgency: {{default: deferrable}}, batch: {{webhook: ops}}{more}"
    route = f"{{name: r, match: {{path: {path}}}, {deferring}}}"
    found = problems(hooks + SERVER_OF_MODELS % ("openai", route))
    assert ["nobody is told" in each for each in found] == ([] if is_heard else [True])
