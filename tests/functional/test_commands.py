"""The commands as people and machines run them: arguments, output, exit status."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from proxy import __version__
from proxy.cli.main import main
from tests.support.chat import CHAT, PATH, chat_policy
from tests.support.command import BAD_POLICY, run_weir, started
from tests.support.weir_process import ROOT


@pytest.fixture
def bad_policy(tmp_path: Path) -> Path:
    file = tmp_path / "bad.yaml"
    file.write_text(BAD_POLICY)
    return file


@pytest.fixture
def good_policy(tmp_path: Path) -> Path:
    file = tmp_path / "good.yaml"
    file.write_text(chat_policy("steps: [{cap_output: {default: 9}}]"))
    return file


# --- usage --------------------------------------------------------------------------------------------------


def test_the_command_tells_its_version_and_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    told = run_weir("--version")
    assert (told.returncode, told.stdout) == (0, f"weir {__version__}\n".encode())
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    said = capsys.readouterr().out
    for command in ("serve", "check", "explain", "schema", "init", "simulate"):
        assert command in said


USAGE = {
    "no command": ([], "the following arguments are required: COMMAND"),
    "unknown command": (["frobnicate"], "invalid choice: 'frobnicate'"),
    "unknown flag": (["serve", "--lissen", "x"], "unrecognized arguments: --lissen x"),
    "no address": (["serve", "--listen", "8080"], "argument --listen: '8080' is not HOST:PORT or unix:PATH"),
    "no port": (["serve", "--listen", "h:99999"], "argument --listen: 'h:99999' is not HOST:PORT"),
    "off": (["serve", "--listen", "off"], "argument --listen: 'off' is not HOST:PORT"),
    "no path": (["serve", "--listen", "unix:"], "argument --listen: unix: needs a path"),
    "no workers": (["serve", "--workers", "0"], "argument --workers: '0' is not a number of processes"),
    "no unit": (
        ["serve", "--drain-delay", "5"],
        "argument --drain-delay: a duration is a number with a unit",
    ),
    "no size": (["serve", "--max-head", "big"], "argument --max-head: a size is a number with a unit"),
    "no format": (["serve", "--log-format", "xml"], "argument --log-format: 'xml' is not one of json, text"),
    "key alone": (
        ["serve", "--tls-key", "k"],
        "weir serve: --tls-key and --tls-client-ca need --tls-certificate",
    ),
    "client CA alone": (["serve", "--tls-client-ca", "c"], "need --tls-certificate"),
    "nothing to check": (["check"], "the following arguments are required: PATH"),
    "no policies": (["explain", "r.json"], "the following arguments are required: --policies"),
    "no header": (["explain", "--policies", "x", "--header", "a", "-"], "--header 'a' is not 'NAME: VALUE'"),
    "no target": (["explain", "--policies", "x", "--path", "v1", "-"], "it must begin with a slash"),
    "no scenario": (["simulate", "--scenario", "/nonexistent"], "weir simulate: "),
    "no folder": (["init", "/nonexistent/x"], "weir init: /nonexistent/x: No such file or directory"),
}


@pytest.mark.parametrize("kind", USAGE)
def test_a_usage_error_says_what_is_wrong_and_exits_with_2(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, problem = USAGE[kind]
    try:
        status: object = main(arguments)
    except SystemExit as end:
        status = end.code
    out, err = capsys.readouterr()
    assert status == 2
    assert problem in err
    assert "Traceback" not in err
    assert out == ""


def test_a_usage_error_of_a_process_looks_the_same() -> None:
    ended = run_weir("serve", "--listen", "8080")
    assert (ended.returncode, ended.stdout) == (2, b"")
    assert ended.stderr.startswith(b"usage: weir serve")
    assert ended.stderr.endswith(b"argument --listen: '8080' is not HOST:PORT or unix:PATH\n")


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("WEIR_LISTEN", "nowhere", "argument --listen: 'nowhere' is not HOST:PORT"),
        ("WEIR_LOG_FORMAT", "xml", "argument --log-format: 'xml' is not one of json, text"),
        ("WEIR_DRAIN_TIMEOUT", "1", "argument --drain-timeout: a duration is"),
    ],
)
def test_the_environment_is_held_to_the_same_rules(
    name: str,
    value: str,
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as end:
        main(["serve"])
    assert end.value.code == 2
    assert problem in capsys.readouterr().err


# --- check, schema, init ------------------------------------------------------------------------------------


def test_check_is_silent_about_nothing(good_policy: Path, bad_policy: Path) -> None:
    good = run_weir("check", str(good_policy))
    assert (good.returncode, good.stdout, good.stderr) == (0, b"weir check: good\n", b"")
    bad = run_weir("check", str(bad_policy))
    assert bad.returncode == 1
    where, *rest = bad.stdout.decode().splitlines()
    assert where == f"{bad_policy}:5:5: routes[0].max_bdy: unknown key max_bdy (did you mean max_body?)"
    assert rest == ["weir check: 1 error, 0 warnings"]


def test_check_tells_machines_the_same(bad_policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--json", str(bad_policy)]) == 1
    (finding,) = json.loads(capsys.readouterr().out)
    assert finding == {
        "file": str(bad_policy),
        "line": 5,
        "column": 5,
        "path": "routes[0].max_bdy",
        "problem": "unknown key max_bdy",
        "hint": "did you mean max_body?",
        "severity": "error",
    }


def test_check_warns_without_failing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "shadowed.yaml"
    file.write_text(
        "version: 1\nroutes:\n  - {name: all, match: {}}\n  - {name: none, match: {path: /v1/x}}\n"
    )
    assert main(["check", str(file)]) == 0
    assert "weir check: 0 errors, 1 warning\n" in capsys.readouterr().out
    assert main(["check", str(tmp_path / "nowhere")]) == 1
    assert "cannot be read" in capsys.readouterr().out


def test_schema_is_the_shipped_one() -> None:
    printed = run_weir("schema")
    assert (printed.returncode, printed.stderr) == (0, b"")
    assert printed.stdout == (ROOT / "policies" / "policy.schema.json").read_bytes()


def test_init_writes_a_policy_that_is_good_and_never_over_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.yaml"
    written = run_weir("init", str(file))
    assert written.returncode == 0
    assert str(file) in written.stdout.decode()
    assert main(["check", str(file)]) == 0
    file.write_text("precious")
    assert main(["init", str(file)]) == 2
    assert capsys.readouterr().err == f"weir init: {file} exists already\n"
    assert file.read_text() == "precious"


def test_init_prints_where_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "-"]) == 0
    assert capsys.readouterr().out.startswith("# A Weir policy.")


# --- explain ------------------------------------------------------------------------------------------------


def test_explain_reads_standard_input_and_speaks_to_people_and_machines(good_policy: Path) -> None:
    said = run_weir("explain", "--policies", str(good_policy), "-", stdin=CHAT)
    text = said.stdout.decode()
    assert (said.returncode, said.stderr) == (0, b"")
    for line in (
        "route      chat",
        "step       cap_output: applied (set=9)",
        "urgency    interactive: route default",
        "lane       stream: interactive",
        '"max_tokens": 9',
    ):
        assert line in text
    told = run_weir("explain", "--json", "--policies", str(good_policy), "-", stdin=CHAT)
    assert told.returncode == 0
    facts = json.loads(told.stdout)
    assert facts["route"] == "chat"
    assert facts["tokens"]["before"] > 0
    assert told.stdout.rstrip(b"\n").endswith(b'"body":' + CHAT[:-1] + b',"max_tokens":9}}')


def test_explain_tells_of_refusals_and_of_broken_policies_with_1(
    tmp_path: Path, bad_policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strict = tmp_path / "strict.yaml"
    strict.write_text(chat_policy("steps: [{set_params: {seed: {forbid: true}}}]"))
    request = tmp_path / "r.json"
    request.write_bytes(CHAT[:-1] + b',"seed":1}')
    assert main(["explain", "--policies", str(strict), str(request)]) == 1
    assert capsys.readouterr().out.startswith("rejected   400 rejected_by_policy: ")
    assert main(["explain", "--policies", str(bad_policy), str(request)]) == 1
    assert f"{bad_policy}:5:5: " in capsys.readouterr().err
    assert main(["explain", "--policies", str(strict), str(tmp_path / "nowhere.json")]) == 2
    assert "nowhere.json: No such file or directory" in capsys.readouterr().err


# --- simulate -----------------------------------------------------------------------------------------------


def test_simulate_answers_until_it_is_told_to_stop(tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text("timing: {}\n")
    with started("simulate", "--listen", "127.0.0.1:0", "--scenario", str(scenario)) as process:
        assert re.search(
            r"^weir simulate: listening on http://127\.0\.0\.1:\d+$", process.output, re.MULTILINE
        )
        got = process.client().request("POST", PATH, CHAT, [("x-sim-tokens", "2")])
        assert got.status == 200
        assert json.loads(got.body)["usage"]["completion_tokens"] == 2
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
    assert "Traceback" not in process.output
