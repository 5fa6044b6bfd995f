"""Answers to lines that are odd in themselves, and policies that change or pool while a batch runs."""

from __future__ import annotations

import gzip
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from tests.functional.test_batch_server_run import WORKER, echo, said, serving, text_of
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.serving import POLICY, BatchCaller, chat_line
from tests.support.weir import weir


def test_a_compressed_answer_is_told_in_plain(tmp_path: Path) -> None:
    body = gzip.compress(b'{"choices":[{"message":{"content":"plain"}}]}')
    with serving(tmp_path, lambda call: call.json(body, headers=b"content-encoding: gzip\r\n")) as (proxy, _):
        caller = BatchCaller(proxy)
        results = caller.results(caller.ended(caller.batch([chat_line("a")])))
    assert text_of(results["a"]) == "plain"


def test_an_answer_that_is_cut_is_tried_again_a_few_times(tmp_path: Path) -> None:
    def cutting(call: Call) -> None:
        call.send(b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"choices')
        call.close()

    with serving(tmp_path, cutting) as (proxy, upstream):
        caller = BatchCaller(proxy)
        batch = caller.ended(caller.batch([chat_line("a")]))
        results = caller.results(batch)
        calls = [each for each in proxy.log(4) if each["path"] == "/v1/chat/completions"]
    assert batch["request_counts"] == {"total": 1, "completed": 0, "failed": 1}
    assert results["a"]["response"]["status_code"] == 502
    assert results["a"]["response"]["body"]["error"]["code"] == "upstream_closed"
    assert len(upstream.calls) == 5
    assert {each["error"] for each in calls} == {"upstream_closed"}


def test_an_answer_of_several_lines_is_one_line(tmp_path: Path) -> None:
    with serving(tmp_path, lambda call: call.json(b'{\n  "choices": [\r\n]\n}')) as (proxy, _):
        caller = BatchCaller(proxy)
        results = caller.results(caller.ended(caller.batch([chat_line("a")])))
    assert results["a"]["response"]["body"] == {"choices": []}


def test_a_route_that_is_full_makes_lines_wait(tmp_path: Path) -> None:
    at_once, most = [0], [0]
    lock = threading.Lock()

    def counting(call: Call) -> None:
        with lock:
            at_once[0] += 1
            most[0] = max(most[0], at_once[0])
        time.sleep(0.02)
        with lock:
            at_once[0] -= 1
        echo(call)

    route = "routes: [{name: narrow, match: {path: /v1/chat/completions}, max_concurrent: 1}]\n"
    with serving(tmp_path, counting, policy=POLICY + route) as (proxy, upstream):
        caller = BatchCaller(proxy)
        batch = caller.ended(caller.batch([chat_line(f"line-{n}") for n in range(12)]))
    assert batch["request_counts"]["completed"] == 12
    assert most[0] == 1
    assert len(upstream.calls) == 12


def embedded(call: Call) -> None:
    asked: Any = json.loads(call.body)["input"]
    texts = asked if isinstance(asked, list) else [asked]
    data = [
        {"object": "embedding", "index": index, "embedding": [float(len(text))]}
        for index, text in enumerate(texts)
    ]
    usage = {"prompt_tokens": len(texts), "total_tokens": len(texts)}
    call.json(json.dumps({"object": "list", "data": data, "model": "tiny", "usage": usage}).encode())


def test_lines_may_be_pooled(tmp_path: Path) -> None:
    route = """
routes:
  - name: embeddings
    match: {path: /v1/embeddings}
    coalesce: {window: auto, max_wait: 50ms, max_items: 8}
"""
    with serving(tmp_path, embedded, policy=POLICY + route) as (proxy, _):
        caller = BatchCaller(proxy)
        lines = [
            {
                "custom_id": f"line-{n}",
                "method": "POST",
                "url": "/v1/embeddings",
                "body": {"model": "tiny", "input": "x" * (n + 1)},
            }
            for n in range(40)
        ]
        batch = caller.ended(caller.batch(lines, endpoint="/v1/embeddings"))
        results = caller.results(batch)
        lanes = {each["lane"] for each in proxy.log(40) if each["path"] == "/v1/embeddings"}
    assert batch["request_counts"]["completed"] == 40
    assert lanes == {"coalesce"}
    for n in range(40):
        answer = results[f"line-{n}"]["response"]["body"]
        assert answer["data"][0]["embedding"] == [n + 1.0]


def test_lines_take_the_policies_that_are_in_force_when_they_run(tmp_path: Path) -> None:
    route = "routes: [{name: all, match: {path: /v1/chat/completions}, steps: [cap_output: {max: 9}]}]\n"
    file = tmp_path / "policy.yaml"
    reached = threading.Event()

    def slow(call: Call) -> None:
        time.sleep(0.02)
        if json.loads(call.body)["max_tokens"] == 9:
            reached.set()
        echo(call)

    with RawUpstream(slow) as upstream:
        policy = POLICY.replace("URL", upstream.url)
        file.write_text(policy, encoding="utf-8")
        with weir(tmp_path, None, file, store=f"sqlite:{tmp_path / 'jobs.db'}", worker=WORKER) as proxy:
            caller = BatchCaller(proxy)
            batch_id = caller.batch([chat_line(f"line-{n}", max_tokens=99) for n in range(600)])
            caller.until(batch_id, completed=3)
            new = tmp_path / "new.yaml"
            new.write_text(policy + route, encoding="utf-8")
            os.replace(new, file)
            proxy.call(proxy.app.reload)
            assert reached.wait(10)
            caller.json("POST", f"/v1/batches/{batch_id}/cancel")
            batch = caller.ended(batch_id)
    caps = [json.loads(call.body)["max_tokens"] for call in upstream.calls]
    assert batch["status"] == "cancelled"
    assert set(caps) == {99, 9}
    assert said(upstream.calls[0]) == "hello"


def test_many_small_batches_all_end(tmp_path: Path) -> None:
    with serving(tmp_path) as (proxy, upstream):
        caller = BatchCaller(proxy)
        ids = [caller.batch([chat_line("a", f"batch {n}")]) for n in range(30)]
        batches = [caller.ended(batch_id) for batch_id in ids]
        texts = [text_of(caller.results(batch)["a"]) for batch in batches]
    assert texts == [f"batch {n}" for n in range(30)]
    assert len(upstream.calls) == 30
