"""What a call of a webhook is, and what follows from its answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from proxy.core.clock import ManualClock
from proxy.core.upstream import Secret
from proxy.core.webhook import Webhook
from proxy.observe.metrics import Metrics
from proxy.webhooks.event import Event
from proxy.webhooks.health import FAILURES
from proxy.webhooks.sender import Sender, Told
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.webhook_receiver import OTHER_SECRET, SECRET, Receiver, receiving

EVENT = Event("batch.completed", "batch_1", 1_700_000_000.0)
HOUR = 3600.0


class Bench:
    """A sender with its clock, metrics, and the webhooks that are in force."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self.clock = ManualClock()
        self.metrics = Metrics()
        self.webhooks: dict[str, Webhook] = {}
        self.configure()
        self.sender = Sender(self.clock, self.metrics, lambda: self.webhooks, {}, lambda: 0.0)

    def configure(self, name: str = "ops", path: str = "/hook?team=a%20b", **fields: Any) -> None:
        url = f"{self.receiver.address}{path}"
        values: dict[str, Any] = {"name": name, "url": url, "secrets": (Secret(SECRET),)}
        self.webhooks[name] = Webhook(**(values | fields))

    async def tell(self, name: str = "ops", tries: int = 0, event: Event = EVENT) -> Told:
        return await self.sender.tell(name, event, tries, self.until)

    @property
    def until(self) -> float:
        return 1_700_000_000.0 + 24 * HOUR

    def count(self, metric: str) -> dict[tuple[str, ...], float]:
        return {tuple(labels): cell[0] for labels, cell in self.metrics.snapshot()[metric]}


def run(test: Callable[[Bench], Awaitable[None]], receiver: Receiver) -> None:
    async def whole() -> None:
        bench = Bench(receiver)
        try:
            await test(bench)
        finally:
            await bench.sender.close()

    asyncio.run(whole())


def test_a_call_is_one_signed_post_to_the_very_url() -> None:
    async def test(bench: Bench) -> None:
        assert await bench.tell() == Told(None, "told")

    with receiving() as receiver:
        run(test, receiver)
        (delivery,) = receiver.deliveries
    assert (delivery.method, delivery.path) == ("POST", "/hook?team=a%20b")
    assert delivery.body == EVENT.body()
    assert delivery.headers["content-type"] == "application/json"
    assert delivery.headers["webhook-id"] == EVENT.id
    assert delivery.headers["webhook-timestamp"] == "1700000000"
    assert delivery.headers["webhook-signature"].startswith("v1,")
    assert {"authorization", "cookie"}.isdisjoint(delivery.headers)


@pytest.mark.parametrize("path", ["", "/v1", "/v1/hook", "/V1?x", "/a/../b"])
def test_every_path_stands_for_itself(path: str) -> None:
    async def test(bench: Bench) -> None:
        bench.configure(path=path)
        await bench.tell()

    with receiving() as receiver:
        run(test, receiver)
        (delivery,) = receiver.deliveries
    assert delivery.path == (path or "/")


def test_a_repetition_has_the_same_id_and_body_and_a_timestamp_of_its_own() -> None:
    async def test(bench: Bench) -> None:
        first = await bench.tell()
        assert (first.due, first.is_try) == (bench.clock.wall() + 5.0, True)
        assert first.note == "it answered 500"
        bench.clock.advance(5)
        assert await bench.tell(tries=1) == Told(None, "told")

    with receiving() as receiver:
        receiver.statuses = [500]
        run(test, receiver)
        one, two = receiver.deliveries
    assert (one.headers["webhook-id"], one.body) == (two.headers["webhook-id"], two.body)
    assert one.headers["webhook-timestamp"] != two.headers["webhook-timestamp"]


def test_both_secrets_sign_while_one_is_being_replaced() -> None:
    async def test(bench: Bench) -> None:
        bench.configure(secrets=(Secret(OTHER_SECRET), Secret(SECRET)))
        await bench.tell()

    with receiving() as receiver:
        run(test, receiver)
        (delivery,) = receiver.deliveries
    assert len(delivery.headers["webhook-signature"].split(" ")) == 2


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_a_failure_and_is_not_followed(status: int) -> None:
    async def test(bench: Bench) -> None:
        told = await bench.tell()
        assert told.due is not None
        assert bench.count("weir_webhook_failures_total") == {("ops", "redirect"): 1}

    with receiving() as elsewhere, receiving() as receiver:
        receiver.always = status
        receiver.answer_headers = {"location": f"{elsewhere.address}/inside"}
        run(test, receiver)
        assert elsewhere.deliveries == []


def test_a_receiver_that_takes_too_long_has_not_taken_it() -> None:
    async def test(bench: Bench) -> None:
        bench.configure(timeout_seconds=0.1)
        told = await bench.tell()
        assert (told.due, told.is_try) == (bench.clock.wall() + 5.0, True)
        assert bench.count("weir_webhook_failures_total") == {("ops", "no_answer"): 1}

    with receiving() as receiver:
        receiver.delay_seconds = 0.5
        run(test, receiver)


def test_nobody_there_is_a_failure_that_shows_no_path() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    async def test(bench: Bench) -> None:
        bench.configure(url=f"http://127.0.0.1:{port}/secret-token")
        told = await bench.tell()
        assert told.is_try
        assert "secret-token" not in told.note

    with receiving() as receiver:
        run(test, receiver)


def test_a_long_answer_is_not_read_to_its_end() -> None:
    async def test(bench: Bench) -> None:
        assert await bench.tell() == Told(None, "told")

    with receiving() as receiver:
        receiver.answer_body = b"x" * 20_000_000
        run(test, receiver)


def test_the_status_counts_whatever_becomes_of_the_answers_body() -> None:
    def script(call: Call) -> None:
        call.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")

    with RawUpstream(script) as upstream, receiving() as receiver:

        async def test(bench: Bench) -> None:
            bench.configure(url=f"{upstream.url}/hook", timeout_seconds=0.3)
            assert await bench.tell() == Told(None, "told")

        run(test, receiver)


def test_an_event_that_the_webhook_does_not_take_is_not_sent() -> None:
    async def test(bench: Bench) -> None:
        bench.configure(events=("response.*", "weir.job.failed"))
        told = await bench.tell()
        assert (told.due, told.is_try) == (None, False)
        assert "batch.completed" in told.note

    with receiving() as receiver:
        run(test, receiver)
        assert receiver.deliveries == []


def test_a_webhook_that_the_policies_lost_is_waited_for() -> None:
    async def test(bench: Bench) -> None:
        told = await bench.tell("gone")
        assert (told.due, told.is_try) == (bench.clock.wall() + 5.0, True)
        bench.clock.advance(24 * HOUR)
        assert (await bench.tell("gone", tries=7)).due is None
        assert bench.count("weir_webhook_given_up_total") == {("gone",): 1}

    with receiving() as receiver:
        run(test, receiver)


def test_what_a_receiver_asks_for_is_granted() -> None:
    async def test(bench: Bench) -> None:
        told = await bench.tell()
        assert told.due == bench.clock.wall() + 120.0

    with receiving() as receiver:
        receiver.statuses = [429]
        receiver.answer_headers = {"retry-after": "120"}
        run(test, receiver)


def test_a_410_disables_at_once_and_the_next_success_enables_again() -> None:
    async def test(bench: Bench) -> None:
        await bench.tell()
        bench.sender.measure()
        assert bench.count("weir_webhook_disabled") == {("ops",): 1}
        bench.clock.advance(600)
        postponed = await bench.tell(tries=1)
        assert (postponed.due, postponed.is_try) == (bench.clock.wall() + HOUR - 600, False)
        assert len(bench.receiver.deliveries) == 1
        bench.clock.advance(HOUR - 600)
        assert await bench.tell(tries=1) == Told(None, "told")
        assert (await bench.tell()).note == "told"
        bench.sender.measure()
        assert bench.count("weir_webhook_disabled") == {("ops",): 0}

    with receiving() as receiver:
        receiver.statuses = [410]
        run(test, receiver)
        assert len(receiver.deliveries) == 3


def test_of_many_that_are_due_one_probes_a_disabled_webhook() -> None:
    async def test(bench: Bench) -> None:
        await bench.tell()
        bench.clock.advance(HOUR)
        told = await asyncio.gather(*(bench.tell() for _ in range(5)))
        assert len(bench.receiver.deliveries) == 2
        assert sum(each.is_try for each in told) == 1

    with receiving() as receiver:
        receiver.always = 410
        run(test, receiver)


def test_ten_failures_in_a_row_over_an_hour_disable() -> None:
    async def test(bench: Bench) -> None:
        for _ in range(FAILURES):
            assert (await bench.tell()).note == "it answered 503"
            bench.clock.advance(HOUR / (FAILURES - 1) + 1)
        assert (await bench.tell()).note == "the webhook is disabled"

    with receiving() as receiver:
        receiver.always = 503
        run(test, receiver)
        assert len(receiver.deliveries) == FAILURES


def test_one_success_in_between_keeps_a_webhook_enabled() -> None:
    async def test(bench: Bench) -> None:
        for _ in range(2 * FAILURES):
            await bench.tell()
            bench.clock.advance(HOUR / 4)

    with receiving() as receiver:
        receiver.statuses = ([500] * (FAILURES - 1) + [200]) * 2
        run(test, receiver)
        assert len(receiver.deliveries) == 2 * FAILURES


def test_another_address_under_the_same_name_begins_anew() -> None:
    async def test(bench: Bench) -> None:
        await bench.tell()
        bench.configure(path="/other")
        assert await bench.tell() == Told(None, "told")

    with receiving() as receiver:
        receiver.statuses = [410]
        run(test, receiver)


def test_what_comes_too_late_is_given_up_and_counted() -> None:
    async def test(bench: Bench) -> None:
        bench.clock.advance(23.5 * HOUR)
        told = await bench.tell(tries=7)
        assert (told.due, told.note) == (None, "given up: it answered 500")
        assert bench.count("weir_webhook_given_up_total") == {("ops",): 1}

    with receiving() as receiver:
        receiver.always = 500
        run(test, receiver)


def test_a_webhook_that_has_enough_to_do_is_busy() -> None:
    async def test(bench: Bench) -> None:
        calls = [asyncio.get_running_loop().create_task(bench.tell(), name=f"tell {n}") for n in range(8)]
        bench.receiver.wait(0)
        await asyncio.sleep(0.05)
        assert bench.sender.busy() == {"ops"}
        await asyncio.gather(*calls)
        assert bench.sender.busy() == frozenset()

    with receiving() as receiver:
        receiver.delay_seconds = 0.3
        run(test, receiver)


def test_neither_url_nor_secret_shows() -> None:
    shown = repr(Webhook("ops", "https://example.com/token", (Secret(SECRET),)))
    assert "token" not in shown
    assert SECRET not in shown


def test_a_forward_proxy_of_the_environment_is_used() -> None:
    async def test() -> None:
        with receiving() as forward:
            environment: Mapping[str, str] = {"http_proxy": forward.address}
            webhook = Webhook("ops", "http://hooks.example.test/x?y=1", (Secret(SECRET),))
            sender = Sender(ManualClock(), Metrics(), lambda: {"ops": webhook}, environment, lambda: 0.0)
            try:
                assert (await sender.tell("ops", EVENT, 0, 1e12)).note == "told"
            finally:
                await sender.close()
            assert forward.deliveries[0].path == "http://hooks.example.test/x?y=1"

    asyncio.run(test())
