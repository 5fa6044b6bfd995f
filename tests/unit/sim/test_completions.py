from __future__ import annotations

from typing import Any

import pytest

from tests.unit.sim.running import Sim

PATH = "/v1/completions"
BASE: dict[str, Any] = {"model": "gpt-3.5-turbo-instruct", "prompt": "Once", "max_tokens": 6}


def ask(sim: Sim, **changes: Any) -> Any:
    return sim.post(PATH, {**BASE, **changes}).json()


def test_a_prompt_gets_the_same_choices_alone_and_in_an_array(sim: Sim) -> None:
    prompts = ["Once", "Twice", "Thrice"]
    together = ask(sim, prompt=prompts, n=2)
    alone = [choice["text"] for prompt in prompts for choice in ask(sim, prompt=prompt, n=2)["choices"]]
    assert [choice["index"] for choice in together["choices"]] == [0, 1, 2, 3, 4, 5]
    assert [choice["text"] for choice in together["choices"]] == alone
    assert len(set(alone)) == 6


def test_usage_is_the_sum(sim: Sim) -> None:
    usage = ask(sim, prompt=["one two", "three"], n=2)["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (3, 24, 27)


def test_token_arrays_are_prompts(sim: Sim) -> None:
    assert len(ask(sim, prompt=[1, 2, 3])["choices"]) == 1
    assert ask(sim, prompt=[1, 2, 3])["usage"]["prompt_tokens"] == 3
    assert len(ask(sim, prompt=[[1, 2], [3]])["choices"]) == 2


def test_sixteen_tokens_are_the_default_cap(sim: Sim) -> None:
    answer = sim.post(PATH, {"model": "x", "prompt": "Once"}).json()
    assert answer["usage"]["completion_tokens"] == 16
    assert answer["choices"][0]["finish_reason"] == "length"


def test_streams_interleave_and_say_the_same(sim: Sim) -> None:
    body = {**BASE, "prompt": ["Once", "Twice"], "stream": True, "stream_options": {"include_usage": True}}
    reply = sim.post(PATH, body)
    *chunks, last = reply.events()
    order = [choice["index"] for chunk in chunks for choice in chunk["choices"] if choice["text"]]
    built = ["", ""]
    for chunk in chunks:
        assert chunk["usage"] is None
        for choice in chunk["choices"]:
            built[choice["index"]] += choice["text"]
    whole = ask(sim, prompt=["Once", "Twice"])
    assert order == [0, 1] * 6
    assert built == [choice["text"] for choice in whole["choices"]]
    assert (last["choices"], last["usage"]) == ([], whole["usage"])
    assert reply.blocks()[-1] == b"data: [DONE]"


def test_echo_repeats_the_prompt(sim: Sim) -> None:
    plain, echoed = ask(sim), ask(sim, echo=True)
    assert echoed["choices"][0]["text"] == "Once" + plain["choices"][0]["text"]
    streamed = sim.post(PATH, {**BASE, "echo": True, "stream": True}).events()
    assert "".join(c["choices"][0]["text"] for c in streamed) == echoed["choices"][0]["text"]


def test_logprobs_cover_every_token(sim: Sim) -> None:
    choice = ask(sim, logprobs=1)["choices"][0]
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
    assert choice["logprobs"]["text_offset"][0] == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt": ""},
        {"prompt": ["a", 1]},
        {"stop": list("abcde")},
        {"n": 3, "best_of": 2},
        {"best_of": 2, "stream": True},
        {"logprobs": 6},
        {"model": None},
    ],
)
def test_refuses_what_is_not_legal(sim: Sim, changes: dict[str, Any]) -> None:
    reply = sim.post(PATH, {**BASE, **changes})
    assert reply.status == 400
    assert reply.json()["error"]["type"] == "invalid_request_error"
