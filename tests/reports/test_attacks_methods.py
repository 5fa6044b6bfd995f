"""Methods that make a server tell what it was sent, or lead elsewhere: none reaches the upstream."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.chat import PATH, chat_policy
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.weir import weir


def echo(call: Call) -> None:
    call.json(call.head, headers=b"X-Echo: yes\r\n")


@pytest.mark.parametrize("policies", [None, chat_policy()], ids=["unmatched", "matched"])
@pytest.mark.parametrize("target", [PATH, "/v1/other", "/", "*", "elsewhere.test:443", "http://x.test/"])
@pytest.mark.parametrize("method", ["TRACE", "CONNECT", "TRACK", "DEBUG", "trace", "Trace"])
def test_a_method_that_echoes_or_tunnels_is_refused(
    tmp_path: Path, method: str, target: str, policies: str | None
) -> None:
    with (
        RawUpstream(echo) as upstream,
        weir(tmp_path, upstream.url, policies, upstream_key="secret") as proxy,
    ):
        client = proxy.client()
        client.send(f"{method} {target} HTTP/1.1\r\nHost: weir.test\r\n\r\n".encode())
        answer = client.read_answer()
        (record,) = proxy.log(1)
    assert upstream.calls == []
    assert (answer.status, json.loads(answer.body)["error"]["code"]) in (
        (501, "method_not_supported"),
        (400, "bad_request"),  # a target that the parser does not take with this method
    )
    assert record["status"] == answer.status
    if target.startswith("/"):
        assert answer.status == 501
