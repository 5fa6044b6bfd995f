"""Webhooks from end to end: a promised answer ends, and its configured address hears of it, signed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook

from tests.functional.test_batch_lane import ALICE, BACKGROUND, CHAT, SLOW_BATCHES, TICKET, chat, post
from tests.support.deferring import POLICY, deferring, poll
from tests.support.raw_client import RawAnswer
from tests.support.webhook_receiver import OTHER_SECRET, SECRET, Delivery, Receiver, receiving
from tests.support.weir import RunningWeir

WEBHOOK = ("x-weir-webhook", "ops")
REFUSED = b'{"model":"gpt-5-mini","messages":[],"temperature":7}'


def policy(receiver: Receiver, route: str = "", **fields: str) -> str:
    """Return POLICY with a webhook; `route`: the one that its route names."""
    keys = {"url": f"{receiver.address}/weir", "secret": SECRET} | fields
    hook = ", ".join(f"{key}: {value}" for key, value in keys.items())
    text = POLICY.replace("[prefer,", "[prefer, x-weir-webhook,")
    text = text.replace("routes:", f"webhooks: {{ops: {{{hook}}}}}\nroutes:")
    return text.replace(", EXTRA", f", webhook: {route}, EXTRA") if route else text


def verified(delivery: Delivery, secret: str = SECRET) -> dict[str, Any]:
    """Return the event of a delivery whose signature is right."""
    event: dict[str, Any] = Webhook(secret).verify(delivery.body, delivery.headers)
    assert event["id"] == delivery.headers["webhook-id"]
    return event


def job_id_of(answer: RawAnswer) -> str:
    assert answer.status == 202
    return (answer.header("location") or "").rpartition("/")[2]


def shown(proxy: RunningWeir, job_id: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(proxy.admin(f"/jobs/{job_id}")[1])["notice"]
    return told


def until_told(proxy: RunningWeir, job_id: str) -> dict[str, Any]:
    until = time.monotonic() + 10
    while (notice := shown(proxy, job_id))["state"] == "due":
        assert time.monotonic() < until, notice
        time.sleep(0.02)
    return notice


def test_a_ticket_is_told_to_the_webhook_that_its_caller_names(tmp_path: Path) -> None:
    with receiving() as receiver, deferring(tmp_path, policy=policy(receiver)) as (proxy, _):
        job_id = job_id_of(chat(proxy, headers=[*ALICE, TICKET, WEBHOOK]))
        (delivery,) = receiver.wait(1)
        notice = until_told(proxy, job_id)
        answer = poll(proxy, f"/weir/v1/jobs/{job_id}", ALICE)
        page = proxy.admin("/metrics")[1].decode()
    event = verified(delivery)
    assert (event["type"], event["data"], event["object"]) == ("weir.job.succeeded", {"id": job_id}, "event")
    assert delivery.path == "/weir"
    assert answer.status == 200
    assert notice == {"webhook": "ops", "state": "over", "due_at": None, "tries": 0, "note": "told"}
    assert 'weir_webhook_sent_total{webhook="ops"} 1.0' in page
    assert 'weir_webhook_disabled{webhook="ops"} 0.0' in page


def test_a_background_response_is_told_in_openais_own_words(tmp_path: Path) -> None:
    with receiving() as receiver, deferring(tmp_path, policy=policy(receiver, "ops")) as (proxy, _):
        told = json.loads(post(proxy, "/v1/responses", BACKGROUND).body)
        (delivery,) = receiver.wait(1)
    event = verified(delivery)
    assert (event["type"], event["data"]) == ("response.completed", {"id": told["id"]})
    assert b"late parcel" not in delivery.body


def test_cancelled_and_failed_answers_are_told_as_such(tmp_path: Path) -> None:
    with (
        receiving() as receiver,
        deferring(tmp_path, "batch", SLOW_BATCHES, policy=policy(receiver, "ops")) as (proxy, _),
    ):
        response = json.loads(post(proxy, "/v1/responses", BACKGROUND).body)["id"]
        post(proxy, f"/v1/responses/{response}/cancel", b"")
        job_id = job_id_of(chat(proxy, headers=[*ALICE, TICKET]))
        proxy.client().request("DELETE", f"/weir/v1/jobs/{job_id}", headers=ALICE)
        kinds = {verified(each)["type"] for each in receiver.wait(1)}
    assert "response.cancelled" in kinds
    with receiving() as receiver, deferring(tmp_path, policy=policy(receiver, "ops")) as (proxy, _):
        job_id_of(chat(proxy, REFUSED, [*ALICE, TICKET]))
        (delivery,) = receiver.wait(1)
    assert verified(delivery)["type"] == "weir.job.failed"


def test_held_calls_and_direct_ones_are_not_told(tmp_path: Path) -> None:
    with receiving() as receiver, deferring(tmp_path, policy=policy(receiver, "ops")) as (proxy, _):
        assert chat(proxy).status == 200
        assert chat(proxy, headers=[*ALICE, WEBHOOK, ("x-weir-urgency", "interactive")]).status == 200
        job_id = job_id_of(chat(proxy, CHAT.replace(b"late", b"lost"), [*ALICE, TICKET]))
        (delivery,) = receiver.wait(1)
        time.sleep(0.2)
        assert len(receiver.deliveries) == 1
    assert verified(delivery)["data"]["id"] == job_id


def test_an_unknown_name_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    with receiving() as receiver, deferring(tmp_path, policy=policy(receiver)) as (proxy, sim):
        for name in ("opps", f"{receiver.address}/x"):
            answer = chat(proxy, headers=[*ALICE, TICKET, ("x-weir-webhook", name)])
            error = json.loads(answer.body)["error"]
            assert (answer.status, error["code"]) == (400, "unknown_webhook")
        record = proxy.log(2)[-1]
        assert sim.stats()["executions_total"] == 0
        assert receiver.deliveries == []
    assert (record["route"], record["error"]) == ("deferrable", "unknown_webhook")


def test_a_route_that_does_not_allow_it_takes_no_notice_of_the_header(tmp_path: Path) -> None:
    with receiving() as receiver:
        text = policy(receiver).replace(" x-weir-webhook,", "")
        with deferring(tmp_path, policy=text) as (proxy, _):
            job_id = job_id_of(chat(proxy, headers=[*ALICE, TICKET, ("x-weir-webhook", "nobody")]))
            assert poll(proxy, f"/weir/v1/jobs/{job_id}", ALICE).status == 200
            assert shown(proxy, job_id) is None
        assert receiver.deliveries == []


def test_the_header_does_not_reach_the_upstream(tmp_path: Path) -> None:
    with receiving() as upstream, receiving() as receiver:
        text = policy(receiver).replace("URL", f"{upstream.address}/v1").replace("KEY", "api_key: k")
        with deferring(tmp_path, policy=text) as (proxy, _):
            chat(proxy, headers=[*ALICE, WEBHOOK, ("x-weir-urgency", "interactive")])
        (call,) = upstream.deliveries
    assert "x-weir-webhook" not in call.headers


def test_two_tickets_that_are_alike_but_for_their_webhooks_are_two(tmp_path: Path) -> None:
    again = [("Authorization", "Bearer sk-alice"), ("x-stainless-retry-count", "1"), TICKET]
    with receiving() as receiver, deferring(tmp_path, policy=policy(receiver)) as (proxy, _):
        plain, told = job_id_of(chat(proxy, headers=again)), job_id_of(chat(proxy, headers=[*again, WEBHOOK]))
        assert job_id_of(chat(proxy, headers=[*again, WEBHOOK])) == told != plain
        assert [verified(each)["data"]["id"] for each in receiver.wait(1)] == [told]


def test_a_failed_try_is_repeated_with_the_same_id_after_some_seconds(tmp_path: Path) -> None:
    with receiving() as receiver, deferring(tmp_path, policy=policy(receiver, "ops")) as (proxy, _):
        receiver.statuses = [500]
        job_id = job_id_of(chat(proxy, headers=[*ALICE, TICKET]))
        receiver.wait(1)
        until = time.monotonic() + 5
        while not (notice := shown(proxy, job_id))["tries"]:
            assert time.monotonic() < until
            time.sleep(0.02)
        first, second = receiver.wait(2)
    assert (notice["state"], notice["note"]) == ("due", "it answered 500")
    assert notice["due_at"] is not None
    assert verified(first) == verified(second)


def test_both_secrets_verify_while_one_is_being_replaced(tmp_path: Path) -> None:
    with receiving() as receiver:
        text = policy(receiver, "ops", secret=f"[{OTHER_SECRET}, {SECRET}]")
        with deferring(tmp_path, policy=text) as (proxy, _):
            chat(proxy, headers=[*ALICE, TICKET])
            (delivery,) = receiver.wait(1)
    assert verified(delivery, SECRET) == verified(delivery, OTHER_SECRET)


def test_what_is_not_among_a_webhooks_events_is_not_sent(tmp_path: Path) -> None:
    with receiving() as receiver:
        text = policy(receiver, "ops", events="[weir.job.failed]")
        with deferring(tmp_path, policy=text) as (proxy, _):
            job_id = job_id_of(chat(proxy, headers=[*ALICE, TICKET]))
            assert poll(proxy, f"/weir/v1/jobs/{job_id}", ALICE).status == 200
            assert "weir.job.succeeded" in until_told(proxy, job_id)["note"]
            chat(proxy, REFUSED, [*ALICE, TICKET])
            (delivery,) = receiver.wait(1)
    assert verified(delivery)["type"] == "weir.job.failed"


@pytest.mark.parametrize("status", [302, 410, 500])
def test_a_receiver_that_misbehaves_harms_no_answer(tmp_path: Path, status: int) -> None:
    with receiving() as receiver, deferring(tmp_path, policy=policy(receiver, "ops")) as (proxy, _):
        receiver.always, receiver.answer_headers = status, {"location": "http://127.0.0.1:1/"}
        job_id = job_id_of(chat(proxy, headers=[*ALICE, TICKET]))
        assert poll(proxy, f"/weir/v1/jobs/{job_id}", ALICE).status == 200
        receiver.wait(1)
