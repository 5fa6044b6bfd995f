"""Which requests Weir's own batch API answers, and that none of those slips past it to an upstream."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.batch_server import LINES, SERVED, ApiCaller, refusal, served_weir, told, wish
from tests.support.forms import CONTENT_TYPE, upload_form
from tests.support.raw_client import RawClient
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.weir import RunningWeir, weir

FORM = [("Content-Type", CONTENT_TYPE)]


def _theirs(call: Call) -> None:
    call.send(b"HTTP/1.1 418 Theirs\r\nContent-Length: 6\r\n\r\ntheirs")


def _asked(upstream: RawUpstream) -> list[bytes]:
    """Return the request lines that the upstream has seen, those of lines left out."""
    return [call.request_line for call in upstream.calls if b"chat/completions" not in call.request_line]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningWeir, RawUpstream]]:
    with RawUpstream(_theirs) as upstream:
        policies = f"version: 1\nupstreams: {{a: {{base_url: {upstream.url}, provider: vllm, api_key: k}}}}\n"
        with served_weir(tmp_path_factory.mktemp("watched"), policies) as proxy:
            yield proxy, upstream


@pytest.mark.parametrize(
    "target",
    [
        "/v1/files",
        "/v1/files/",
        "/v1/Files",
        "/v1/%66iles",
        "/v1/files;x=1",
        "/v1/files?purpose=batch",
        "/v1/files/x/y/z",
        "/v1/batches",
        "/v1/BATCHES/x",
        "/v1/batches/batch_x/cancel",
        "//v1/files",
        "/v1//files",
        "/v1/./files",
        "/V1/files",
        "/v1%2ffiles",
        "/v1/files%2fx",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_nothing_of_files_and_batches_reaches_a_served_upstream(
    method: str, target: str, watched: tuple[RunningWeir, RawUpstream]
) -> None:
    proxy, upstream = watched
    answer = ApiCaller(proxy).ask(method, target, b"{}" if method == "POST" else None)
    assert answer.status in (200, 400, 404, 405)
    assert "error" in told(answer) or told(answer)["object"] == "list"
    assert _asked(upstream) == []


@pytest.mark.parametrize("base", ["/openai/v1", "/api", ""])
def test_serves_the_names_that_paths_have_below_a_base_url(tmp_path: Path, base: str) -> None:
    with RawUpstream(_theirs) as upstream:
        url = f"http://{upstream.url.removeprefix('http://').split('/')[0]}{base}"
        policies = f"version: 1\nupstreams: {{a: {{base_url: '{url}', provider: vllm, api_key: k}}}}\n"
        with served_weir(tmp_path, policies) as proxy:
            alice = ApiCaller(proxy)
            answer = alice.ask("POST", f"{base}/files", upload_form(LINES), FORM)
            file_id = told(answer)["id"]
            assert alice.ask("GET", f"{base}/files/{file_id}/content").body == LINES
            assert alice.ask("GET", f"/v1/files/{file_id}/content").body == LINES
        assert _asked(upstream) == []


@pytest.mark.parametrize(
    "settings",
    ["provider: generic", "provider: openai", "provider: vllm, batch_api: {mode: pass}"],
)
def test_passes_where_the_upstream_answers_itself(tmp_path: Path, settings: str) -> None:
    with RawUpstream(_theirs) as upstream:
        policies = f"version: 1\nupstreams: {{a: {{base_url: {upstream.url}, {settings}}}}}\n"
        with served_weir(tmp_path, policies) as proxy:
            alice = ApiCaller(proxy)
            body = upload_form(LINES)
            assert alice.ask("POST", "/v1/files?a=b", body, FORM).status == 418
            assert alice.ask("GET", "/v1/batches/batch_x").body == b"theirs"
        assert _asked(upstream) == [b"POST /v1/files?a=b HTTP/1.1", b"GET /v1/batches/batch_x HTTP/1.1"]
        assert upstream.calls[0].body == body


def test_serves_any_upstream_that_is_to_be_served(tmp_path: Path) -> None:
    with RawUpstream(_theirs) as upstream:
        policies = f"version: 1\nupstreams: {{a: {{base_url: {upstream.url}, batch_api: {{mode: serve}}}}}}\n"
        with served_weir(tmp_path, policies) as proxy:
            assert ApiCaller(proxy).upload()


TWO = """
version: 1
upstreams:
  theirs: {{base_url: {url}}}
  ours: {{base_url: {url}, provider: vllm, api_key: k}}
defaults: {{upstream: theirs}}
routes:
  - name: local
    match: {{path: "/v1/*", headers: {{x-target: local}}}}
    upstream: ours
    steps: [{{cap_output: {{max: 10}}}}]
    max_body: 1KiB
    on_oversize: reject
  - {{name: small, match: {{model: tiny}}, upstream: ours}}
"""


def test_the_route_says_whose_files_are_meant_and_no_step_sees_them(tmp_path: Path) -> None:
    with RawUpstream(_theirs) as upstream, served_weir(tmp_path, TWO.format(url=upstream.url)) as proxy:
        alice = ApiCaller(proxy)
        local = [("x-target", "local")]
        answer = alice.ask("POST", "/v1/files", upload_form(LINES * 100), [*FORM, *local])
        assert answer.header("x-weir-route") == "local"
        assert answer.header("x-weir-steps") is None
        file_id = told(answer)["id"]
        assert alice.ask("GET", f"/v1/files/{file_id}").status == 418
        batch = told(alice.ask("POST", "/v1/batches", wish(file_id), local))
        assert told(alice.ask("GET", f"/v1/batches/{batch['id']}", None, local))["id"] == batch["id"]
        assert len(_asked(upstream)) == 1


def test_a_websocket_handshake_there_is_a_question_like_others(tmp_path: Path) -> None:
    with RawUpstream(_theirs) as upstream, served_weir(tmp_path, TWO.format(url=upstream.url)) as proxy:
        handshake = [("x-target", "local"), ("Connection", "Upgrade"), ("Upgrade", "websocket")]
        answer = ApiCaller(proxy).ask("GET", "/v1/files", None, handshake)
        assert (answer.status, told(answer)["data"]) == (200, [])
        assert _asked(upstream) == []


def test_without_a_store_requests_pass(tmp_path: Path) -> None:
    with RawUpstream(_theirs) as upstream:
        policies = f"version: 1\nupstreams: {{a: {{base_url: {upstream.url}, provider: vllm}}}}\n"
        with weir(tmp_path, None, policies, store="off") as proxy:
            assert ApiCaller(proxy).ask("GET", "/v1/files").status == 418


def test_serving_begins_and_ends_with_the_policies(tmp_path: Path) -> None:
    with RawUpstream(_theirs) as upstream:
        file = tmp_path / "weir.yaml"

        def write(mode: str) -> None:
            settings = (
                f"{{base_url: {upstream.url}, provider: vllm, api_key: k, batch_api: {{mode: {mode}}}}}"
            )
            file.write_text(f"version: 1\nupstreams: {{a: {settings}}}\n")

        write("pass")
        with weir(tmp_path, None, file, store=f"sqlite:{tmp_path}/jobs.db") as proxy:
            alice = ApiCaller(proxy)
            assert alice.ask("GET", "/v1/files").status == 418
            assert not (tmp_path / "jobs.db.batches").exists()
            write("serve")
            proxy.call(proxy.app.reload)
            deadline = time.monotonic() + 5.0
            while (status := alice.ask("GET", "/v1/files").status) != 200:
                # Between the policies and the store that they need callers are told to come again.
                assert status in (418, 503)
                assert time.monotonic() < deadline
            file_id = alice.upload()
            write("pass")
            proxy.call(proxy.app.reload)
            while alice.ask("GET", f"/v1/files/{file_id}").status == 200:
                pass
            assert alice.ask("GET", f"/v1/files/{file_id}").status == 418


def test_explaining_says_who_would_answer(tmp_path: Path) -> None:
    with RawUpstream(_theirs) as upstream, served_weir(tmp_path, TWO.format(url=upstream.url)) as proxy:
        host, port = proxy.admin_url.removeprefix("http://").split(":")
        with RawClient((host, int(port))) as admin:
            answer = admin.request("POST", "/explain?path=/v1/batches", wish("x"), [("x-target", "local")])
        told_object = told(answer)
        assert (told_object["route"], told_object["upstream"]) == ("local", "ours")
        assert told_object["lane"] == {"value": "batch", "reason": "batch API of Weir"}


@pytest.mark.parametrize("is_allowed", [True, False])
def test_a_dry_run_makes_nothing_where_callers_may_ask_for_one(tmp_path: Path, is_allowed: bool) -> None:
    allowed = ", allow_caller: [x-weir-explain]" if is_allowed else ""
    policies = f"{SERVED}routes: [{{name: files, match: {{path: '/v1/*'}}{allowed}}}]\n"
    with served_weir(tmp_path, policies) as proxy:
        alice = ApiCaller(proxy)
        answer = alice.post_form(upload_form(LINES), [("x-weir-explain", "dry-run")])
        assert answer.status == 200
        if is_allowed:
            assert told(answer)["lane"] == {"value": "batch", "reason": "batch API of Weir"}
        assert len(alice.listed("/v1/files")) == (0 if is_allowed else 1)


def test_a_full_route_is_full_for_files_too(tmp_path: Path) -> None:
    with RawUpstream(_theirs) as upstream:
        policies = f"""
version: 1
upstreams: {{a: {{base_url: {upstream.url}, provider: vllm, api_key: k}}}}
routes: [{{name: one, match: {{}}, max_concurrent: 1}}]
"""
        with served_weir(tmp_path, policies) as proxy:
            alice = ApiCaller(proxy)
            with proxy.client() as slow:
                slow.send(b"POST /v1/batches HTTP/1.1\r\nHost: w\r\nContent-Length: 10\r\n\r\n{")
                while alice.ask("GET", "/v1/files").status == 200:
                    pass
                assert refusal(alice.ask("GET", "/v1/files"))[:2] == (429, "too_many_concurrent_requests")
            while alice.ask("GET", "/v1/files").status != 200:
                pass
