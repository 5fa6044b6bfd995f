"""How llama.cpp's server treats connections, and what its callers must not notice of it."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest

from tests.real.asking import BEARER, CHAT, QUESTION, ask, directly, wait_until
from tests.real.served import Setup, records
from tests.support.raw_client import RawAnswer, RawClient

pytestmark = pytest.mark.xdist_group("llama")

IDLE_SECONDS = 4.6
"""A little less than the time after which the server closes a connection on which nothing comes."""


# 1: idle connections are closed after 5 s, every one at its 100th request, and after each stream


def test_connections_that_the_server_closes_when_idle_fail_nobody(llama_chat: Setup) -> None:
    clients = [llama_chat.shipped.client() for _ in range(12)]

    def asked(client: RawClient, answers: list[RawAnswer]) -> None:
        answers.append(ask(client, CHAT, messages=QUESTION, max_tokens=2))

    # All at once, so that the pool keeps several connections, which then grow old together.
    answers: list[RawAnswer] = []
    threads = [threading.Thread(target=asked, args=(client, answers)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pooled_since = time.monotonic()
    time.sleep(IDLE_SECONDS)
    for client in clients:
        asked(client, answers)
        time.sleep(0.05)
    assert time.monotonic() - pooled_since > 5, "the server had no reason to close anything"
    assert [answer.status for answer in answers] == [200] * 24
    assert {one["error"] for one in records(llama_chat.shipped, answers)} == {None}


def test_the_hundredth_request_of_a_connection_is_followed_by_others(llama_chat: Setup) -> None:
    client = llama_chat.shipped.client()
    answers = []
    for _ in range(230):
        answer = ask(client, CHAT, messages=QUESTION, max_tokens=1)
        answers.append(answer)
        assert answer.status == 200
        # Theirs are about the connection behind Weir.
        assert answer.header("connection") is None
        assert answer.header("keep-alive") is None
    connects = [one["connect_ms"] for one in records(llama_chat.shipped, answers) if one["connect_ms"]]
    assert 2 <= len(connects) <= 4, "a connection carries a hundred requests"


def test_streams_after_which_the_server_closes_without_a_word_fail_nobody(llama_chat: Setup) -> None:
    client = llama_chat.shipped.client()
    answers = []
    for _ in range(40):
        streamed = ask(client, CHAT, messages=QUESTION, max_tokens=2, stream=True)
        assert streamed.body.endswith(b"data: [DONE]\n\n")
        whole = ask(client, CHAT, messages=QUESTION, max_tokens=2)
        assert whole.status == 200
        answers += [streamed, whole]
    assert {one["error"] for one in records(llama_chat.shipped, answers)} == {None}


# 9: too many requests wait, and not even a head is sent meanwhile


def test_requests_that_the_server_lets_wait_are_answered_in_the_end(llama_alone: Setup) -> None:
    answers: list[RawAnswer] = []

    def asked() -> None:
        client = llama_alone.everything.client(30.0)
        long: dict[str, Any] = {"messages": QUESTION, "max_tokens": 1200, "ignore_eos": True, "stream": True}
        answers.append(ask(client, CHAT, BEARER, **long))

    threads = [threading.Thread(target=asked) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 4
    logged = records(llama_alone.everything, answers)
    assert {(one["status"], one["error"], one["tokens_out"]) for one in logged} == {(200, None, 1200)}
    waits = sorted(one["first_byte_ms"] for one in logged)
    assert waits[-1] > 2 * waits[0] + 50, f"nobody waited: {waits}"
    # It is the upstream that lets wait, not Weir.
    assert {one["queue_ms"] for one in logged} == {0.0}


# 10: a caller that leaves ends the work of a stream; a whole answer is written to its end all the same


def _working(setup: Setup) -> int:
    with directly(setup) as client:
        metrics = client.request("GET", "/metrics", headers=BEARER).body.decode()
    names = ("llamacpp:requests_processing", "llamacpp:requests_deferred")
    return sum(int(float(line.split()[1])) for line in metrics.splitlines() if line.startswith(names))


def _connections_in_use(setup: Setup) -> float:
    metrics = setup.shipped.admin("/metrics").body.decode().splitlines()
    lines = [line for line in metrics if line.startswith("weir_upstream_connections{") and "in_use" in line]
    return sum(float(line.split()[-1]) for line in lines)


@pytest.mark.parametrize(("stream", "max_tokens"), [(True, 8000), (False, 1500)])
def test_a_caller_that_leaves_leaves_the_server_too(
    llama_alone: Setup, stream: bool, max_tokens: int
) -> None:
    wait_until(lambda: _working(llama_alone) == 0, seconds=20)
    asked: dict[str, Any] = {
        "messages": QUESTION,
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": stream,
    }
    working, waiting = llama_alone.shipped.client(), llama_alone.shipped.client()
    for client in (working, waiting):
        client.send_request("POST", CHAT, json.dumps(asked).encode(), BEARER)
    wait_until(lambda: _working(llama_alone) == 2)
    assert _connections_in_use(llama_alone) == 2
    working.close()
    waiting.close()
    wait_until(lambda: _connections_in_use(llama_alone) == 0, seconds=1)
    if stream:
        wait_until(lambda: _working(llama_alone) == 0, seconds=2)
