from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.decision import Urgency
from proxy.policy.conditions import RequestFacts
from proxy.policy.match import RouteTable
from proxy.policy.model import Match, PolicySet, Route, TokenRange, UrgencyPolicy, UrgencyWhen

CHAT = "/v1/chat/completions"


def headers(**given: str) -> Callable[[str], str | None]:
    return {name.replace("_", "-"): value for name, value in given.items()}.get


def facts(
    model: str | None = "gpt-4o", *, tools: bool = False, stream: bool = False, tokens: int = 10
) -> RequestFacts:
    return RequestFacts(model, tools, stream, lambda: tokens)


def uncountable() -> int:
    raise AssertionError("tokens were counted although nothing depends on them")


def table(*routes: tuple[str, Match]) -> RouteTable:
    return RouteTable(PolicySet("v", {}, "d", tuple(Route(name, match) for name, match in routes)))


def names(routes: tuple[Route, ...]) -> list[str]:
    return [route.name for route in routes]


def test_the_first_route_whose_conditions_all_hold_wins() -> None:
    routes = table(
        ("team", Match(path=(CHAT,), headers=(("x-team", ("support",)),))),
        ("model", Match(path=(CHAT,), model=("gpt-4o*", "gpt-5*"))),
        ("rest", Match(path=(CHAT,))),
    )
    picked = routes.pick(routes.candidates("POST", CHAT, headers(x_team="support")), facts())
    assert picked is not None
    assert picked.name == "team"
    picked = routes.pick(routes.candidates("POST", CHAT, headers()), facts("gpt-5-mini"))
    assert picked is not None
    assert picked.name == "model"
    picked = routes.pick(routes.candidates("POST", CHAT, headers()), facts("other"))
    assert picked is not None
    assert picked.name == "rest"


def test_candidates_are_judged_by_the_head_alone() -> None:
    routes = table(
        ("get", Match(path=(CHAT,), method=("GET",))),
        ("glob", Match(path=("/v1/*",), stream=True)),
        ("elsewhere", Match(path=("/v1/embeddings",))),
        ("anywhere", Match(headers=(("x-a", ("*",)),))),
    )
    assert names(routes.candidates("POST", CHAT, headers())) == ["glob"]
    assert names(routes.candidates("GET", CHAT, headers())) == ["get"]
    assert names(routes.candidates("POST", CHAT, headers(x_a="1"))) == ["glob", "anywhere"]
    assert names(routes.candidates("POST", "/v1/files", headers())) == ["glob"]
    assert names(routes.candidates("POST", "/other", headers(x_a=""))) == ["anywhere"]
    assert names(routes.candidates("POST", "/other", headers())) == []


def test_candidates_end_with_the_first_that_needs_no_body() -> None:
    routes = table(
        ("body", Match(path=(CHAT,), model=("a",))),
        ("all", Match(path=(CHAT,))),
        ("never", Match(path=(CHAT,), model=("b",))),
    )
    assert names(routes.candidates("POST", CHAT, headers())) == ["body", "all"]


def test_an_unmatched_request_has_no_candidates() -> None:
    routes = table(("chat", Match(path=(CHAT,))))
    assert routes.candidates("POST", "/v1/files", headers()) == ()
    assert routes.pick((), facts()) is None


def test_a_body_that_was_not_read_meets_no_condition_about_it() -> None:
    routes = table(("plain", Match(path=(CHAT,), stream=False)), ("all", Match(path=(CHAT,))))
    candidates = routes.candidates("POST", CHAT, headers())
    picked = routes.pick(candidates, None)
    assert picked is not None
    assert picked.name == "all"
    _, lost = routes.explain("POST", CHAT, headers(), None)
    assert [loss.reason for loss in lost] == ["the body was not read"]


def test_tokens_are_counted_only_when_everything_else_holds() -> None:
    routes = table(
        ("big", Match(path=(CHAT,), model=("other",), tokens=TokenRange(min=100))),
        ("rest", Match(path=(CHAT,))),
    )
    picked = routes.pick(
        routes.candidates("POST", CHAT, headers()), RequestFacts("gpt-4o", False, False, uncountable)
    )
    assert picked is not None
    assert picked.name == "rest"


@pytest.mark.parametrize(
    ("match", "reason"),
    [
        (Match(path=("/v1/embeddings", "/v1/x*")), f"path {CHAT} is not /v1/embeddings or /v1/x*"),
        (Match(method=("GET",)), "method POST is not GET"),
        (Match(headers=(("x-job", ("a",)),)), "header x-job is absent"),
        (Match(headers=(("x-team", ("a",)),)), "header x-team has another value"),
        (Match(model=("gpt-5*", "o1")), "model gpt-4o is not gpt-5* or o1"),
        (Match(tools=True), "no tools are offered"),
        (Match(stream=False), "a stream is requested"),
        (Match(tokens=TokenRange(min=11)), "10 tokens are fewer than 11"),
        (Match(tokens=TokenRange(max=9)), "10 tokens are more than 9"),
    ],
)
def test_every_loss_has_its_reason(match: Match, reason: str) -> None:
    routes = table(("lost", match))
    route, lost = routes.explain("POST", CHAT, headers(x_team="secret-team"), facts(stream=True))
    assert route is None
    assert [(loss.route.name, loss.reason) for loss in lost] == [("lost", reason)]


def test_the_other_reasons_about_the_body() -> None:
    routes = table(
        ("tools", Match(tools=False)), ("stream", Match(stream=True)), ("model", Match(model=("a",)))
    )
    _, lost = routes.explain("POST", CHAT, headers(), facts(None, tools=True))
    assert [loss.reason for loss in lost] == [
        "tools are offered",
        "no stream is requested",
        "the body names no model",
    ]


def test_rules_of_urgency_are_matched_like_routes() -> None:
    rule = Match(model=("*-mini",), headers=(("x-a", ("1",)),))
    urgency = UrgencyPolicy(rules=(UrgencyWhen(rule, Urgency.SOON),))
    routes = RouteTable(PolicySet("v", {}, "d", (Route("r", Match(), urgency=urgency),)))
    assert routes.holds(rule, "POST", CHAT, headers(x_a="1"), facts("gpt-mini"))
    assert not routes.holds(rule, "POST", CHAT, headers(), facts("gpt-mini"))
    assert not routes.holds(rule, "POST", CHAT, headers(x_a="1"), facts("gpt"))


PATTERN = st.sampled_from([(), ("a",), ("b",), ("a*",), ("*",), ("a", "b*"), ("ab",)])
MATCH = st.builds(
    Match,
    path=PATTERN,
    method=PATTERN,
    model=PATTERN,
    headers=st.sampled_from([(), (("h", ("a",)),), (("h", ("*",)), ("g", ("a*",))), (("g", ("b",)),)]),
    tools=st.none() | st.booleans(),
    stream=st.none() | st.booleans(),
    tokens=st.none() | st.builds(TokenRange, st.none() | st.integers(0, 3), st.none() | st.integers(0, 3)),
)
WORD = st.sampled_from(["a", "b", "ab", "ba", "c"])


@given(
    st.lists(MATCH, max_size=6),
    WORD,
    WORD,
    st.dictionaries(st.sampled_from("hg"), WORD),
    st.none()
    | st.builds(
        lambda m, t, s, n: facts(m, tools=t, stream=s, tokens=n),
        st.none() | WORD,
        st.booleans(),
        st.booleans(),
        st.integers(0, 3),
    ),
)
def test_what_explain_says_is_what_happens(
    matches: list[Match], method: str, path: str, given_headers: dict[str, str], body: RequestFacts | None
) -> None:
    routes = table(*((str(index), match) for index, match in enumerate(matches)))
    picked = routes.pick(routes.candidates(method, path, given_headers.get), body)
    explained, lost = routes.explain(method, path, given_headers.get, body)
    assert picked is explained
    assert names(tuple(loss.route for loss in lost)) == [
        str(index) for index in range(int(explained.name) if explained is not None else len(matches))
    ]
