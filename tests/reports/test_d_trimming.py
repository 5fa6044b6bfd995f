"""Trimming that broke conversations elsewhere (reports B48 to B56, B60, B61), through the whole proxy.

The upstream refuses what the real ones refuse. Choices: where what must stay exceeds the budget, the rest
still goes, and a policy may answer 400 instead (B51); no text is added unless a policy names a marker, and
then only inside a tool's result (B60); oversized JSON results lose elements from their end (B61).
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from proxy.tokens.counter import TokenCounter
from proxy.tokens.fixed import FixedCounter
from proxy.tokens.port import Counter
from proxy.tokens.vocabulary import Vocabularies
from tests.support.chat import ANSWER
from tests.support.legality import problems
from tests.support.raw_client import RawAnswer
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.weir import RunningWeir, weir

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
Message = dict[str, Any]


def refusing(dialect: str) -> Any:
    """Return a script that answers 400 to what is not legal in a dialect."""

    def script(call: Call) -> None:
        found = problems(dialect, call.body)
        if found:
            call.json(json.dumps({"error": {"message": "; ".join(found)}}).encode(), b"400 Bad Request")
        else:
            call.json(ANSWER)

    return script


@contextmanager
def trimming(
    tmp_path: Path, options: str, dialect: str = "chat", counter: Counter | None = None
) -> Iterator[tuple[RunningWeir, RawUpstream]]:
    policy = (
        "version: 1\nroutes:\n  - name: trimmed\n"
        f"    match: {{path: {PATHS[dialect]}}}\n    steps: [{{trim_history: {{{options}}}}}]\n"
    )
    with (
        RawUpstream(refusing(dialect)) as upstream,
        weir(tmp_path, upstream.url, policy, counter=counter) as proxy,
    ):
        yield proxy, upstream


def ask(proxy: RunningWeir, body: bytes, dialect: str = "chat") -> RawAnswer:
    return proxy.client(30).request("POST", PATHS[dialect], body)


def chat(messages: Sequence[Message], **more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": messages, **more}).encode()


def sent(upstream: RawUpstream, key: str = "messages") -> list[Any]:
    items: list[Any] = json.loads(upstream.calls[-1].body)[key]
    return items


def says(role: str, text: str) -> Message:
    return {"role": role, "content": text}


def calls(*names: str) -> Message:
    made = [{"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}} for name in names]
    return {"role": "assistant", "content": None, "tool_calls": made}


def result(name: str, text: str) -> Message:
    return {"role": "tool", "tool_call_id": name, "content": text}


WORDS = "word " * 100
"""125 tokens to the counter of these tests: four characters each."""


# B48
def test_a_cut_never_falls_between_a_call_and_its_result(tmp_path: Path) -> None:
    history = [
        says("system", "s"),
        says("user", "go on"),
        calls("1"),
        result("1", WORDS),
        calls("2"),
        result("2", WORDS),
    ]
    for budget in range(1, 330, 15):
        with trimming(tmp_path, f"budget: {budget}") as (proxy, upstream):
            assert ask(proxy, chat(history)).status == 200
            kept = sent(upstream)
            assert kept in (history, [*history[:2], *history[4:]])


# B49
@pytest.mark.parametrize("shortened", [False, True])
def test_parallel_calls_stay_with_all_their_results_or_go(tmp_path: Path, shortened: bool) -> None:
    huge = [calls("a", "b", "c"), result("a", "x"), result("b", "word " * 40_000), result("c", "z")]
    history = [says("user", "old"), *huge, says("assistant", "done"), says("user", "new")]
    options = "budget: 1000" + (", per_message: 100" if shortened else "")
    with trimming(tmp_path, options) as (proxy, upstream):
        assert ask(proxy, chat(history)).status == 200
        names = [message.get("tool_call_id") for message in sent(upstream) if message["role"] == "tool"]
        if shortened:
            assert names == ["a", "b", "c"]
            assert 350 < len(sent(upstream)[3]["content"]) <= 400
        else:
            assert names == []
            assert sent(upstream) == [says("user", "new")]


# B50
@pytest.mark.parametrize("spacing", [(",", ":"), (", ", ": "), (" , ", "  :  ")])
def test_what_fits_goes_out_byte_for_byte(tmp_path: Path, spacing: tuple[str, str]) -> None:
    history = [says("user", "é\n"), calls("a", "b"), result("a", "1"), result("b", "2")]
    body = json.dumps({"model": "m", "temperature": 1.0, "messages": history}, separators=spacing).encode()
    with trimming(tmp_path, "budget: 100000") as (proxy, upstream):
        answer = ask(proxy, body)
        assert upstream.calls[0].body == body
        assert answer.header("x-weir-steps") == "trim_history;unchanged"


# B51
def test_what_is_asked_now_is_never_evicted(tmp_path: Path) -> None:
    system, old, question = "rule " * 2_400, "word " * 800, "what " * 7_200
    history = [says("system", system), says("user", old), says("assistant", old), says("user", question)]
    with trimming(tmp_path, "budget: 8000") as (proxy, upstream):
        answer = ask(proxy, chat(history))
        assert answer.status == 200
        assert sent(upstream) == [history[0], history[3]]
        assert "over=" in (answer.header("x-weir-steps") or "")


# B51
def test_what_cannot_fit_may_be_refused_instead(tmp_path: Path) -> None:
    with trimming(tmp_path, "budget: 100, on_overflow: reject") as (proxy, upstream):
        answer = ask(proxy, chat([says("system", "s"), says("user", WORDS)]))
        assert answer.status == 400
        assert json.loads(answer.body)["error"]["param"] == "messages"
        assert upstream.calls == []
        assert (
            ask(proxy, chat([says("user", WORDS), says("assistant", WORDS), says("user", "hi")])).status
            == 200
        )
        assert sent(upstream) == [says("user", "hi")]


# B52
def test_the_budget_is_used_up_to_one_turn(tmp_path: Path) -> None:
    turns = [says(role, f"{n} " + "word " * 18) for n in range(40) for role in ("user", "assistant")]
    history = [says("system", "rule " * 160), *turns, says("user", "now")]
    counter = FixedCounter()

    def weigh(messages: Sequence[Message]) -> int:
        return sum(counter.count_message(json.dumps(message).encode(), "m").tokens for message in messages)

    turn_tokens = weigh(turns[:2])
    with trimming(tmp_path, "budget: 1000") as (proxy, upstream):
        answer = ask(proxy, chat(history))
        kept = weigh(sent(upstream))
        assert 1000 - turn_tokens < kept <= 1000
        assert answer.header("x-weir-tokens") == f"in={kept}, in_before={weigh(history)}"


ODD_CONTENTS = [
    "a" * 1_000_000,
    "=" * 300_000,
    "你" * 100_000,
    " " * 1_100_000,
    "half a pair: \ud83d " * 1_000,
    "<|endoftext|><|im_start|>" * 1_000,
    "",
    None,
    [],
    [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1_000_000}}],
    [{"type": "text", "text": ""}, {"type": "unheard_of"}, 7, None],
    7,
]
IDS = [
    "word",
    "equal",
    "cjk",
    "spaces",
    "surrogate",
    "special",
    "empty",
    "null",
    "list",
    "image",
    "odd",
    "number",
]


@pytest.fixture(scope="module")
def counter() -> TokenCounter:
    return TokenCounter(Vocabularies())


# B53
@pytest.mark.parametrize("content", ODD_CONTENTS, ids=IDS)
def test_any_content_is_trimmed_in_time_and_nobody_waits(
    tmp_path: Path, content: Any, counter: TokenCounter
) -> None:
    history = [says("user", "old"), {"role": "assistant", "content": content}]
    history += [{"role": "user", "content": content}, calls("a"), {**result("a", ""), "content": content}]
    worst_seconds = 0.0
    for _ in range(3):
        with trimming(tmp_path, "budget: 1, per_message: 16", counter=counter) as (proxy, upstream):
            worst_seconds = _worst_probe(proxy, chat(history))
            assert [message["role"] for message in sent(upstream)] == ["user", "assistant", "tool"]
        if worst_seconds < 0.1:
            return
    raise AssertionError(f"a probe took {worst_seconds} s")


def _worst_probe(proxy: RunningWeir, body: bytes) -> float:
    """Send a request, ask for health all the while, and return the longest that such an answer took."""
    answers: list[RawAnswer] = []
    asking = threading.Thread(target=lambda: answers.append(ask(proxy, body)))
    worst_seconds = 0.0
    asking.start()
    while asking.is_alive():
        started = time.perf_counter()
        assert proxy.admin("/healthz")[0] == 200
        worst_seconds = max(worst_seconds, time.perf_counter() - started)
        asking.join(0.005)
    assert answers[0].status == 200
    return worst_seconds


# B54
def test_signed_blocks_keep_their_bytes_and_places(tmp_path: Path) -> None:
    signed = (
        b'{"role":"assistant","content":[ {"signature" : "c2ln\\u003d", "type":"thinking",'
        b' "thinking":"\\u0065h\\/ \\u00e9"} ,{"type":"tool_use","id":"t","name":"f","input":{"n":1.0}} ]}'
    )
    body = (
        b'{"model":"claude-sonnet-5-5","max_tokens":64,"messages":[{"role":"user","content":"'
        + WORDS.encode() * 4
        + b'"},{"role":"assistant","content":"done"},{"role":"user","content":"new"}, '
        + signed
        + b',{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"'
        + WORDS.encode() * 4
        + b'"}]}]}'
    )
    with trimming(tmp_path, "budget: 200, per_message: 50", "messages") as (proxy, upstream):
        assert ask(proxy, body, "messages").status == 200
        raw = upstream.calls[0].body
        assert raw.startswith(
            b'{"model":"claude-sonnet-5-5","max_tokens":64,"messages":[{"role":"user","content":"new"}, '
        )
        assert signed in raw
        assert len(raw) < 700, "both the old exchange and the long result were cut"


# B54
def test_a_loop_with_thinking_is_replayed_whole(tmp_path: Path) -> None:
    messages: list[Message] = [says("user", WORDS), says("assistant", WORDS), says("user", "new")]
    for number in range(6):
        blocks: list[Message] = [{"type": "tool_use", "id": f"t{number}", "name": "f", "input": {}}]
        if number == 0:
            blocks.insert(0, {"type": "thinking", "thinking": "hm", "signature": "c2ln"})
        messages += [
            {"role": "assistant", "content": blocks},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": f"t{number}", "content": WORDS}],
            },
        ]
    with trimming(tmp_path, "budget: 100", "messages") as (proxy, upstream):
        assert ask(proxy, chat(messages, max_tokens=64), "messages").status == 200
        assert sent(upstream) == messages[2:]


# B55
def test_a_ten_megabyte_picture_keeps_nobody_waiting(tmp_path: Path, counter: TokenCounter) -> None:
    picture = "data:image/png;base64," + base64.b64encode(bytes(range(256)) * 29_297).decode()
    parts = [{"type": "text", "text": "what is this?"}, {"type": "image_url", "image_url": {"url": picture}}]
    history = [says("user", "old"), says("assistant", "old"), {"role": "user", "content": parts}]
    worst_seconds = 0.0
    for _ in range(3):
        with trimming(tmp_path, "budget: 100", counter=counter) as (proxy, upstream):
            worst_seconds = _worst_probe(proxy, chat(history))
            assert sent(upstream) == history[2:]
        if worst_seconds < 0.1:
            return
    raise AssertionError(f"a probe took {worst_seconds} s")


DATA = "A" * 1_900_000
MEDIA: list[tuple[str, Message]] = [
    ("chat", {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64," + DATA}}),
    (
        "chat",
        {
            "type": "file",
            "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64," + DATA[:90_000]},
        },
    ),
    ("chat", {"type": "input_audio", "input_audio": {"data": DATA[:90_000], "format": "mp3"}}),
    ("responses", {"type": "input_image", "image_url": "data:image/jpeg;base64," + DATA}),
    ("messages", {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}}),
]


# B56
@pytest.mark.parametrize(("dialect", "part"), MEDIA, ids=[part["type"] for _, part in MEDIA])
def test_media_cost_what_they_cost_and_are_never_cut(tmp_path: Path, dialect: str, part: Message) -> None:
    key = "input" if dialect == "responses" else "messages"
    text_type = "input_text" if dialect == "responses" else "text"
    looking = {"role": "user", "content": [{"type": text_type, "text": "look"}, part]}
    old = [says("user", "word " * 40_000), says("assistant", "word " * 10)]
    fits = [
        says("user", "hello"),
        says("assistant", "hi"),
        looking,
        says("assistant", "nice"),
        says("user", "and?"),
    ]
    with trimming(tmp_path, "budget: 32000", dialect) as (proxy, upstream):
        for history, kept in ((fits, fits), ([*old, *fits], fits)):
            body = json.dumps({"model": "m", key: history}).encode()
            assert ask(proxy, body, dialect).status == 200
            assert sent(upstream, key) == kept


# B60
@pytest.mark.parametrize("marker", ["", "[…]"])
def test_nothing_is_put_into_the_conversation(tmp_path: Path, marker: str) -> None:
    history = [says("system", "s"), says("user", WORDS), says("assistant", WORDS), says("user", "new")]
    history += [calls("a"), result("a", WORDS)]
    options = "budget: 80, per_message: 50" + (f", marker: '{marker}'" if marker else "")
    with trimming(tmp_path, options) as (proxy, upstream):
        assert ask(proxy, chat(history)).status == 200
        kept = sent(upstream)
        assert kept[:-1] == [history[0], *history[3:5]]
        text = kept[-1]["content"]
        assert text.endswith(marker)
        assert WORDS.startswith(text.removesuffix(marker))
        assert kept[-1] == result("a", text)


# B61
@pytest.mark.parametrize("rule", ["elements", "drop", "text", "keep"])
def test_a_cut_inside_json_leaves_valid_json(tmp_path: Path, rule: str, counter: TokenCounter) -> None:
    rows = [{"id": number, "note": "naïve 你好 👩‍👩‍👧 😀"} for number in range(60_000)]
    text = json.dumps(rows, ensure_ascii=False)
    assert len(text.encode()) > 3_500_000
    history = [says("user", "list them"), calls("a"), result("a", text)]
    with trimming(tmp_path, f"per_message: 1000, json: {rule}", counter=counter) as (proxy, upstream):
        assert ask(proxy, chat(history)).status == 200
        kept = sent(upstream)[-1]["content"]
    match rule:
        case "keep":
            assert kept == text
        case "drop":
            assert kept == "[]"
        case "elements":
            assert json.loads(kept) == rows[: len(json.loads(kept))]
            assert 850 < counter.count_text(kept, "m").tokens <= 1000
        case _:
            assert text.startswith(kept)
            assert 850 < counter.count_text(kept, "m").tokens <= 1000
