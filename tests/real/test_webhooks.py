"""The official SDKs, unchanged, take Weir's webhooks for OpenAI's: docs/webhooks.md's code as it stands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.functional.test_batch_lane import ALICE, BACKGROUND, TICKET, chat, post
from tests.functional.test_webhooks import policy
from tests.real.processes import run_python
from tests.support.deferring import deferring
from tests.support.webhook_receiver import SECRET, receiving
from tests.test_docs_webhooks import blocks


@pytest.mark.parametrize("environment", ["openai-1", "openai-2", "openai-3"])
def test_the_sdk_unwraps_what_was_sent_and_refuses_what_was_changed(environment: str, tmp_path: Path) -> None:
    (code,) = (block for block in blocks("python") if block.startswith("# openai\n"))
    (tmp_path / "code.py").write_text(code, encoding="utf-8")
    with receiving() as receiver, deferring(tmp_path, policy=policy(receiver, "ops")) as (proxy, _):
        response = json.loads(post(proxy, "/v1/responses", BACKGROUND).body)["id"]
        receiver.wait(1)
        job = (chat(proxy, headers=[*ALICE, TICKET]).header("location") or "").rpartition("/")[2]
        deliveries = [(each.body.decode(), each.headers) for each in receiver.wait(2)]
    deliveries.append((deliveries[0][0].replace("completed", "failed"), deliveries[0][1]))
    told = tmp_path / "deliveries.json"
    told.write_text(json.dumps(deliveries), encoding="utf-8")
    variables = {"WEIR_WEBHOOK_SECRET": SECRET}
    printed = run_python(
        environment, "unwrapping.py", [str(tmp_path / "code.py"), str(told)], tmp_path, variables
    )
    assert json.loads(printed.rstrip().rpartition("\n")[2]) == [
        ["response.completed", response],
        ["weir.job.succeeded", job],
        "InvalidWebhookSignatureError",
    ]
