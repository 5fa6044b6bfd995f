"""Policies change while Weir serves: whole or not at all, within two seconds, under nobody's feet."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.chat import ANSWER, CHAT, CHAT_STREAM, DONE, PATH, chat_policy, delta, finish
from tests.support.raw_client import RawClient
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.weir import RunningWeir, weir
from tests.support.weir_process import weir_process

IN_FORCE_SECONDS = 2.0


def answer(call: Call) -> None:
    call.json(ANSWER)


def capped(tokens: int, *more: str) -> str:
    """Return a policy by whose cap one can tell that it is in force."""
    return chat_policy(f"steps: [{{cap_output: {{default: {tokens}}}}}]", *more)


def wait_until(holds: Callable[[], bool], seconds: float = IN_FORCE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.01)


def is_closed(call: Call) -> bool:
    """Tell whether the scripted upstream has found the connection of a call closed, and closed it too."""
    return call.socket.fileno() < 0


def caps(upstream: RawUpstream) -> list[int | None]:
    return [json.loads(call.body).get("max_tokens") for call in upstream.calls]


def cap_in_force(proxy: RunningWeir) -> str | None:
    """Return what a request is told that the steps did."""
    with proxy.client() as client:
        return client.request("POST", PATH, CHAT).header("x-weir-steps")


def wait_for_cap(proxy: RunningWeir, tokens: int) -> None:
    """Wait until requests get this cap."""
    wait_until(lambda: cap_in_force(proxy) == f"cap_output;set={tokens}")


def reloaded(proxy: RunningWeir, version_before: str) -> None:
    """Have the policies read again now and wait until another version is in force."""
    proxy.call(proxy.app.reload)
    wait_until(lambda: proxy.app.pipeline.policies.version != version_before)


# --- noticing -----------------------------------------------------------------------------------------------


def write_in_place(file: Path, text: str) -> None:
    file.write_text(text)


def write_and_rename(file: Path, text: str) -> None:
    new = file.with_suffix(".new")
    new.write_text(text)
    new.rename(file)


def keep_time_and_size(file: Path, text: str) -> None:
    """Edit as a tool does that restores the file's times."""
    before = file.stat()
    new = file.with_suffix(".new")
    new.write_text(text)
    os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
    new.rename(file)


@pytest.mark.parametrize("edit", [write_in_place, write_and_rename, keep_time_and_size])
def test_an_edit_is_in_force_within_two_seconds(tmp_path: Path, edit: Callable[[Path, str], None]) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(capped(11))
    with RawUpstream(answer) as upstream, weir(tmp_path, upstream.url, file) as proxy:
        assert cap_in_force(proxy) == "cap_output;set=11"
        edit(file, capped(22))
        wait_for_cap(proxy, 22)
        assert set(caps(upstream)) == {11, 22}
        assert proxy.metric("weir_policy_reloads_total", result="ok") == 1
        assert proxy.metric("weir_policy_info") == 1, "the old version's series is gone"


def test_files_of_a_directory_come_and_go(tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "20-late.yaml").write_text(capped(20))
    with RawUpstream(answer) as upstream, weir(tmp_path, upstream.url, folder) as proxy:
        assert cap_in_force(proxy) == "cap_output;set=20"
        (folder / "10-early.yaml").write_text(capped(10).replace("name: chat", "name: early"))
        wait_for_cap(proxy, 10)
        (folder / "10-early.yaml").unlink()
        wait_for_cap(proxy, 20)


def config_map(mount: Path, generation: str, text: str) -> None:
    """Do what the kubelet does for a new version of a ConfigMap."""
    data = mount / f"..{generation}"
    data.mkdir(parents=True)
    (data / "policy.yaml").write_text(text)
    (mount / "..data_tmp").symlink_to(data.name)
    (mount / "..data_tmp").rename(mount / "..data")
    if not (mount / "policy.yaml").is_symlink():
        (mount / "policy.yaml").symlink_to("..data/policy.yaml")


def test_a_config_map_that_is_swapped_is_in_force_within_two_seconds(tmp_path: Path) -> None:
    mount = tmp_path / "mount"
    config_map(mount, "2024_01", capped(11))
    with RawUpstream(answer) as upstream, weir(tmp_path, upstream.url, mount) as proxy:
        for generation, tokens in (("2024_02", 22), ("2024_03", 33)):
            config_map(mount, generation, capped(tokens))
            wait_for_cap(proxy, tokens)


def test_a_secret_in_a_file_is_taken_over_when_it_is_rotated(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("first\n")
    with RawUpstream(answer) as upstream:
        policy = chat_policy(base_url=upstream.url, upstream=f"api_key: '${{file:{key}}}'")
        with weir(tmp_path, None, policy) as proxy:
            proxy.call(proxy.app.reload)
            assert cap_in_force(proxy) is None
            version = proxy.app.pipeline.policies.version
            key.write_text("second\n")

            def is_rotated() -> bool:
                cap_in_force(proxy)
                return upstream.calls[-1].header("authorization") == b"Bearer second"

            wait_until(is_rotated)
            assert proxy.app.pipeline.policies.version == version, "the version says nothing about secrets"
        assert upstream.calls[0].header("authorization") == b"Bearer first"


def test_a_signal_has_the_policies_read_at_once(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(capped(11))
    with (
        RawUpstream(answer) as upstream,
        weir_process(tmp_path, upstream.url, "--policies", str(file)) as process,
    ):
        client = process.client()
        assert client.request("POST", PATH, CHAT).header("x-weir-steps") == "cap_output;set=11"
        time.sleep(0.1)
        seconds = []
        for tokens in range(21, 26):
            file.write_text(capped(tokens))
            begin = time.monotonic()
            process.signal(signal.SIGHUP)
            while client.request("POST", PATH, CHAT).header("x-weir-steps") != f"cap_output;set={tokens}":
                assert time.monotonic() < begin + 5
            seconds.append(time.monotonic() - begin)
        assert min(seconds) < 0.3, "the next look at the files would have come later"
        file.write_text("version: 1\nroutes: 7\n")
        process.signal(signal.SIGHUP)
        wait_until(lambda: "policy not reloaded" in process.output)
        assert client.request("POST", PATH, CHAT).header("x-weir-steps") == "cap_output;set=25"
        assert process.process.poll() is None
    assert process.output.count("policies reloaded") == 5


# --- refusing -----------------------------------------------------------------------------------------------


def test_a_bad_edit_keeps_the_old_set_shows_in_the_metrics_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(capped(11))
    with RawUpstream(answer) as upstream, weir(tmp_path, upstream.url, file) as proxy:
        assert proxy.metric("weir_policy_rejected") == 0
        version = proxy.app.pipeline.policies.version
        file.write_text(capped(22) + "    max_bdy: 1KiB\n")
        wait_until(lambda: proxy.metric("weir_policy_rejected") == 1)
        for _ in range(3):
            proxy.call(proxy.app.reload)
            time.sleep(0.02)
        wait_until(lambda: proxy.metric("weir_policy_reloads_total", result="rejected") >= 4)
        assert cap_in_force(proxy) == "cap_output;set=11"
        assert proxy.app.pipeline.policies.version == version
        findings = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert len(findings) == 1
        assert f"{file}:6:5: " in findings[0]
        assert "did you mean max_body?" in findings[0]

        file.write_text(capped(11))
        proxy.call(proxy.app.reload)
        wait_until(lambda: proxy.metric("weir_policy_rejected") == 0)
        assert proxy.app.pipeline.policies.version == version


def test_files_that_disappear_leave_the_old_set_in_force(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(capped(11))
    with RawUpstream(answer) as upstream, weir(tmp_path, upstream.url, file) as proxy:
        file.unlink()
        wait_until(lambda: proxy.metric("weir_policy_rejected") == 1)
        assert cap_in_force(proxy) == "cap_output;set=11"
        file.write_text(capped(22))
        wait_for_cap(proxy, 22)


def test_an_edit_that_changes_nothing_effective_is_no_reload(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(capped(11))
    with RawUpstream(answer) as upstream, weir(tmp_path, upstream.url, file) as proxy:
        pipeline = proxy.app.pipeline
        file.write_text("# a comment\n" + capped(11))
        proxy.call(proxy.app.reload)
        time.sleep(0.1)
        assert proxy.app.pipeline is pipeline
        assert proxy.metric("weir_policy_reloads_total") == 0


# --- under way ----------------------------------------------------------------------------------------------


class Held:
    """An upstream that answers a stream in two halves, the second when told."""

    def __init__(self) -> None:
        self.may_end = threading.Event()

    def __call__(self, call: Call) -> None:
        if b'"stream":true' not in call.body:
            call.json(ANSWER)
            return
        call.stream_head()
        call.chunk(delta("hel"))
        self.may_end.wait(5)
        call.chunk(delta("lo") + finish() + DONE)
        call.end_chunks()


def test_a_request_in_flight_keeps_the_set_that_it_began_with(tmp_path: Path) -> None:
    script = Held()
    file = tmp_path / "policy.yaml"
    file.write_text(capped(11, "timing_comment: true"))
    with RawUpstream(script) as upstream, weir(tmp_path, upstream.url, file) as proxy:
        version = proxy.app.pipeline.policies.version
        streaming, sending = proxy.client(), proxy.client()
        streaming.send_request("POST", PATH, CHAT_STREAM)
        head = streaming.read_head()
        # This one has begun, too: its head is there, the rest comes under the next set.
        sending.send(
            b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (PATH.encode(), len(CHAT))
        )
        time.sleep(0.05)
        file.write_text("version: 1\nroutes: []\n")
        reloaded(proxy, version)
        assert cap_in_force(proxy) is None
        sending.send(CHAT)
        sent = sending.read_answer()
        script.may_end.set()
        body = b"".join(piece or b"CUT" for piece in streaming.chunks())
        records = {record["request_id"]: record for record in proxy.log(3)}
        assert sorted(caps(upstream), key=str) == [11, 11, None]
    assert body.startswith(delta("hel") + delta("lo") + finish() + DONE + b": weir ttft_ms=")
    for begun in (head, sent):
        assert begun.header("x-weir-policy") == version
        record = records[begun.header("x-weir-request-id")]
        assert (record["route"], record["policy"]) == ("chat", version)


def test_connections_are_kept_where_the_upstream_did_not_change_and_replaced_where_it_did(
    tmp_path: Path,
) -> None:
    with RawUpstream(answer) as same, RawUpstream(answer) as old, RawUpstream(answer) as new:
        file = tmp_path / "policy.yaml"

        def policies(moving: RawUpstream) -> str:
            return (
                "version: 1\nupstreams:\n"
                f"  same: {{base_url: '{same.url}'}}\n  moving: {{base_url: '{moving.url}'}}\n"
                "defaults: {upstream: same}\n"
                f"routes: [{{name: moving, match: {{path: {PATH}}}, upstream: moving}}]\n"
            )

        def ask() -> None:
            assert proxy.client().request("POST", PATH, CHAT).status == 200
            assert proxy.client().request("GET", "/v1/models").status == 200

        file.write_text(policies(old))
        with weir(tmp_path, None, file) as proxy:
            ask()
            version = proxy.app.pipeline.policies.version
            file.write_text(policies(new))
            reloaded(proxy, version)
            wait_until(lambda: is_closed(old.calls[0]))
            ask()
            assert proxy.metric("weir_upstream_connections", upstream="same") == 1
            assert proxy.metric("weir_upstream_connections", upstream="moving") == 1
        assert (len(old.calls), len(new.calls), len(same.calls)) == (1, 1, 2)
        assert same.connections == 1


def test_a_request_on_a_replaced_upstream_ends_in_peace_and_its_connection_closes(tmp_path: Path) -> None:
    script = Held()
    with RawUpstream(script) as old, RawUpstream(answer) as new:
        file = tmp_path / "policy.yaml"
        file.write_text(chat_policy(base_url=old.url))
        with weir(tmp_path, None, file) as proxy:
            client = proxy.client()
            client.send_request("POST", PATH, CHAT_STREAM)
            client.read_head()
            version = proxy.app.pipeline.policies.version
            file.write_text(chat_policy(base_url=new.url))
            reloaded(proxy, version)
            assert client.socket.getpeername()
            script.may_end.set()
            body = b"".join(piece or b"CUT" for piece in client.chunks())
            wait_until(lambda: is_closed(old.calls[0]))
            assert client.request("POST", PATH, CHAT).status == 200, "the caller's connection goes on"
        assert (len(old.calls), len(new.calls)) == (1, 1)
    assert body == delta("hel") + delta("lo") + finish() + DONE


def test_requests_go_on_while_policies_change_all_the_time(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(capped(1))
    is_over = threading.Event()
    seen: list[tuple[int, str | None]] = []
    with RawUpstream(answer) as upstream, weir(tmp_path, upstream.url, file) as proxy:

        def ask() -> None:
            with proxy.client() as client:
                while not is_over.is_set():
                    got = client.request("POST", PATH, CHAT)
                    seen.append((got.status, got.header("x-weir-steps")))

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for tokens in range(2, 12):
            version = proxy.app.pipeline.policies.version
            write_and_rename(file, capped(tokens))
            reloaded(proxy, version)
        is_over.set()
        for thread in threads:
            thread.join()
        assert proxy.metric("weir_policy_reloads_total", result="ok") == 10
    assert {status for status, _ in seen} == {200}
    assert {steps for _, steps in seen} <= {f"cap_output;set={tokens}" for tokens in range(1, 12)}
    assert len({steps for _, steps in seen}) > 3


def test_with_several_workers_the_explanation_follows_an_edit_too(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(capped(11))
    options = ["--workers", "2", "--policies", str(file)]
    with RawUpstream(answer) as upstream, weir_process(tmp_path, upstream.url, *options) as process:

        def explained() -> str:
            with RawClient(process.admin_address) as client:
                told = json.loads(client.request("POST", "/explain", CHAT).body)
            return str(told["steps"][0]["detail"]["set"])

        def answered() -> str | None:
            with RawClient(process.address) as client:
                return client.request("POST", PATH, CHAT).header("x-weir-steps")

        assert (explained(), answered()) == ("11", "cap_output;set=11")
        file.write_text(capped(22))
        assert explained() == "22"
        process.signal(signal.SIGHUP)
        wait_until(lambda: {answered() for _ in range(8)} == {"cap_output;set=22"})
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
