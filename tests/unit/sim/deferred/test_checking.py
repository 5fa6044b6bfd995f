from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from proxy.sim.deferred.checking import Checked, check_input, input_count, lines_of, prompt_tokens, read_line
from proxy.sim.deferred.rules import BatchRules
from proxy.sim.errors import ApiError
from proxy.sim.scenario import Scenario
from tests.unit.sim.deferred.batching import CHAT_URL, body_of, jsonl, line, lines_about, run
from tests.unit.sim.running import INSTANT, Sim

GOOD = line("good")


def check(content: bytes, endpoint: str = CHAT_URL, **rules: Any) -> Checked:
    return asyncio.run(check_input(content, endpoint, BatchRules(**rules)))


def found(content: bytes, endpoint: str = CHAT_URL, **rules: Any) -> list[tuple[str, int | None, str | None]]:
    """Return code, line and field of each error."""
    errors = check(content, endpoint, **rules).errors
    assert all(error["message"] for error in errors)
    return [(error["code"], error["line"], error["param"]) for error in errors]


def test_a_good_file_has_no_errors() -> None:
    checked = check(jsonl(lines_about(3)))
    assert (checked.errors, checked.model, len(checked.spans)) == ([], "gpt-4o", 3)


@pytest.mark.parametrize(
    ("bad", "code", "param"),
    [
        (b"{nope", "invalid_json_line", None),
        (b"[]", "invalid_json_line", None),
        (b"", "invalid_json_line", None),
        (b"[" * 100_000, "invalid_json_line", None),
        (line("good"), "duplicate_custom_id", "custom_id"),
        (line("b", url="/v1/embeddings"), "url_mismatch", "url"),
        (line("b", body_of("x", model="gpt-4o-mini")), "model_mismatch", "body.model"),
        (line("b", {"messages": []}), "invalid_request", "body.model"),
        (line("b", body_of("x", stream=True)), "invalid_request", "body.stream"),
        (line("b", body_of("x", background=True)), "invalid_request", "body.background"),
        (line("b", method="GET"), "invalid_request", "method"),
        (
            {key: value for key, value in line("b").items() if key != "custom_id"},
            "invalid_request",
            "custom_id",
        ),
        ({**line("b"), "custom_id": 7}, "invalid_request", "custom_id"),
        ({**line("b"), "body": "text"}, "invalid_request", "body"),
    ],
)
def test_names_line_code_and_field(bad: Any, code: str, param: str | None) -> None:
    raw = bad if isinstance(bad, bytes) else json.dumps(bad).encode()
    content = jsonl([GOOD]) + raw + b"\n" + jsonl([line("last")])
    assert found(content) == [(code, 2, param)]


def test_stream_false_is_no_stream() -> None:
    assert found(jsonl([line("a", body_of("x", stream=False))])) == []


@pytest.mark.parametrize("content", [b"", b"\n", b" "])
def test_an_empty_file_is_refused(content: bytes) -> None:
    assert [code for code, _, _ in found(content)] == ["empty_file"]


def test_a_last_line_needs_no_newline_and_crlf_is_white_space() -> None:
    content = jsonl(lines_about(2)).replace(b"\n", b"\r\n").rstrip()
    assert len(check(content).spans) == 2
    assert check(content).errors == []


def test_too_many_lines_or_inputs_are_refused_as_a_whole() -> None:
    assert found(jsonl(lines_about(3)), max_lines=2) == [("too_many_tasks", None, None)]
    url = "/v1/embeddings"
    inputs = [line(name, {"model": "e", "input": ["a", "b"]}, url=url) for name in "xy"]
    assert found(jsonl(inputs), url, max_embedding_inputs=3) == [("too_many_tasks", None, None)]
    assert found(jsonl(inputs), url, max_embedding_inputs=4) == []


def test_moderations_need_no_model() -> None:
    url = "/v1/moderations"
    lines = [line("a", {"input": "x"}, url=url), line("b", {"input": "y", "model": "m"}, url=url)]
    assert check(jsonl(lines), url).errors == []


def test_lists_a_hundred_errors_at_most() -> None:
    assert len(found(b"{nope\n" * 500)) == 100


def test_the_body_s_bytes_are_those_of_the_file() -> None:
    raw = b'{"custom_id":"a", "url":"/v1/x", "body": {"a" :1.0, "b":"\\u00e9"} ,"method":"POST"}'
    read = read_line(raw)
    assert (read.raw_body, read.body) == (b'{"a" :1.0, "b":"\\u00e9"}', {"a": 1.0, "b": "é"})


def test_a_line_that_is_no_object_is_refused() -> None:
    with pytest.raises(ApiError) as refused:
        read_line(b"7")
    assert refused.value.code == "invalid_json_line"


def test_finds_lines() -> None:
    assert list(lines_of(b"ab\nc\n")) == [(0, 2), (3, 4)]
    assert list(lines_of(b"ab\n\nc")) == [(0, 2), (3, 3), (4, 5)]


def test_counts_prompts_and_inputs() -> None:
    assert prompt_tokens({"model": "m", "input": "two words"}) == 2
    assert prompt_tokens(body_of("a long prompt " * 50)) > prompt_tokens(body_of("short"))
    assert [input_count({"input": value}) for value in ("a", ["a", "b"], [1, 2, 3], [[1], [2]])] == [
        1,
        2,
        1,
        2,
    ]


def test_only_a_quota_makes_prompts_worth_counting() -> None:
    content = jsonl(lines_about(2))
    assert (check(content).tokens, check(content, enqueued_tokens=1).tokens > 0) == (0, True)


def test_a_batch_with_errors_fails_as_a_whole(simulate: Callable[..., Sim]) -> None:
    sim = simulate(Scenario(timing=INSTANT, batches=BatchRules(turnaround_seconds=0.0)))
    batch = run(sim, jsonl([GOOD]) + b"{nope\n" + jsonl([GOOD]))
    assert (batch["status"], batch["in_progress_at"]) == ("failed", None)
    assert batch["errors"]["object"] == "list"
    assert [(error["code"], error["line"]) for error in batch["errors"]["data"]] == [
        ("invalid_json_line", 2),
        ("duplicate_custom_id", 3),
    ]
    assert batch["request_counts"] == {"total": 0, "completed": 0, "failed": 0}
    assert sim.stats()["executions_total"] == 0
