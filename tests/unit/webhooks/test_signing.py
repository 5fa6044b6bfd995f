from __future__ import annotations

import time

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from proxy.core.upstream import Secret
from proxy.webhooks.signing import signature, signed_headers
from tests.support.webhook_receiver import OTHER_SECRET, SECRET

BODY = b'{"type":"batch.completed","data":{"id":"batch_1"}}'


def test_the_specifications_own_example_has_its_signature() -> None:
    # Standard Webhooks 1.0, reference libraries: the vector that all of them test.
    signed = signature(
        Secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1_614_265_330,
        b'{"test": 2432232314}',
    )
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_receivers_with_either_secret_agree_while_one_is_being_replaced() -> None:
    headers = dict(signed_headers([Secret(SECRET), Secret(OTHER_SECRET)], "evt_1", int(time.time()), BODY))
    assert headers["webhook-id"] == "evt_1"
    for secret in (SECRET, OTHER_SECRET):
        assert Webhook(secret).verify(BODY, headers)["data"] == {"id": "batch_1"}


@pytest.mark.parametrize("changed", ["body", "id", "timestamp", "secret"])
def test_whatever_is_changed_is_noticed(changed: str) -> None:
    now = int(time.time())
    headers = dict(signed_headers([Secret(SECRET)], "evt_1", now, BODY))
    body, secret = BODY, SECRET
    match changed:
        case "body":
            body = BODY.replace(b"batch_1", b"batch_2")
        case "id":
            headers["webhook-id"] = "evt_2"
        case "timestamp":
            headers["webhook-timestamp"] = str(now - 1)
        case _:
            secret = OTHER_SECRET
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(body, headers)
