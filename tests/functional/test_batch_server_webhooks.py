"""The end of a served batch is told to its webhook, in the words of OpenAI's own webhooks."""

from __future__ import annotations

import time
from pathlib import Path

from tests.functional.test_batch_server_run import echo, serving
from tests.functional.test_webhooks import verified
from tests.support.raw_upstream import Call
from tests.support.serving import BatchCaller, chat_line
from tests.support.webhook_receiver import SECRET, Receiver, receiving


def policy(receiver: Receiver, usual: str = "night") -> str:
    hook = f"{{url: {receiver.address}/hook, secret: {SECRET}}}"
    return f"""
version: 1
upstreams: {{local: {{base_url: URL, provider: llamacpp, batch_api: {{webhook: {usual}}}}}}}
defaults: {{upstream: local}}
webhooks: {{night: {hook}, other: {hook}}}
routes:
  - {{name: batches, match: {{path: /v1/batches}}, allow_caller: [x-weir-webhook]}}
"""


def slow(call: Call) -> None:
    time.sleep(1.0)
    echo(call)


def test_a_completed_batch_is_told_once(tmp_path: Path) -> None:
    with receiving() as receiver, serving(tmp_path, policy=policy(receiver)) as (proxy, _):
        caller = BatchCaller(proxy)
        batch = caller.ended(caller.batch([chat_line("a"), chat_line("b")]))
        (delivery,) = receiver.wait(1)
        time.sleep(0.3)
        assert len(receiver.deliveries) == 1
        assert proxy.metric("weir_webhook_sent_total", webhook="night") == 1
    event = verified(delivery)
    assert (event["type"], event["data"]) == ("batch.completed", {"id": batch["id"]})
    assert event["created_at"] == batch["completed_at"]


def test_failed_and_cancelled_batches_are_told_as_such(tmp_path: Path) -> None:
    with receiving() as receiver, serving(tmp_path, slow, policy(receiver)) as (proxy, _):
        caller = BatchCaller(proxy)
        failed = caller.batch([{"custom_id": "a"}])
        cancelled = caller.batch([chat_line("a"), chat_line("b")])
        caller.json("POST", f"/v1/batches/{cancelled}/cancel")
        told = {verified(each)["data"]["id"]: verified(each)["type"] for each in receiver.wait(2)}
    assert told == {failed: "batch.failed", cancelled: "batch.cancelled"}


def test_a_failed_try_is_repeated_with_the_same_id_while_other_batches_are_worked_on(tmp_path: Path) -> None:
    """Four long batches take every place for work; an end is told beside them."""
    with receiving() as receiver, serving(tmp_path, policy=policy(receiver)) as (proxy, upstream):
        receiver.statuses = [503]
        caller = BatchCaller(proxy)
        caller.ended(caller.batch([chat_line("a")]))
        receiver.wait(1)
        upstream.script = hanging
        for _ in range(5):
            caller.batch([chat_line("a", "wait")])
        first, second = receiver.wait(2)
    assert verified(first) == verified(second)


def hanging(call: Call) -> None:
    time.sleep(9.0)


def test_the_creating_request_may_name_another_webhook(tmp_path: Path) -> None:
    with receiving() as receiver, serving(tmp_path, policy=policy(receiver)) as (proxy, _):
        caller = BatchCaller(proxy, ("x-weir-webhook", "other"))
        caller.ended(caller.batch([chat_line("a")]))
        receiver.wait(1)
        until = time.monotonic() + 5
        while not proxy.metric("weir_webhook_sent_total", webhook="other"):
            assert time.monotonic() < until
            time.sleep(0.02)


def test_no_webhook_no_word(tmp_path: Path) -> None:
    with (
        receiving() as receiver,
        serving(tmp_path, policy=policy(receiver).replace("webhook: night", "mode: auto")) as (proxy, _),
    ):
        caller = BatchCaller(proxy)
        caller.ended(caller.batch([chat_line("a")]))
        time.sleep(0.3)
        assert receiver.deliveries == []
