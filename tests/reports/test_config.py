"""Policies say what they seem to say, and updates arrive (reports B104-B107)."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from proxy.app import load_policies
from proxy.policy.findings import PolicyErrors
from proxy.policy.model import PolicySet
from proxy.settings import Settings
from tests.support.chat import ANSWER, CHAT, CHAT_STREAM, DONE, PATH, chat_policy, delta, finish
from tests.support.raw_client import RawAnswer
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.weir import RunningWeir, weir

UPSTREAM = "http://127.0.0.1:9/v1"
TRAPS = [
    "no", "off", "on", "yes", "y", "N", "True", "~", "null", "2024-01-01", "1_000", "1e3", "0123", "0x1f",
    "12:30", "1.0", ".5", ".inf", "-1", "2001-12-14T21:59:43Z",
]  # fmt: skip


def answer_ok(call: Call) -> None:
    call.json(ANSWER)


def loaded(tmp_path: Path, text: str, environment: dict[str, str] | None = None) -> PolicySet:
    """Load a policy as `weir serve` does. Raises PolicyErrors."""
    file = tmp_path / "policy.yaml"
    file.write_text(text, encoding="utf-8")
    return load_policies(Settings(policies=(str(file),), upstream_url=UPSTREAM), environment or {})


def findings(tmp_path: Path, text: str, environment: dict[str, str] | None = None) -> str:
    """Return what is wrong with a policy that must not load."""
    with pytest.raises(PolicyErrors) as caught:
        loaded(tmp_path, text, environment)
    return str(caught.value)


# B104
@pytest.mark.parametrize("word", TRAPS)
@pytest.mark.parametrize(
    "line",
    [
        "steps: [{add_stop: [ok, WORD]}]",
        "steps: [{add_stop: {sequences: [WORD]}}]",
        "upstream: WORD",
    ],
)
def test_a_word_that_some_yaml_reads_otherwise_is_refused_with_its_line(
    tmp_path: Path, word: str, line: str
) -> None:
    text = chat_policy("headers: full", line.replace("WORD", word))
    assert f'quote it: "{word}"' in findings(tmp_path, text)
    assert "policy.yaml:6:" in findings(tmp_path, text)


# B104
@pytest.mark.parametrize("word", TRAPS)
@pytest.mark.parametrize(
    "text",
    [
        "version: 1\nroutes:\n  - name: WORD\n    match: {}\n",
        "version: 1\nroutes:\n  - match: {model: WORD}\n    name: x\n",
        "version: 1\nroutes:\n  - match: {model: [gpt-4o, WORD]}\n    name: x\n",
        "version: 1\nroutes:\n  - match: {headers: {x-team: WORD}}\n    name: x\n",
    ],
    ids=["name", "model", "models", "header"],
)
def test_such_words_are_refused_in_names_and_conditions_too(tmp_path: Path, word: str, text: str) -> None:
    found = findings(tmp_path, text.replace("WORD", word))
    assert "policy.yaml:3:" in found
    assert "quote it" in found


# B104
def test_quoted_words_reach_the_upstream_as_text(tmp_path: Path) -> None:
    words = ["no", "1_000", "2024-01-01", "~"]
    policies = chat_policy(f"steps: [{{add_stop: {words}}}]".replace("'", '"'))
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        proxy.client().request("POST", PATH, CHAT)
        body = upstream.calls[0].body
    assert body == CHAT[:-1] + b',"stop":["no","1_000","2024-01-01","~"]}'


# B105
@pytest.mark.parametrize(
    ("value", "environment"),
    [
        ('"false"', {}),
        ("'true'", {}),
        ("no", {}),
        ("off", {}),
        ("0", {}),
        ("1", {}),
        ("False", {}),
        ('"${FLAG}"', {"FLAG": "false"}),
        ('"${FLAG}"', {"FLAG": "true"}),
        ("'${FLAG}'", {"FLAG": "0"}),
        ("[]", {}),
        ("", {}),
    ],
)
@pytest.mark.parametrize(
    "text",
    [
        chat_policy("timing_comment: VALUE"),
        chat_policy("match: {stream: VALUE}").replace(f"    match: {{path: {PATH}}}\n", ""),
        chat_policy(base_url=UPSTREAM, upstream="tls: {verify: VALUE}"),
        chat_policy("steps: [{cap_output: {max: 9, default_for_structured: VALUE}}]"),
    ],
    ids=["route", "match", "tls", "step"],
)
def test_only_true_and_false_are_booleans(
    tmp_path: Path, value: str, environment: dict[str, str], text: str
) -> None:
    assert "true or false is wanted" in findings(tmp_path, text.replace("VALUE", value), environment)
    for flag in ("true", "false"):
        assert loaded(tmp_path, text.replace("VALUE", flag)).routes[0].name == "chat"


# B106
@pytest.mark.parametrize(
    ("reference", "environment"),
    [
        ("${MISSING}", {"OTHER": "hidden-value"}),
        ("prefix-${OTHER}-${MISSING}", {"OTHER": "hidden-value"}),
        ("${OTHER}", {"OTHER": ""}),
        ("${file:/nowhere/key}", {}),
        ("${file:relative/key}", {}),
        ("${OTHER", {"OTHER": "hidden-value"}),
    ],
)
def test_a_missing_secret_stops_the_start_and_names_the_key_path_only(
    tmp_path: Path, reference: str, environment: dict[str, str]
) -> None:
    text = chat_policy(base_url=UPSTREAM, upstream=f'api_key: "{reference}"')
    found = findings(tmp_path, text, environment)
    assert "upstreams.up.api_key" in found
    assert "hidden-value" not in found


# B106
SECRETS = [
    "pa$$w${rd}",
    "a#b",
    "a: b",
    "'quo\"ted",
    "{x}",
    "&anchor",
    "*alias",
    "!tag",
    "%41",
    "no",
    "1_000",
    "$",
    "a\\n",
]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("source", ["environment", "file", "file-with-newline", "file-with-crlf"])
def test_a_secret_arrives_as_it_is(tmp_path: Path, secret: str, source: str) -> None:
    reference = "${KEY}"
    if source != "environment":
        end = {"file": "", "file-with-newline": "\n", "file-with-crlf": "\r\n"}[source]
        (tmp_path / "key").write_bytes((secret + end).encode())
        reference = f"${{file:{tmp_path / 'key'}}}"
    text = chat_policy(base_url=UPSTREAM, upstream=f'api_key: "{reference}"')
    policies = loaded(tmp_path, text, {"KEY": secret, "rd": "expanded", "w": "expanded"})
    key = policies.upstreams["up"].api_key
    assert key is not None
    assert key.reveal() == secret


# B106
@pytest.mark.parametrize("value", ["line\nbreak", "two\n\n", " hidden", "tab\t", "nul\x00", "ключ"])
def test_a_secret_that_no_header_can_hold_is_refused_without_showing_it(tmp_path: Path, value: str) -> None:
    text = chat_policy(base_url=UPSTREAM, upstream='api_key: "${KEY}"')
    found = findings(tmp_path, text, {"KEY": value})
    assert "upstreams.up.api_key" in found
    assert value not in found


# B106
def test_a_mounted_secret_reaches_the_upstream_once_expanded(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("pa$$w${HOME}#: x\n")
    with RawUpstream(answer_ok) as upstream:
        text = chat_policy(base_url=upstream.url, upstream=f'api_key: "${{file:{tmp_path / "key"}}}"')
        with weir(tmp_path, None, text, {"HOME": "expanded"}) as proxy:
            proxy.client().request("POST", PATH, CHAT)
        assert upstream.calls[0].header("authorization") == b"Bearer pa$$w${HOME}#: x"


class ConfigMap:
    """A directory as the kubelet mounts it: every update is a new directory and a swapped link."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._versions = 0
        directory.mkdir()
        self.publish(1)
        (directory / "policy.yaml").symlink_to("..data/policy.yaml")

    def publish(self, cap: int) -> None:
        """Replace the policy by one with another cap."""
        version = self.directory / f"..v{self._versions}"
        self._versions += 1
        version.mkdir()
        (version / "policy.yaml").write_text(chat_policy(f"steps: [{{cap_output: {{max: {cap}}}}}]"))
        (self.directory / "..data_tmp").symlink_to(version.name)
        (self.directory / "..data_tmp").rename(self.directory / "..data")


def cap_in_force(proxy: RunningWeir, upstream: RawUpstream) -> bytes:
    proxy.client().request("POST", PATH, CHAT[:-1] + b',"max_tokens":1000}')
    return upstream.calls[-1].body.rsplit(b":", 1)[1].rstrip(b"}")


def wait_for_cap(proxy: RunningWeir, upstream: RawUpstream, cap: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while cap_in_force(proxy, upstream) != b"%d" % cap:
        assert time.monotonic() < deadline, "the new policy is not in force"
        time.sleep(0.02)


# B107
def test_config_map_swaps_take_effect_one_after_the_other(tmp_path: Path) -> None:
    mount = ConfigMap(tmp_path / "mount")
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url, mount.directory) as proxy:
        for cap in (1, 2, 3, 4):
            mount.publish(cap)
            proxy.loop.call_soon_threadsafe(proxy.app.reload)
            wait_for_cap(proxy, upstream, cap, 1.0)


# B107
def test_a_swap_is_noticed_without_being_told(tmp_path: Path) -> None:
    mount = ConfigMap(tmp_path / "mount")
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url, mount.directory) as proxy:
        assert cap_in_force(proxy, upstream) == b"1"
        mount.publish(2)
        wait_for_cap(proxy, upstream, 2, 2.0)


# B107
def test_a_stream_in_flight_ends_under_the_policy_it_began_with(tmp_path: Path) -> None:
    mount = ConfigMap(tmp_path / "mount")
    may_end = threading.Event()

    def script(call: Call) -> None:
        if b'"stream":true' not in call.body:
            answer_ok(call)
            return
        call.stream_head()
        call.chunk(delta("hel"))
        may_end.wait(5)
        call.chunk(delta("lo") + finish() + DONE)
        call.end_chunks()

    with RawUpstream(script) as upstream, weir(tmp_path, upstream.url, mount.directory) as proxy:
        client = proxy.client()
        client.send_request("POST", PATH, CHAT_STREAM[:-1] + b',"max_tokens":1000}')
        head = client.read_head()
        mount.publish(2)
        proxy.loop.call_soon_threadsafe(proxy.app.reload)
        wait_for_cap(proxy, upstream, 2, 1.0)
        may_end.set()
        body = b"".join(piece or b"CUT" for piece in client.chunks())
        later = proxy.client().request("POST", PATH, CHAT)
        records = {record["policy"] for record in proxy.log(len(upstream.calls)) if record["stream"]}
    assert body == delta("hel") + delta("lo") + finish() + DONE
    assert b'"max_tokens":1,' in upstream.calls[0].body
    assert records == {policy_of(head)}
    assert policy_of(later) != policy_of(head)


def policy_of(answer: RawAnswer) -> str | None:
    return answer.header("x-weir-policy")


# B107
@pytest.mark.parametrize("is_closing", [True, False])
def test_a_request_that_waits_for_a_connection_outlives_a_change_of_its_upstream(
    tmp_path: Path, is_closing: bool
) -> None:
    may_answer = threading.Event()

    def script(call: Call) -> None:
        if call.number == 0:
            may_answer.wait(5)
        call.json(ANSWER, headers=b"Connection: close\r\n" if is_closing else b"")
        if is_closing:
            call.close()

    with RawUpstream(script) as upstream:
        file = tmp_path / "policy.yaml"
        file.write_text(chat_policy(base_url=upstream.url, upstream="max_connections: 1"))
        with weir(tmp_path, None, file) as proxy:
            clients = [proxy.client(), proxy.client()]
            clients[0].send_request("POST", PATH, CHAT)
            upstream.wait_for_calls(1)
            clients[1].send_request("POST", PATH, CHAT)
            file.write_text(chat_policy(base_url=upstream.url, upstream="max_connections: 2"))
            proxy.loop.call_soon_threadsafe(proxy.app.reload)
            before = proxy.app.pipeline
            while proxy.app.pipeline is before:
                time.sleep(0.005)
            may_answer.set()
            assert [client.read_answer().status for client in clients] == [200, 200]
