"""Every provider whose callers Weir serves itself: one life of a batch, of which the server sees calls alone.

docs/providers.md has a row for each of them (tests/test_docs_providers.py).
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.support.job_worker import QUICK
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.serving import CHAT, BatchCaller, chat_line
from tests.support.weir import weir

WORKER = replace(QUICK, name="")


@dataclass(frozen=True, slots=True)
class Served:
    """A provider, what an operator has to say so that it is served, and the priority that its lines get."""

    provider: str
    more: str = ""
    priority: int | None = None

    @property
    def is_default(self) -> bool:
        """Nothing has to be said."""
        return not self.more


SERVED = (
    Served("vllm", priority=100),
    Served("llamacpp"),
    Served("generic", ", batch_api: {mode: serve}"),
)


def answer(call: Call) -> None:
    """Answer a chat; one that asks for too much is refused."""
    asked = json.loads(call.body)
    if asked.get("temperature", 0) > 2:
        call.json(b'{"error":{"message":"too hot","code":"invalid_value"}}', b"400 Bad Request")
        return
    text = f"re: {asked['messages'][-1]['content']}"
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    call.json(json.dumps({"object": "chat.completion", "model": "tiny", "choices": [choice]}).encode())


@pytest.mark.parametrize("case", SERVED, ids=[case.provider for case in SERVED])
def test_a_whole_life_is_served(case: Served, tmp_path: Path) -> None:
    with RawUpstream(answer) as upstream:
        local = f"{{base_url: '{upstream.url}', provider: {case.provider}{case.more}}}"
        policies = f"version: 1\nupstreams: {{local: {local}}}\n"
        kept = f"sqlite:{tmp_path / 'jobs.db'}"
        with weir(tmp_path, None, policies, store=kept, worker=WORKER) as proxy:
            caller = BatchCaller(proxy)
            lines = [chat_line(f"line-{number}", f"text {number}") for number in range(6)]
            batch = caller.ended(caller.batch([*lines, chat_line("hot", temperature=9)]))
            good, bad = caller.lines(batch, "output"), caller.lines(batch, "error")
            for name in ("input_file_id", "output_file_id", "error_file_id"):
                assert caller.json("DELETE", f"/v1/files/{batch[name]}")["deleted"]
            unknown = caller.ask("GET", f"/v1/files/{batch['output_file_id']}/content")
    assert (batch["status"], batch["endpoint"]) == ("completed", CHAT)
    assert batch["request_counts"] == {"total": 7, "completed": 6, "failed": 1}
    texts = {each["custom_id"]: each["response"]["body"]["choices"][0]["message"]["content"] for each in good}
    assert texts == {f"line-{number}": f"re: text {number}" for number in range(6)}
    assert [(each["custom_id"], each["response"]["status_code"]) for each in bad] == [("hot", 400)]
    assert unknown.status == 404
    assert {call.target for call in upstream.calls} == {CHAT.encode()}, (
        "of files and batches it hears nothing"
    )
    asked = [json.loads(call.body) for call in upstream.calls]
    cold = [body for body in asked if "temperature" not in body]
    assert Counter(body["messages"][-1]["content"] for body in cold) == {f"text {n}": 1 for n in range(6)}
    assert {body.get("priority") for body in cold} == {case.priority}


@pytest.mark.parametrize("case", SERVED, ids=[case.provider for case in SERVED])
def test_it_can_be_turned_off(case: Served, tmp_path: Path) -> None:
    """For a server that has a batch API all the same: then nothing of it is Weir's."""

    def list_nothing(call: Call) -> None:
        call.json(b'{"object":"list","data":[]}')

    with RawUpstream(list_nothing) as upstream:
        local = f"{{base_url: '{upstream.url}', provider: {case.provider}, batch_api: {{mode: pass}}}}"
        with weir(tmp_path, None, f"version: 1\nupstreams: {{local: {local}}}\n") as proxy:
            caller = BatchCaller(proxy)
            assert caller.json("GET", "/v1/batches") == caller.json("GET", "/v1/files")
        assert [call.target for call in upstream.calls] == [b"/v1/batches", b"/v1/files"]
