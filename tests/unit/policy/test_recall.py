"""Outcomes of steps are worked out once per route, model and API shape, and only where they are the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.core.clock import ManualClock
from proxy.pipeline import Pipeline, Request
from proxy.policy.load import load
from proxy.tokens.fixed import FixedCounter

POLICY = """
version: 1
upstreams: {main: {base_url: "http://127.0.0.1:9/v1"}}
routes:
  - name: capped
    match: {path: "/v1/*"}
    steps:
      - cap_output: {default: 300, max: 800}
      - add_stop: ["END"]
"""


class Deciding:
    """A pipeline whose upstream refuses `refused`, asked for the body that it would send."""

    def __init__(self, tmp_path: Path) -> None:
        file = tmp_path / "policy.yaml"
        file.write_text(POLICY)
        self.refused: frozenset[str] = frozenset()
        policies = load([str(file)], {})
        self._pipeline = Pipeline(
            policies, FixedCounter(), ManualClock(), refusals=lambda upstream, model: self.refused
        )

    def sent(self, body: str, path: str = "/v1/chat/completions") -> str:
        headers: dict[str, str] = {}
        request = Request("POST", path, headers.get, body.encode())
        candidates = self._pipeline.candidates("POST", path, request.header)
        decision = self._pipeline.decide(request, candidates)
        assert decision.document is not None
        return decision.document.to_bytes().decode()


@pytest.fixture
def deciding(tmp_path: Path) -> Deciding:
    return Deciding(tmp_path)


def test_the_second_request_is_treated_like_the_first(deciding: Deciding) -> None:
    for spaces in ("", " ", "   "):
        sent = deciding.sent(f'{{"model":"gpt-4o",{spaces}"messages":[]}}')
        assert sent == f'{{"model":"gpt-4o",{spaces}"messages":[],"max_tokens":300,"stop":["END"]}}'


def test_models_and_api_shapes_are_told_apart(deciding: Deciding) -> None:
    assert '"max_tokens":300' in deciding.sent('{"model":"gpt-4o"}')
    assert deciding.sent('{"model":"o3"}') == '{"model":"o3"}'
    assert (
        deciding.sent('{"model":"gpt-4o"}', "/v1/responses") == '{"model":"gpt-4o","max_output_tokens":300}'
    )
    assert '"stop_sequences":["END"]' in deciding.sent('{"model":"gpt-4o"}', "/v1/messages")


def test_what_a_request_says_itself_is_never_recalled_away(deciding: Deciding) -> None:
    deciding.sent('{"model":"gpt-4o"}')
    assert deciding.sent('{"model":"gpt-4o","max_tokens":5000}') == (
        '{"model":"gpt-4o","max_tokens":800,"stop":["END"]}'
    )
    assert '"stop":["mine","END"]' in deciding.sent('{"model":"gpt-4o","stop":["mine"]}')
    assert deciding.sent('{"model":"gpt-4o","tools":[{"type":"function"}]}').endswith('"function"}]}')
    assert deciding.sent('{"model":"o3","model":"gpt-4o"}').startswith('{"model":"gpt-4o"')


def test_a_refusal_learnt_meanwhile_is_heeded(deciding: Deciding) -> None:
    assert '"stop"' in deciding.sent('{"model":"gpt-4o"}')
    deciding.refused = frozenset({"stop"})
    assert deciding.sent('{"model":"gpt-4o"}') == '{"model":"gpt-4o","max_tokens":300}'
