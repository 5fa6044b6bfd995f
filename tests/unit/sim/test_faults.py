from __future__ import annotations

import pytest

from proxy.sim.errors import ApiError
from proxy.sim.faults import FaultBook, over, read_headers, read_metadata
from proxy.sim.scenario import FaultMatch, FaultRule, Faults

SOME = Faults(status=503)


def test_reads_every_kind_of_header() -> None:
    faults = read_headers(
        [
            ("X-Sim-Status", "503"),
            ("x-sim-retry-after", "1.5"),
            ("x-sim-content", "a%0Ab%20%C3%A9"),
            ("x-sim-end-without-done", "true"),
            ("x-other", "1"),
        ]
    )
    assert faults == Faults(status=503, retry_after=1.5, content="a\nb é", end_without_done=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-sim-stattus", "503"),
        ("x-sim-status", "lots"),
        ("x-sim-status", "200"),
        ("x-sim-status", "600"),
        ("x-sim-tokens", "-1"),
        ("x-sim-token-ms", "nan"),
        ("x-sim-token-ms", "inf"),
        ("x-sim-end-without-done", "maybe"),
        ("x-sim-comment-every", "0"),
    ],
)
def test_refuses_what_it_does_not_understand(name: str, value: str) -> None:
    with pytest.raises(ApiError) as refused:
        read_headers([(name, value)])
    assert (refused.value.status, refused.value.code, refused.value.param) == (400, "bad_sim_header", name)


def hits(rule: FaultRule, count: int = 6, seed: int = 1) -> list[int]:
    book = FaultBook((rule,), seed)
    return [number for number in range(1, count + 1) if book.pick("/v1/x", "m", {}) == SOME]


def test_hits_every_so_many_or_the_first_few() -> None:
    assert hits(FaultRule(SOME)) == [1, 2, 3, 4, 5, 6]
    assert hits(FaultRule(SOME, every=3)) == [3, 6]
    assert hits(FaultRule(SOME, first=2)) == [1, 2]
    assert hits(FaultRule(SOME, every=2, first=4)) == [2, 4]


def test_chance_is_drawn_from_the_seed() -> None:
    rule = FaultRule(SOME, chance=0.5)
    assert hits(rule, 200) == hits(rule, 200)
    assert hits(rule, 200) != hits(rule, 200, seed=2)
    assert 60 < len(hits(rule, 200)) < 140
    assert hits(FaultRule(SOME, chance=0.0), 50) == []


def test_matches_path_model_and_headers_together() -> None:
    match = FaultMatch(path="/v1/chat/*", model="gpt-*", headers={"x-team": "a*"})
    book = FaultBook((FaultRule(SOME, match),), 1)
    assert book.pick("/v1/chat/completions", "gpt-4o", {"x-team": "abc"}) == SOME
    assert book.pick("/v1/embeddings", "gpt-4o", {"x-team": "abc"}) == Faults()
    assert book.pick("/v1/chat/completions", "claude", {"x-team": "abc"}) == Faults()
    assert book.pick("/v1/chat/completions", "gpt-4o", {}) == Faults()


def test_an_absent_header_does_not_match_a_star() -> None:
    book = FaultBook((FaultRule(SOME, FaultMatch(headers={"x-team": "*"})),), 1)
    assert book.pick("/", "", {}) == Faults()
    assert book.pick("/", "", {"x-team": ""}) == SOME


def test_the_first_rule_that_hits_wins() -> None:
    book = FaultBook((FaultRule(SOME, every=2), FaultRule(Faults(status=429))), 1)
    assert [book.pick("/", "", {}).status for _ in range(4)] == [429, 503, 429, 503]


def test_headers_go_over_rules_field_by_field() -> None:
    assert over(Faults(tokens=3), Faults(tokens=9, token_ms=1.0)) == Faults(tokens=3, token_ms=1.0)


def test_lets_some_pass_before_it_counts() -> None:
    assert hits(FaultRule(SOME, skip=2)) == [3, 4, 5, 6]
    assert hits(FaultRule(SOME, skip=2, first=1)) == [3]
    assert hits(FaultRule(SOME, skip=1, every=2)) == [3, 5]


def test_matches_the_method() -> None:
    book = FaultBook((FaultRule(SOME, FaultMatch(method="GET")),), 1)
    assert book.pick("/", "", {}, "GET") == SOME
    assert book.pick("/", "", {}, "POST") == Faults()


def test_a_batch_s_metadata_say_what_headers_say() -> None:
    metadata = {"sim_batch_turnaround_seconds": "0.5", "simple": "x", "sim_other": "y"}
    assert read_metadata(metadata) == Faults(batch_turnaround_seconds=0.5)
    with pytest.raises(ApiError):
        read_metadata({"sim_batch_fail_share": "2"})
