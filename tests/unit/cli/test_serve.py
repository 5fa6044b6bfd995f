"""Every setting of `weir serve` has a flag, a variable, a default that is sane, and a row in the manual."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from proxy.cli.main import build_parser
from proxy.policy.model import MIB, Match, Route
from proxy.policy.values import duration_seconds, size_bytes
from proxy.settings import Settings

MANUAL = Path(__file__).resolve().parents[3] / "docs" / "operations.md"
ROW = re.compile(
    r"^\| `(--[a-z-]+)` \| (?:`(WEIR_[A-Z_]+)`)? ?\| (?:`([^`]+)`|none|off) \| .+ \|$", re.MULTILINE
)
UNSHOWN = {"policies", "upstream_url", "upstream_key", "secret_key"}


def flags() -> dict[str, argparse.Action]:
    """Return the options of `weir serve` by flag."""
    parser = build_parser()
    commands = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    serve: argparse.ArgumentParser = commands.choices["serve"]
    return {
        action.option_strings[-1]: action
        for action in serve._actions
        if action.option_strings and action.dest != "help"
    }


def given(*arguments: str) -> argparse.Namespace:
    return build_parser().parse_args(["serve", *arguments])


def test_every_flag_and_nothing_else_is_in_the_manual() -> None:
    rows = {flag: variable for flag, variable, _ in ROW.findall(MANUAL.read_text(encoding="utf-8"))}
    expected = {flag: "WEIR_" + flag[2:].upper().replace("-", "_") for flag in flags()}
    assert rows == expected | {"--demo": ""}


def test_every_setting_has_a_flag() -> None:
    names = set(Settings.__dataclass_fields__) - UNSHOWN
    assert names <= {action.dest for action in flags().values()}


def test_the_manuals_defaults_are_those_of_the_code() -> None:
    defaults = Settings()
    compared = 0
    for flag, _, shown in ROW.findall(MANUAL.read_text(encoding="utf-8")):
        value = getattr(defaults, flags()[flag].dest, None)
        if not shown or value is None:
            continue
        compared += 1
        if flag.startswith("--max-"):
            assert size_bytes(shown) == value, flag
        elif isinstance(value, float):
            assert duration_seconds(shown) == value, flag
        else:
            assert shown == str(value), flag
    assert compared >= 12


@pytest.mark.parametrize(
    ("flag", "text", "name", "value"),
    [
        ("--max-head", "32KiB", "head_bytes", 32768),
        ("--max-upstream-head", "1MiB", "upstream_head_bytes", 1048576),
        ("--header-timeout", "1500ms", "header_seconds", 1.5),
        ("--body-timeout", "2m", "body_seconds", 120.0),
        ("--keep-alive", "10s", "keep_alive_seconds", 10.0),
        ("--write-stall", "5s", "write_stall_seconds", 5.0),
        ("--drain-timeout", "0s", "drain_timeout_seconds", 0.0),
        ("--uploads-at-once", "4", "uploads_at_once", 4),
    ],
)
def test_a_limit_is_read_from_its_flag(flag: str, text: str, name: str, value: float) -> None:
    assert getattr(given(flag, text), name) == value
    assert getattr(given(), name) is None, "the default is that of the settings"


@pytest.mark.parametrize(
    "arguments",
    [
        ("--max-head", "many"),
        ("--max-head", "-1KiB"),
        ("--header-timeout", "30"),
        ("--header-timeout", "off"),
        ("--body-timeout", "soon"),
        ("--keep-alive", "-1s"),
        ("--workers", "0"),
        ("--uploads-at-once", "0"),
        ("--uploads-at-once", "many"),
    ],
)
def test_a_limit_that_cannot_be_used_ends_the_start(arguments: tuple[str, str]) -> None:
    with pytest.raises(SystemExit) as end:
        given(*arguments)
    assert end.value.code == 2


def test_the_defaults_are_sane() -> None:
    settings, route = Settings(), Route("r", Match())
    assert settings.head_bytes >= 32 * 1024
    assert settings.upstream_head_bytes >= settings.head_bytes
    assert 1 <= settings.header_seconds <= 60
    assert 10 <= settings.body_seconds <= 300
    assert settings.keep_alive_seconds > 60, "load balancers keep theirs for 60 s and must close first"
    assert settings.write_stall_seconds == 30
    assert route.max_body_bytes >= 20 * MIB, "images and documents travel within bodies"
    assert 64 <= route.max_json_depth <= 900
    assert route.max_concurrent == 0
