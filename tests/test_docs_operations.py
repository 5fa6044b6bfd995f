"""docs/operations.md is complete and true: flags with their defaults, log fields, limits, endpoints."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from proxy.cli import serve
from proxy.cli.arguments import duration, size
from proxy.edge import event_tap, relay
from proxy.http.limits import ClientLimits, ServerLimits
from proxy.observe.log_line import LogRecord
from proxy.settings import Settings

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "operations.md").read_text(encoding="utf-8")
WITHOUT_VARIABLE = {"--demo"}
KIB = 1024


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the first table under a heading."""
    section = PAGE.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = section[section.index("\n|") :].lstrip("\n").split("\n\n", 1)[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def flags() -> dict[str, argparse.Action]:
    """Return the flags of `weir serve`."""
    parser = argparse.ArgumentParser()
    serve.add_to(parser.add_subparsers())
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    actions: list[argparse.Action] = commands.choices["serve"]._actions
    return {action.option_strings[-1]: action for action in actions if action.dest != "help"}


def documented_flags() -> dict[str, list[str]]:
    return {cells[0].strip("`"): cells[1:] for cells in rows("Settings")}


def test_every_flag_of_serve_is_documented_and_no_other() -> None:
    assert set(documented_flags()) == set(flags())


def test_every_flag_has_its_variable_documented() -> None:
    for flag, (variable, *_) in documented_flags().items():
        expected = "" if flag in WITHOUT_VARIABLE else "`WEIR_" + flag[2:].upper().replace("-", "_") + "`"
        assert variable == expected


def test_every_documented_default_is_the_real_one() -> None:
    defaults = Settings()
    for flag, (_, cell, _) in documented_flags().items():
        if flag in WITHOUT_VARIABLE:
            continue
        action = flags()[flag]
        real = getattr(defaults, action.dest)
        if cell == "none":
            assert not real, flag
            continue
        read = action.type if action.type in (duration, size) else str
        assert callable(read)
        assert read(cell.strip("`")) == (real if read is not str else str(real)), flag


def test_every_help_text_names_the_documented_default() -> None:
    for flag, (_, cell, _) in documented_flags().items():
        said = re.search(r"default ([^\s)]+?):? ?(?:standard output)?\)?$", flags()[flag].help or "")
        if said is not None:
            assert said[1] == cell.strip("`"), flag


def test_every_setting_has_its_flag() -> None:
    from_elsewhere = {"upstream_url", "upstream_key", "secret_key"}
    assert set(Settings.__dataclass_fields__) - from_elsewhere <= {action.dest for action in flags().values()}


def test_every_field_of_the_access_log_is_documented_in_order_with_its_unit() -> None:
    table = [(cells[0].strip("`"), *cells[1:]) for cells in rows("Logs")]
    assert [name for name, *_ in table] == list(LogRecord.__struct_fields__)
    units = {"_ms": "ms", "_bytes": "bytes"}
    for name, unit, meaning in table:
        assert meaning
        for suffix, expected in units.items():
            assert (unit == expected) == name.endswith(suffix), name
        assert (unit == "tokens") == name.startswith("tokens_"), name


@pytest.mark.parametrize(
    ("what", "limit"),
    [
        ("request line and headers", f"{ServerLimits().head_bytes // KIB} KiB"),
        ("number of request headers", str(ServerLimits().header_count)),
        ("head not complete", f"{ServerLimits().header_seconds:g} s"),
        ("silence within a body", f"{ServerLimits().body_seconds:g} s"),
        ("silence between requests", f"{ServerLimits().keep_alive:g} s"),
        (
            "caller that takes nothing; either side of a websocket that does",
            f"{ServerLimits().write_stall:g} s",
        ),
        (
            "answer's status line and headers",
            f"{ClientLimits().head_bytes // KIB} KiB, {ClientLimits().header_count} headers",
        ),
        ("head of a stream held for its first content", f"5 s or {relay.MAX_HELD_BYTES // KIB} KiB"),
        ("event of a stream that is understood", f"{event_tap.MAX_EVENT_BYTES // KIB // KIB} MiB"),
    ],
)
def test_every_limit_is_the_real_one(what: str, limit: str) -> None:
    assert {cells[0]: cells[1] for cells in rows("Limits")}[what] == limit


def test_every_admin_endpoint_is_documented() -> None:
    edge = Path(serve.__file__).parent.parent / "edge"
    source = "".join((edge / name).read_text(encoding="utf-8") for name in ("admin.py", "admin_jobs.py"))
    served = {f"{verb.upper()} {path}" for verb, path in re.findall(r'add_(\w+)\("(/\w+)"', source)}
    told = {cells[0].strip("`").split("?")[0] for cells in rows("Admin API")}
    assert served == told
