"""How an upstream is reached: where its requests go, by which path, through which proxy, with which key."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.upstream import Provider, Secret, Timeouts, Upstream, UpstreamTls
from proxy.http.deadlines import NEVER
from proxy.upstream.target import Target, make_target

_tails = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=20).map(
    lambda text: text.encode("ascii")
)


def target(
    base_url: str = "https://up.test/v1", environment: dict[str, str] | None = None, **more: Any
) -> Target:
    return make_target(Upstream("up", base_url, **more), environment or {})


# --- paths --------------------------------------------------------------------------------------------------


@given(st.sampled_from(["", "/", "/v1", "/v1/", "/openai/deployments/x", "/a/v1"]), _tails)
def test_what_follows_the_routed_prefix_is_appended_character_for_character(base: str, tail: bytes) -> None:
    reached = target(f"http://up.test{base}").request_target(b"/v1/" + tail)
    assert reached == base.rstrip("/").encode() + b"/" + tail


@given(_tails.map(lambda tail: b"/" + tail))
def test_other_paths_go_to_the_origin_as_they_are(path: bytes) -> None:
    is_routed = path.startswith(b"/v1") and path[3:4] in (b"", b"/", b"?")
    reached = target("http://up.test/base/v1").request_target(path)
    assert reached == (b"/base" + path if is_routed else path)


@pytest.mark.parametrize(
    ("base", "path", "reached"),
    [
        ("https://up.test", b"/v1", b"/"),
        ("https://up.test", b"/v1?a=/v1", b"/?a=/v1"),
        ("https://up.test/x", b"/v1", b"/x"),
        ("https://up.test/x/", b"/v1/", b"/x/"),
        ("https://up.test/x", b"/v10/models", b"/v10/models"),
        ("https://up.test/x", b"/v1beta/models", b"/v1beta/models"),
        ("https://up.test/x", b"/V1/models", b"/V1/models"),
    ],
)
def test_only_the_whole_segment_is_the_prefix(base: str, path: bytes, reached: bytes) -> None:
    assert target(base).request_target(path) == reached


# --- addresses ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "host", "port", "authority"),
    [
        ("http://up.test/v1", "up.test", 80, b"up.test"),
        ("https://up.test/v1", "up.test", 443, b"up.test"),
        ("http://up.test:80/v1", "up.test", 80, b"up.test"),
        ("http://up.test:443/v1", "up.test", 443, b"up.test:443"),
        ("https://up.test:8443", "up.test", 8443, b"up.test:8443"),
        ("http://[::1]:9/v1", "::1", 9, b"[::1]:9"),
        ("http://[::1]", "::1", 80, b"[::1]"),
        ("https://UP.test", "up.test", 443, b"up.test"),
    ],
)
def test_host_and_port_are_what_the_url_says(url: str, host: str, port: int, authority: bytes) -> None:
    made = target(url)
    assert (made.address.host, made.address.port, made.sender.host) == (host, port, authority)
    assert (made.address.tls is not None) is url.startswith("https")
    assert made.address.tunnel is None
    assert made.absolute_prefix == b""


@pytest.mark.parametrize(
    "url", ["ftp://up.test", "up.test/v1", "https://", "http:///v1", "http://up.test:99999", ""]
)
def test_a_url_that_leads_nowhere_is_refused_by_name(url: str) -> None:
    with pytest.raises(ValueError):
        target(url)


def test_a_certificate_file_that_is_not_there_is_named() -> None:
    with pytest.raises(OSError, match=r"upstream up: .*/nowhere/ca\.pem"):
        target(tls=UpstreamTls(ca="/nowhere/ca.pem"))


def test_absent_limits_never_expire() -> None:
    wait = target(timeouts=Timeouts(first_byte=3.0, idle=None, total=None)).wait
    assert (wait.first_byte, wait.idle, wait.total) == (3.0, NEVER, NEVER)


# --- credentials --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("provider", Provider)
def test_a_key_goes_into_its_providers_own_header(provider: Provider) -> None:
    credential = target(api_key=Secret("k"), provider=provider).sender.credential
    assert credential is not None
    lower, name, value = credential
    assert name.lower() == lower
    expected = {Provider.AZURE: (b"api-key", b"k"), Provider.ANTHROPIC: (b"x-api-key", b"k")}
    assert (lower, value) == expected.get(provider, (b"authorization", b"Bearer k"))


def test_without_a_key_there_is_no_credential() -> None:
    assert target().sender.credential is None


# --- proxies ------------------------------------------------------------------------------------------------

PROXY = "http://proxy.test:3128"


@pytest.mark.parametrize(
    ("environment", "is_used"),
    [
        ({}, False),
        ({"HTTPS_PROXY": PROXY}, True),
        ({"https_proxy": PROXY}, True),
        ({"HTTP_PROXY": PROXY, "http_proxy": PROXY}, False),
        ({"ALL_PROXY": PROXY}, True),
        ({"all_proxy": PROXY, "HTTPS_PROXY": ""}, True),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": "up.test"}, False),
        ({"HTTPS_PROXY": PROXY, "no_proxy": "other.test, UP.test"}, False),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": "test"}, False),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": ".test"}, False),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": "up.test:443"}, False),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": "*"}, False),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": "p.test,est"}, True),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": " , "}, True),
    ],
)
def test_tls_goes_through_the_proxy_in_a_tunnel(environment: dict[str, str], is_used: bool) -> None:
    made = target(environment=environment)
    assert (made.address.tunnel is not None) is is_used
    assert (made.address.host, made.address.port) == ("up.test", 443), "TLS is with the upstream itself"
    if made.address.tunnel is not None:
        assert (made.address.tunnel.host, made.address.tunnel.port) == ("proxy.test", 3128)
    assert made.absolute_prefix == b""


def test_plain_http_is_asked_of_the_proxy_by_its_whole_url() -> None:
    environment = {"http_proxy": "http://user:p%40ss@proxy.test"}
    made = target("http://up.test:81/base", environment)
    assert (made.address.host, made.address.port, made.address.tunnel) == ("proxy.test", 80, None)
    assert made.request_target(b"/v1/x?y") == b"http://up.test:81/base/x?y"
    assert made.sender.host == b"up.test:81"
    assert made.sender.proxy_authorization == (
        b"proxy-authorization",
        b"Proxy-Authorization",
        b"Basic dXNlcjpwQHNz",
    )


def test_a_variable_that_callers_could_set_in_a_cgi_is_not_read() -> None:
    assert target("http://up.test", {"HTTP_PROXY": PROXY}).absolute_prefix == b""


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
def test_the_own_machine_is_never_behind_a_proxy(host: str) -> None:
    assert target(f"https://{host}", {"HTTPS_PROXY": PROXY}).address.tunnel is None


@pytest.mark.parametrize(
    ("proxy", "host"), [("off", None), ("http://other.test:1", "other.test"), ("env", "proxy.test")]
)
def test_a_policy_may_name_a_proxy_or_none(proxy: str, host: str | None) -> None:
    tunnel = target(proxy=proxy, environment={"HTTPS_PROXY": PROXY}).address.tunnel
    assert (tunnel.host if tunnel is not None else None) == host


def test_a_unix_socket_needs_no_proxy() -> None:
    made = target(unix_socket="/run/up.sock", environment={"HTTPS_PROXY": PROXY})
    assert made.address.tunnel is None
    assert made.address.unix_socket == "/run/up.sock"


@pytest.mark.parametrize("proxy", ["socks5://proxy.test", "https://proxy.test", "http://"])
def test_a_proxy_of_another_kind_is_refused(proxy: str) -> None:
    with pytest.raises(ValueError, match="upstream up: only http:// forward proxies"):
        target(environment={"HTTPS_PROXY": proxy})
