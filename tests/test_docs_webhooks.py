"""docs/webhooks.md: its policy is one, its code verifies what is sent, its types of events are all."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import WebhookVerificationError

from proxy.core.upstream import Secret
from proxy.core.webhook import EVENT_TYPES
from proxy.policy.load import check
from proxy.webhooks.event import Event
from proxy.webhooks.sender import Failure
from proxy.webhooks.signing import signed_headers
from tests.support.webhook_receiver import OTHER_SECRET, SECRET

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs" / "webhooks.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """Return the fenced blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_the_policy_of_the_page_is_valid(tmp_path: Path) -> None:
    (policy,) = blocks("yaml")
    path = tmp_path / "policy.yaml"
    path.write_text(policy, encoding="utf-8")
    assert check([str(path)], {"OPENAI_API_KEY": "sk-test", "WEIR_WEBHOOK_SECRET": SECRET}) == []


def test_the_code_of_the_page_verifies_what_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = (block for block in blocks("python") if block.startswith("# standardwebhooks\n"))
    monkeypatch.setenv("WEIR_WEBHOOK_SECRET", SECRET)
    page: dict[str, Any] = {}
    exec(compile(code, "docs/webhooks.md", "exec"), page)
    event = Event("batch.completed", "batch_1", time.time())
    secrets = [Secret(OTHER_SECRET), Secret(SECRET)]
    headers = dict(signed_headers(secrets, event.id, int(time.time()), event.body()))
    assert page["handle"](event.body().decode(), headers) == ("batch.completed", "batch_1")
    with pytest.raises(WebhookVerificationError):
        page["handle"](event.body().decode() + " ", headers)


def test_every_type_of_event_has_its_place_on_the_page() -> None:
    assert {kind for kind in EVENT_TYPES if f"`{kind}`" not in TEXT} == set()
    named = set(re.findall(r"`((?:response|batch|weir\.job)\.[a-z]+)`", TEXT))
    assert named - set(EVENT_TYPES) == {"batch.webhook"}, "that one is a key of a route"


def test_every_kind_of_failure_is_told_beside_its_metric() -> None:
    metrics = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"^\| `weir_webhook_failures_total` .*$", metrics, re.MULTILINE)
    assert {kind.value for kind in Failure if f"`{kind.value}`" not in row} == set()
