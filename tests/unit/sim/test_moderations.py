from __future__ import annotations

import pytest

from tests.unit.sim.running import Sim

PATH = "/v1/moderations"


def test_one_result_for_each_text(sim: Sim) -> None:
    results = sim.post(PATH, {"input": ["some violence here", "a nice day"]}).json()["results"]
    assert [result["flagged"] for result in results] == [True, False]
    assert results[0]["categories"]["violence"] is True
    assert results[0]["category_scores"]["violence"] > 0.8


def test_a_text_is_judged_the_same_alone_and_in_an_array(sim: Sim) -> None:
    alone = sim.post(PATH, {"input": "hate"}).json()["results"]
    assert sim.post(PATH, {"input": ["x", "hate"]}).json()["results"][1:] == alone


def test_parts_are_one_multimodal_input(sim: Sim) -> None:
    parts = [
        {"type": "text", "text": "hate"},
        {"type": "image_url", "image_url": {"url": "https://example.com/x.png"}},
    ]
    results = sim.post(PATH, {"input": parts}).json()["results"]
    assert len(results) == 1
    assert results[0]["category_applied_input_types"]["hate"] == ["text", "image"]


@pytest.mark.parametrize("value", [None, [], 3, ["a", {"type": "text", "text": "b"}], [{"type": "video"}]])
def test_refuses_what_is_not_legal(sim: Sim, value: object) -> None:
    assert sim.post(PATH, {"input": value}).status == 400
