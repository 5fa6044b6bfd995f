"""Request targets and redirects on their way out, character for character (reports B71, B72)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.chat import ANSWER, CHAT, CHAT_STREAM, PATH, chat_policy
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.weir import weir

TARGETS = [
    b"/v1/files/a%2Fb%27c?sig=%28x%29+y%2B&empty=&k",
    b"/v1/files/a%2fb%27C?lower=%c3%a9&upper=%C3%A9",
    b"/v1/files/x(y)'z*!$&,;=:@",
    b"/v1/files/plain?",
    b"/v1/files/plain?a=b?c=d&&=",
    b"/v1/files/%41%42?%41=%42",
    b"/v1/files/f?path=/a/../b//c",
    b"/v1/files/f?json={%22a%22:[1]}|^`\\",
    b"/v1/files/%E4%BD%A0%E5%A5%BD/",
    b"/v1/files/100%25?x=%zz%",
    b"/v1",
    b"/v1?x=1",
    b"/v1/",
    b"/v10/models",
    b"/healthz?a=%27",
    b"/",
    b"/?q=1",
]


# B71
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "policies", [None, "version: 1\nroutes: [{name: all, match: {}}]\n"], ids=["unmatched", "matched"]
)
def test_request_targets_go_out_character_for_character(
    tmp_path: Path, target: bytes, policies: str | None
) -> None:
    with (
        RawUpstream(lambda call: call.json(ANSWER)) as upstream,
        weir(tmp_path, upstream.url, policies) as proxy,
    ):
        assert proxy.client().request("GET", target).status == 200
        assert upstream.calls[0].target == target


# B71
@pytest.mark.parametrize(
    ("base_path", "target", "sent"),
    [
        ("/api/v1", b"/v1/files/a%2Fb%27c?sig=%28x%29+y%2B", b"/api/v1/files/a%2Fb%27c?sig=%28x%29+y%2B"),
        ("/api/v1/", b"/v1/models", b"/api/v1/models"),
        (
            "/openai/deployments/d%20x",
            b"/v1/chat/completions?a=%27",
            b"/openai/deployments/d%20x/chat/completions?a=%27",
        ),
        ("", b"/v1/models", b"/models"),
        ("/", b"/v1?x", b"/?x"),
        ("/api", b"/v1beta/models/m:generate?key=%27", b"/v1beta/models/m:generate?key=%27"),
        ("/api", b"/other", b"/other"),
    ],
)
def test_only_the_prefix_of_a_target_is_mapped(
    tmp_path: Path, base_path: str, target: bytes, sent: bytes
) -> None:
    with RawUpstream(lambda call: call.json(ANSWER)) as upstream:
        base_url = upstream.url.removesuffix("/v1") + base_path
        with weir(tmp_path, base_url) as proxy:
            assert proxy.client().request("GET", target).status == 200
        assert upstream.calls[0].target == sent


# B72
@pytest.mark.parametrize("policies", [None, chat_policy()], ids=["unmatched", "matched"])
@pytest.mark.parametrize(
    "status", [b"301 Moved", b"302 Found", b"303 See Other", b"307 Temporary Redirect", b"308 P"]
)
@pytest.mark.parametrize("body", [CHAT, CHAT_STREAM], ids=["whole", "stream"])
def test_redirects_are_the_callers_to_follow(
    tmp_path: Path, policies: str | None, status: bytes, body: bytes
) -> None:
    with RawUpstream(lambda call: call.json(ANSWER)) as elsewhere:
        far_url = f"http://127.0.0.1:{elsewhere.port}/landed"

        def script(call: Call) -> None:
            where = b"/landed" if call.header("x-far") is None else far_url.encode()
            call.json(b"moved", status, b"Location: %b\r\n" % where)

        with RawUpstream(script) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
            with proxy.client() as client:
                near = client.request("POST", PATH, body, [("Authorization", "Bearer key")])
                far = client.request("POST", PATH, body, [("Authorization", "Bearer key"), ("X-Far", "1")])
            assert [call.target for call in upstream.calls] == [PATH.encode()] * 2
        assert elsewhere.connections == 0
    assert (near.status, near.header("location"), near.body) == (int(status[:3]), "/landed", b"moved")
    assert (far.status, far.header("location")) == (int(status[:3]), far_url)
