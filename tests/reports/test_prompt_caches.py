"""Prompt caches that cost more than they save elsewhere (wire trap 22), through the whole proxy.

GPT-5.6 and later: requests that share only a system text hit nothing and pay for writing, one-shots pay a
quarter more for nothing, more than 15 requests a minute spread one key over machines, earlier models answer
400 to the new parameters. The upstream bills as the providers do.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.caching_upstream import CachingProvider
from tests.support.raw_upstream import RawUpstream
from tests.support.weir import weir

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
HANDBOOK = "Answer from the handbook of the parcel service, and from nothing else. " * 80
Request = dict[str, Any]


@contextmanager
def sending(tmp_path: Path, provider: CachingProvider, step: str, path: str, who: str) -> Iterator[Any]:
    with RawUpstream(provider) as upstream:
        policy = (
            f"version: 1\nupstreams: {{up: {{base_url: '{upstream.url}', provider: {who}}}}}\n"
            f"routes:\n  - name: r\n    match: {{path: {path}}}\n    steps: [{step}]\n"
        )
        with weir(tmp_path, None, policy) as proxy:
            client = proxy.client()

            def send(request: Request) -> None:
                assert client.request("POST", path, json.dumps(request).encode()).status == 200

            yield send


def bills(
    tmp_path: Path, requests: Sequence[Request], step: str, path: str = CHAT, who: str = "openai"
) -> tuple[list[float], list[float]]:
    """Return what requests cost as they are, and with a step."""
    found = []
    for steps in ("", step):
        provider = CachingProvider()
        with sending(tmp_path, provider, steps, path, who) as send:
            for request in requests:
                send(request)
        found.append(provider.bills)
    return found[0], found[1]


def chat(*turns: tuple[str, str], model: str = "gpt-5.6-sol") -> Request:
    return {"model": model, "messages": [{"role": role, "content": text} for role, text in turns]}


def questions(count: int, system: str = HANDBOOK) -> list[Request]:
    return [chat(("system", system), ("user", f"Question {number}: where is it?")) for number in range(count)]


def test_requests_that_share_a_system_text_hit_the_cache(tmp_path: Path) -> None:
    before, after = bills(tmp_path, questions(10), "align_prefix")
    assert min(before) > 1.2 * 1400, "as they are, each of them pays for writing"
    assert after[0] == pytest.approx(before[0], rel=0.01)
    assert max(after[1:]) < 0.15 * min(before)


def test_a_line_that_changes_at_the_top_costs_nothing_any_more(tmp_path: Path) -> None:
    requests = [
        chat(("system", f"It is 18:{minute}\n\n{HANDBOOK}"), ("user", "Where?")) for minute in range(10, 20)
    ]
    plain, marked = bills(tmp_path, requests, "align_prefix")
    assert sum(marked) == pytest.approx(sum(plain), rel=0.01), "the lines have to be declared"
    before, after = bills(tmp_path, requests, "{align_prefix: {volatile: [time]}}")
    assert sum(after) < 0.25 * sum(before)


def test_one_shots_do_not_pay_for_writing(tmp_path: Path) -> None:
    requests = [chat(("user", f"Document {number}. " + "Sum up. " * 900)) for number in range(5)]
    before, after = bills(tmp_path, requests, "{align_prefix: {one_shot: true}}")
    assert sum(after) == pytest.approx(sum(before) / 1.25)


def test_one_shots_with_instructions_in_common_pay_for_those_once(tmp_path: Path) -> None:
    requests = [chat(("system", HANDBOOK), ("user", f"{number} " + "Sum up. " * 900)) for number in range(8)]
    before, after = bills(tmp_path, requests, "{align_prefix: {one_shot: true}}")
    assert sum(after) < 0.62 * sum(before)


def test_conversations_are_cached_as_before(tmp_path: Path) -> None:
    turns = [("system", HANDBOOK)]
    requests = []
    for number in range(6):
        turns.append(("user", f"And {number}? " + "word " * 50))
        requests.append(chat(*turns))
        turns.append(("assistant", "So. " * 60))
    before, after = bills(tmp_path, requests, "align_prefix")
    assert sum(after) <= sum(before) * 1.001


def test_no_key_gets_more_than_its_share(tmp_path: Path) -> None:
    provider = CachingProvider()
    step = "{align_prefix: {requests_per_minute: 120}}"
    with sending(tmp_path, provider, step, CHAT, "openai") as send:
        for request in questions(120):
            send(request)
    shares = Counter(provider.keys)
    assert len(shares) == 8
    assert max(shares.values()) < 30


@pytest.mark.parametrize("model", ["gpt-5.5", "gpt-5-mini", "gpt-4o", "o3", "my-deployment"])
def test_models_that_refuse_the_new_parameters_never_see_them(tmp_path: Path, model: str) -> None:
    provider = CachingProvider(("prompt_cache_options", "prompt_cache_breakpoint"))
    with sending(tmp_path, provider, "{align_prefix: {one_shot: true}}", CHAT, "openai") as send:
        send(chat(("system", HANDBOOK), ("user", "hi"), model=model))
    assert provider.refused == 0
    assert provider.keys[0].startswith("weir-")


def test_a_newer_model_that_refuses_them_is_asked_without_them_from_then_on(tmp_path: Path) -> None:
    provider = CachingProvider(("prompt_cache_options", "prompt_cache_breakpoint"))
    with sending(tmp_path, provider, "{align_prefix: {one_shot: true}}", CHAT, "openai") as send:
        for request in questions(4):
            send(request)
    assert provider.refused == 2, "each of them is refused once"
    assert provider.keys[0] is None, "the first went out as the caller wrote it"
    assert all(key.startswith("weir-") for key in provider.keys[1:])


def test_claude_is_told_what_to_cache_and_not_more_than_pays(tmp_path: Path) -> None:
    def request(*turns: str) -> Request:
        said = [
            {"role": role, "content": text}
            for role, text in zip(("user", "assistant") * len(turns), turns, strict=False)
        ]
        return {"model": "claude-sonnet-5", "max_tokens": 9, "system": HANDBOOK, "messages": said}

    singles = [request(f"Question {number}?") for number in range(5)]
    before, after = bills(tmp_path, singles, "align_prefix", MESSAGES, "anthropic")
    assert sum(after) < 0.4 * sum(before)

    long = "word " * 400
    turns = ["a " + long]
    talk = [request(*turns)]
    for number in range(4):
        turns += ["b " + long, f"{number} " + long]
        talk.append(request(*turns))
    before, after = bills(tmp_path, talk, "align_prefix", MESSAGES, "anthropic")
    assert sum(after) < 0.6 * sum(before)


def test_dropping_repeated_passages_never_costs_a_cached_prefix(tmp_path: Path) -> None:
    passages = [f"Passage {chr(65 + number)}. " + f"{chr(97 + number)} word " * 60 for number in range(6)]
    turns = [("system", HANDBOOK)]
    requests = []
    for number in range(6):
        picked = [passages[(number + step) % 6] for step in (0, 1, 0, 2)]
        sources = "\n".join(f"[{place}] {text}" for place, text in enumerate(picked, 1))
        turns.append(("user", f"Sources:\n{sources}\n\nQuestion {number}?"))
        requests.append(chat(*turns))
        turns.append(("assistant", "So. " * 20))
    for scope, share in (("last_user", 0.95), ("all", 0.8)):
        before, after = bills(tmp_path, requests, f"{{dedupe_context: {{scope: {scope}}}}}")
        assert all(mine <= other for mine, other in zip(after, before, strict=True))
        assert sum(after) < share * sum(before)
