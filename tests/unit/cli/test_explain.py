from __future__ import annotations

import json
from pathlib import Path

import pytest

from proxy.cli.main import main
from tests.support.corpus import corpus

POLICY = """
version: 1
upstreams: {cloud: {base_url: "https://api.example/v1", provider: openai}}
routes:
  - name: support
    match: {path: /v1/chat/completions, headers: {x-team: support}}
    steps: [{cap_output: {max: 5, on_exceed: reject}}]
  - name: chat
    match: {path: /v1/chat/completions}
    steps:
      - cap_output: {default: 300}
      - shape_output: {terse: "Be brief."}
"""
BODY = b'{"model":"gpt-4o","stream":true,"messages":[{"role":"system","content":"s"},{"role":"user"}]}'


@pytest.fixture
def policy(tmp_path: Path) -> str:
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    return str(file)


def written(folder: Path, name: str, content: bytes) -> str:
    (folder / name).write_bytes(content)
    return str(folder / name)


def test_one_request_is_told_step_by_step(
    tmp_path: Path, policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "--policies", policy, written(tmp_path, "r.json", BODY)]) == 0
    said = capsys.readouterr().out
    for line in (
        "route      chat",
        "  not      support: header x-team is absent",
        "step       cap_output: applied (set=300)",
        '  +   "max_completion_tokens": 300',
        "step       shape_output: applied (terse=added)",
        '  +       "content": "s\\n\\nBe brief."',
        "urgency    interactive: stream requested",
        "usage      asked for on Weir's own behalf",
        '  +     "include_usage": true',
    ):
        assert line in said
    assert "$0.0" in said


def test_an_untouched_request_says_so(
    tmp_path: Path, policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, "r.json", BODY)
    assert main(["explain", "--policies", policy, "--path", "/v1/other", file]) == 0
    said = capsys.readouterr().out
    assert "(none: passes untouched)" in said
    assert "unchanged, byte for byte" in said


def test_a_refused_request_gives_status_one(
    tmp_path: Path, policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, "r.json", b'{"max_tokens":9}')
    arguments = ["explain", "--policies", policy, "--header", "X-Team: support", file]
    assert main(arguments) == 1
    assert "400 rejected_by_policy: max_tokens is above" in capsys.readouterr().out


@pytest.mark.parametrize("option", [[], ["--jsonl"]])
def test_a_file_of_requests_is_summed_up(
    tmp_path: Path, policy: str, capsys: pytest.CaptureFixture[str], option: list[str]
) -> None:
    lines = b"".join(corpus(16))
    file = written(tmp_path, "yesterday.log" if option else "yesterday.jsonl", lines)
    assert main(["explain", "--policies", policy, *option, file]) == 0
    said = capsys.readouterr().out
    count = lines.count(b"\n")
    assert f"requests   {count} (" in said
    heading, *rows = said[said.index("step  ") :].splitlines()
    assert heading.split()[:3] == ["step", "applied", "share"]
    assert [row.split()[0] for row in rows[:3]] == ["cap_output", "shape_output", "all"]
    assert "cap_output: no default for tools or structured output (" in said


def test_the_sums_come_as_json_too(
    tmp_path: Path, policy: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    file = written(tmp_path, "r.jsonl", BODY + b"\n" + b'{"path":"/v1/other","body":{}}\n')
    assert main(["explain", "--policies", policy, "--json", file]) == 0
    said = json.loads(capfdbinary.readouterr().out)
    assert (said["requests"], said["touched"], said["unmatched"]) == (2, 1, 1)
    assert said["seconds"] > 0


def test_an_empty_file_is_no_failure(tmp_path: Path, policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--policies", policy, written(tmp_path, "r.jsonl", b"\n")]) == 0
    assert capsys.readouterr().out.startswith("requests   0 (")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.json"], "No such file"),
        (["--header", "x", "r.jsonl"], "is not 'NAME: VALUE'"),
        (["--path", "/v1/../x", "r.jsonl"], "dot segment"),
        (["r.jsonl"], "dot segment"),
    ],
)
def test_wrong_use_gives_status_two(
    tmp_path: Path,
    policy: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    written(tmp_path, "r.jsonl", b'{"path":"/v1/%2e%2e/x","body":{}}\n')
    monkeypatch.chdir(tmp_path)
    assert main(["explain", "--policies", policy, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_policies_with_an_error_give_status_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = written(tmp_path, "bad.yaml", b"version: 1\nrouts: []\n")
    assert main(["explain", "--policies", bad, written(tmp_path, "r.json", BODY)]) == 1
    assert "did you mean routes" in capsys.readouterr().err


def test_lines_that_are_no_json_are_named_and_counted(
    tmp_path: Path, policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, "r.jsonl", BODY + b"\n{cut\n\n" + BODY + b"\nlog line\n")
    assert main(["explain", "--policies", policy, file]) == 1
    said = capsys.readouterr()
    assert said.err.splitlines() == [f"{file}:{number}: this line is no JSON" for number in (2, 5)]
    assert "requests   2 (" in said.out
    assert "unreadable 2 more lines are no JSON" in said.out
    assert main(["explain", "--policies", policy, "--json", file]) == 1
    assert json.loads(capsys.readouterr().out)["unreadable"] == 2


def test_explains_without_the_secrets_of_production(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = POLICY.replace("provider: openai", "provider: openai, api_key: '${WEIR_TEST_MISSING}'")
    policy = written(tmp_path, "secret.yaml", text.encode())
    request = written(tmp_path, "r.json", BODY)
    assert main(["explain", "--policies", policy, request]) == 1
    assert "WEIR_TEST_MISSING is not set" in capsys.readouterr().err
    assert main(["explain", "--policies", policy, "--allow-missing-env", request]) == 0
    said = capsys.readouterr()
    assert "warning: environment variable WEIR_TEST_MISSING is not set" in said.err
    assert "route      chat" in said.out


def test_what_a_price_is_missing_for_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, "requests.jsonl", BODY + b"\n" + BODY.replace(b"gpt-4o", b"gpt-none"))
    lacking = written(tmp_path, "lacking.yaml", POLICY.replace(", provider: openai", "").encode())
    assert main(["explain", "--policies", lacking, file]) == 0
    said = capsys.readouterr().out
    assert "no price is known for 2 requests" in said
    assert "their upstream has no provider: cloud" in said
    assert "price table" not in said
    named = written(tmp_path, "named.yaml", POLICY.encode())
    assert main(["explain", "--policies", named, file]) == 0
    said = capsys.readouterr().out
    assert "not in the price table of their provider: gpt-none" in said
    assert "no provider" not in said


OWN_PRICES = """
version: 1
date: 2026-11-30
source: our contract
providers:
  generic:
    tiers: {batch: {endpoints: [/v1/chat/completions], typical_seconds: 600}}
    models: [{models: [house-model], input: 1, output: 2, batch: 0.5}]
"""
NIGHTLY = """
version: 1
upstreams: {house: {base_url: "https://llm.example/v1", provider: generic, api_key: any}}
routes:
  - name: nightly
    match: {path: /v1/chat/completions}
    urgency: {default: deferrable, deadline: 4h}
    allow_caller: [prefer]
    batch: {upstream_tiers: [flex, batch]}
"""


@pytest.mark.parametrize("how", ["flag", "environment"])
def test_an_operators_own_prices_let_any_upstream_defer(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = written(tmp_path, "nightly.yaml", NIGHTLY.encode())
    request = written(tmp_path, "r.json", b'{"model":"house-model","messages":[]}')
    prices = written(tmp_path, "prices.yaml", OWN_PRICES.encode())
    options = ["--policies", policy, "--header", "Prefer: respond-async", "--json", request]

    assert main(["explain", *options]) == 0
    without = json.loads(capsys.readouterr().out)["lane"]
    if how == "environment":
        monkeypatch.setenv("WEIR_PRICES", prices)
    else:
        options = ["--prices", prices, *options]
    assert main(["explain", *options]) == 0
    told = json.loads(capsys.readouterr().out)
    lane, deferral = told["lane"], told["deferral"]

    assert (deferral["delivery"], deferral["tiers"]) == ("ticket", ["batch"])
    assert (deferral["deadline_seconds"], deferral["hold_seconds"]) == (4 * 3600.0, None)
    assert main(["explain", *(option for option in options if option != "--json")]) == 0
    assert "  ticket, by batch, answered within 14400 s\n" in capsys.readouterr().out
    assert without["value"] != "batch"
    assert "no price for this model" in without["reason"]
    assert lane["value"] == "batch"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (OWN_PRICES.replace("input: 1", "input: -1"), "providers.generic.models[0].input"),
        (OWN_PRICES.replace("generic:", "generik:"), "did you mean generic?"),
        (None, "No such file"),
    ],
)
@pytest.mark.parametrize("command", ["explain", "serve", "worker"])
def test_prices_with_a_mistake_are_refused_with_file_and_key(
    command: str, text: str | None, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "own.yaml"
    if text is not None:
        file.write_text(text)
    options = ["--policies", "p.yaml", "r.json"] if command == "explain" else []
    with pytest.raises(SystemExit) as ended:
        main([command, "--prices", str(file), *options])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert str(file) in said
    assert problem in said
