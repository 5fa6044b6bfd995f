"""Files and batches of an upstream that has them pass through, whatever routes and steps would do to calls.

Every request is sent twice, directly and through Weir, to an upstream that records the bytes it gets.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.raw_client import HeaderList, RawAnswer, RawClient
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.weir import RunningWeir, weir
from tests.support.weir_process import weir_process

MIB = 1024 * 1024
UPSTREAM = "http://upstream.test/v1"
STEPS = """
      - cap_output: {default: 50, max: 60}
      - add_stop: [END]
      - set_params: {temperature: {default: 0, max: 1}, service_tier: {set: flex}, user: {forbid: true}}
      - trim_history: {budget: 100, keep_last: 1}
      - dedupe_context: {min_chars: 20}
      - shape_output: {terse: Be brief.}
      - choose_model: [{when: {tokens: {max: 1000000}}, model: other}]
"""
PLAIN = "version: 1\nroutes: [{name: all, match: {path: '*'}}]\n"
EAGER = f"""
version: 1
routes:
  - name: messages
    match: {{path: /v1/messages}}
    steps:{STEPS}
  - name: models
    match: {{path: '*', model: 'gpt*'}}
    steps:{STEPS}
  - name: all
    match: {{path: '*'}}
    urgency: {{default: soon}}
    usage: ask
    allow_caller: [x-weir-explain, prefer]
    coalesce: {{max_wait: 5ms}}
    steps:{STEPS}
"""
"""A policy that does to every call whatever it can."""
POLICIES = pytest.mark.parametrize("policies", [None, PLAIN, EAGER], ids=["unmatched", "no-steps", "steps"])

FORM = b"""--b\r
Content-Disposition: form-data; name="purpose"\r
\r
batch\r
--b\r
Content-Disposition: form-data; name="expires_after[seconds]"\r
\r
3600\r
--b\r
Content-Disposition: form-data; name="file"; filename="r\xc3\xa4tsel.jsonl"\r
Content-Type: application/jsonl\r
\r
{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"gpt-5-mini","messages":[]}}\r
--b--\r
"""
MULTIPART = ("Content-Type", "multipart/form-data; boundary=b")
BATCH = (
    b'{ "input_file_id" : "file-1", "endpoint":"/v1/chat/completions","completion_window":"24h",'
    b' "metadata":{"max_tokens":"9","user":"u"} }'
)
MESSAGES = (
    b'{"requests":[{"custom_id":"a","params":{"model":"claude-haiku-4-5","max_tokens":1E2,"user":"u",'
    b'"messages":[{"role":"user","content":"hi"}]}},{"custom_id":"b","params":{"model":"gpt-x",'
    b'"max_tokens":4096,"temperature":2,"messages":[{"role":"user","content":"hi"}]}}]}'
)
OPENAI = [("Authorization", "Bearer sk-caller"), ("OpenAI-Organization", "org-1"), ("OpenAI-Project", "p")]
ANTHROPIC = [("x-api-key", "sk-ant-caller"), ("anthropic-version", "2026-10-21"), ("anthropic-beta", "a,b")]
CALLS: dict[str, tuple[str, str, bytes | None, HeaderList]] = {
    "upload": ("POST", "/v1/files", FORM, [*OPENAI, MULTIPART]),
    "files": ("GET", "/v1/files?purpose=batch&limit=2&after=file-1", None, OPENAI),
    "file": ("GET", "/v1/files/file-1", None, OPENAI),
    "content": ("GET", "/v1/files/file-1/content", None, [*OPENAI, ("Range", "bytes=10-")]),
    "content-head": ("HEAD", "/v1/files/file-1/content", None, OPENAI),
    "delete": ("DELETE", "/v1/files/file-1", None, OPENAI),
    "create": ("POST", "/v1/batches", BATCH, [*OPENAI, ("Idempotency-Key", "k-1")]),
    "batches": ("GET", "/v1/batches?limit=1&after=batch_1", None, OPENAI),
    "batch": ("GET", "/v1/batches/batch_1", None, OPENAI),
    "cancel": ("POST", "/v1/batches/batch_1/cancel", b"", OPENAI),
    "cancel-json": ("POST", "/v1/batches/batch_1/cancel", b"{}", OPENAI),
    "upload-part": ("POST", "/v1/uploads/upload_1/parts", FORM, [*OPENAI, MULTIPART]),
    "messages-create": ("POST", "/v1/messages/batches", MESSAGES, ANTHROPIC),
    "messages-list": ("GET", "/v1/messages/batches?limit=1&after_id=msgbatch_1", None, ANTHROPIC),
    "messages-batch": ("GET", "/v1/messages/batches/msgbatch_1", None, ANTHROPIC),
    "messages-results": ("GET", "/v1/messages/batches/msgbatch_1/results", None, ANTHROPIC),
    "messages-cancel": ("POST", "/v1/messages/batches/msgbatch_1/cancel", b"", ANTHROPIC),
    "messages-delete": ("DELETE", "/v1/messages/batches/msgbatch_1", None, ANTHROPIC),
}
LINES = b'{"custom_id":"a","result":{"type":"succeeded","message":{"usage":{}}}}\n{"custom_id":"b"}\n'
ANSWER_FIELDS = (
    b"Content-Type: application/x-jsonl\r\nX-Request-Id: req_1\r\n"
    b'Content-Disposition: attachment; filename="o"'
)


def answer_lines(call: Call) -> None:
    call.send(b"HTTP/1.1 200 OK\r\n%b\r\nContent-Length: %d\r\n\r\n" % (ANSWER_FIELDS, len(LINES)))
    if not call.request_line.startswith(b"HEAD"):
        call.send(LINES)


@contextmanager
def twins(tmp_path: Path, policies: str | None) -> Iterator[tuple[RawUpstream, RunningWeir]]:
    with RawUpstream(answer_lines) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        yield upstream, proxy


def asked_twice(
    upstream: RawUpstream, proxy: RunningWeir, method: str, target: str, body: bytes | None, lines: HeaderList
) -> tuple[RawAnswer, RawAnswer]:
    """Send a request directly and through Weir."""
    host = f"127.0.0.1:{upstream.port}"
    answers = []
    for address in (("127.0.0.1", upstream.port), proxy.address):
        with RawClient(address) as client:
            client.send_request(method, target, body, lines, host)
            answers.append(client.read_answer(method))
    return answers[0], answers[1]


@POLICIES
@pytest.mark.parametrize("kind", CALLS)
def test_a_request_and_its_answer_pass_byte_for_byte(tmp_path: Path, policies: str | None, kind: str) -> None:
    with twins(tmp_path, policies) as (upstream, proxy):
        plain, relayed = asked_twice(upstream, proxy, *CALLS[kind])
        direct, through = upstream.calls
        (record,) = proxy.log(1)
    assert (through.head, through.raw_body) == (direct.head, direct.raw_body)
    assert (relayed.status, relayed.body) == (plain.status, plain.body)
    own = [(n, v) for n, v in relayed.headers if not n.lower().startswith((b"x-weir-", b"server-timing"))]
    assert own == plain.headers
    assert record["lane"] == "stream"
    assert record["route"] == (None if policies is None else "all")


@POLICIES
@pytest.mark.parametrize(
    "target",
    [
        "/v1/files/file-0",
        "/v1/files/file-0/content",
        "/v1/batches/batch_0",
        "/v1/messages/batches/msgbatch_0",
    ],
)
def test_an_id_that_the_upstream_does_not_know_is_its_own_404(
    tmp_path: Path, policies: str | None, target: str
) -> None:
    refusal = b'{ "error": {"message":"No such thing: 0", "type":"invalid_request_error", "code":null} }'

    def refuse(call: Call) -> None:
        call.json(refusal, b"404 Not Found", b"x-request-id: req_7\r\n")

    with RawUpstream(refuse) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        answer = proxy.client().request("GET", target, headers=OPENAI)
        assert len(upstream.calls) == 1, "it was not asked again"
    assert (answer.status, answer.body, answer.header("x-request-id")) == (404, refusal, "req_7")


def test_callers_without_credentials_stay_without(tmp_path: Path) -> None:
    with twins(tmp_path, EAGER) as (upstream, proxy):
        for kind in ("upload", "create", "content", "messages-create"):
            method, target, body, lines = CALLS[kind]
            kept = [line for line in lines if line[0] in ("Content-Type", "anthropic-version")]
            proxy.client().request(method, target, body, kept)
        for call in upstream.calls:
            assert call.header("authorization") is None
            assert call.header("x-api-key") is None


def test_an_upstream_with_a_key_of_its_own_gets_it_for_files_and_batches_too(tmp_path: Path) -> None:
    policies = f"version: 1\nupstreams: {{up: {{base_url: '{UPSTREAM}', api_key: sk-of-weir}}}}\n"
    with RawUpstream(answer_lines) as upstream:
        placed = policies.replace(UPSTREAM, upstream.url) + PLAIN.removeprefix("version: 1\n")
        with weir(tmp_path, None, placed) as proxy:
            for kind in ("upload", "create", "content"):
                proxy.client().request(*CALLS[kind])
        for call in upstream.calls:
            assert call.header("authorization") == b"Bearer sk-of-weir"
            assert call.header("openai-organization") is None


def test_a_route_by_path_says_which_upstream_has_the_files(tmp_path: Path) -> None:
    """Whatever other routes ask of bodies: what an upload holds does not decide where it goes."""
    with RawUpstream(answer_lines) as local, RawUpstream(answer_lines) as provider:
        policies = f"""
version: 1
upstreams: {{local: {{base_url: '{local.url}'}}, provider: {{base_url: '{provider.url}'}}}}
defaults: {{upstream: local}}
routes:
  - {{name: models, match: {{model: 'gpt*'}}, upstream: local}}
  - {{name: theirs, match: {{path: ['/v1/files*', '/v1/batches*']}}, upstream: provider}}
"""
        with weir(tmp_path, None, policies) as proxy:
            large = FORM.replace(b"[]", b"[%b]" % (b" " * 100_000))
            answers = [
                proxy.client().request("POST", "/v1/files", body, [MULTIPART]) for body in (FORM, large)
            ]
            answers += [proxy.client().request(*CALLS[kind]) for kind in ("create", "batch", "content")]
        assert [answer.status for answer in answers] == [200] * 5
        assert [call.body for call in provider.calls[:2]] == [FORM, large]
        assert (len(local.calls), len(provider.calls)) == (0, 5)


# ---- large ones


def hash_upload(call: Call) -> None:
    """Read a body without keeping it, and answer with its length and hash."""
    digest = hashlib.sha256()
    count = 0
    for data in call.body_pieces():
        count += len(data)
        digest.update(data)
    call.json(b'{"bytes":%d,"hash":"%b"}' % (count, digest.hexdigest().encode()))


def upload(client: RawClient, size_bytes: int, is_chunked: bool) -> str:
    """Upload so many bytes, with their length or in chunks; return their hash."""
    piece = hashlib.sha512(b"seed").digest() * 1024
    framing = ("Transfer-Encoding", "chunked") if is_chunked else ("Content-Length", str(size_bytes))
    client.send_request("POST", "/v1/files", None, [MULTIPART, framing])
    digest = hashlib.sha256()
    for _ in range(size_bytes // len(piece)):
        digest.update(piece)
        client.send(b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked else piece)
    if is_chunked:
        client.send(b"0\r\n\r\n")
    return digest.hexdigest()


@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunked"])
def test_a_large_upload_streams_through_a_route_whose_steps_enforce_limits(
    tmp_path: Path, is_chunked: bool
) -> None:
    with (
        RawUpstream(hash_upload, reads_body=False) as upstream,
        weir_process(tmp_path, upstream.url, policies=EAGER) as process,
    ):
        assert process.client().request("GET", "/v1/models").status in (200, 502)
        before = process.peak_memory_bytes()
        client = process.client(20)
        digest = upload(client, 96 * MIB, is_chunked)
        answer = client.read_answer()
        grown = process.peak_memory_bytes() - before
    assert answer.status == 200
    assert json.loads(answer.body) == {"bytes": 96 * MIB, "hash": digest}
    assert grown < 16 * MIB


def test_an_upload_begins_to_pass_before_it_is_whole(tmp_path: Path) -> None:
    begun: list[bytes] = []

    def read_a_little(call: Call) -> None:
        begun.append(call.receive())
        call.json(b'{"id":"file-1"}')

    with (
        RawUpstream(read_a_little, reads_body=False) as upstream,
        weir(tmp_path, upstream.url, EAGER) as proxy,
        proxy.client() as client,
    ):
        client.send_request("POST", "/v1/files", None, [MULTIPART, ("Content-Length", str(MIB))])
        client.send(FORM)
        answer = client.read_answer()
    assert answer.status == 200
    assert begun[0].startswith(b"--b\r\n")


def test_a_route_may_limit_uploads_all_the_same(tmp_path: Path) -> None:
    policies = EAGER.replace("routes:", "defaults: {max_body: 64KiB, on_oversize: reject}\nroutes:", 1)
    with twins(tmp_path, policies) as (upstream, proxy):
        with proxy.client() as client:
            client.send_request("POST", "/v1/files", None, [MULTIPART, ("Content-Length", str(MIB))])
            answer = client.read_answer()
        assert proxy.client().request("POST", "/v1/files", FORM, [MULTIPART]).status == 200
        assert len(upstream.calls) == 1
    assert answer.status == 413
    assert json.loads(answer.body)["error"]["code"] == "body_too_large"


@pytest.mark.parametrize("size_bytes", [1000, 200_000, 40 * MIB])
def test_an_upload_that_only_asks_what_would_happen_is_not_sent(tmp_path: Path, size_bytes: int) -> None:
    with twins(tmp_path, EAGER) as (upstream, proxy):
        body = FORM.replace(b"[]", b"[%b]" % (b" " * size_bytes))
        with proxy.client() as client:
            client.send_request(
                "POST",
                "/v1/files",
                None,
                [MULTIPART, ("x-weir-explain", "dry-run"), ("Content-Length", str(len(body)))],
            )
            if size_bytes < MIB:
                client.send(body)
            answer = client.read_answer()
        assert upstream.calls == []
    assert answer.status == (200 if size_bytes < MIB else 413)


def test_what_is_no_form_is_looked_at_at_the_path_of_files_too(tmp_path: Path) -> None:
    with twins(tmp_path, EAGER) as (upstream, proxy):
        answer = proxy.client().request("POST", "/v1/files", b'{"user":"u"}')
        assert upstream.calls == []
    assert answer.status == 400
    assert json.loads(answer.body)["error"]["code"] == "rejected_by_policy"


def test_large_batches_of_messages_have_a_route_of_their_own_where_others_enforce_limits(
    tmp_path: Path,
) -> None:
    """They are JSON, which a step that enforces a limit has to read: docs/providers.md says so."""
    body = MESSAGES.replace(b'"hi"', b'"%b"' % (b"x" * 200_000), 1)
    limited = EAGER.replace("routes:", "defaults: {max_body: 64KiB}\nroutes:", 1)
    apart = limited.replace(
        "routes:\n", "routes:\n  - {name: apart, match: {path: '/v1/messages/batches*'}}\n"
    )
    with twins(tmp_path, limited) as (upstream, proxy):
        assert proxy.client().request("POST", "/v1/messages/batches", body, ANTHROPIC).status == 413
        assert upstream.calls == []
    with twins(tmp_path, apart) as (upstream, proxy):
        assert proxy.client().request("POST", "/v1/messages/batches", body, ANTHROPIC).status == 200
        assert upstream.calls[0].body == body


def drained(client: RawClient) -> int:
    """Read an answer to its end; return how long its body was."""
    head = client.read_head()
    assert head.status == 200
    left = total = int(head.header("content-length") or 0)
    while left:
        data = client.receive()
        assert data
        left -= len(data)
    return total


def test_content_that_is_read_slowly_is_not_held_in_weir(tmp_path: Path) -> None:
    piece = hashlib.sha512(b"lines").digest() * 1024

    def content(call: Call) -> None:
        call.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/jsonl\r\n")
        call.send(b"Content-Length: %d\r\n\r\n" % (64 * MIB))
        call.send_pieces(piece for _ in range(64 * MIB // len(piece)))

    with (
        RawUpstream(content) as upstream,
        weir_process(tmp_path, upstream.url, policies=EAGER) as process,
    ):
        slow, quick = process.client(20), process.client(20)
        quick.send_request("GET", "/v1/files/file-0/content")
        assert drained(quick) == 64 * MIB
        before = process.peak_memory_bytes()
        slow.send_request("GET", "/v1/files/file-1/content")
        quick.send_request("GET", "/v1/files/file-2/content")
        assert drained(quick) == 64 * MIB
        grown = process.peak_memory_bytes() - before
        assert drained(slow) == 64 * MIB
    assert grown < 16 * MIB
