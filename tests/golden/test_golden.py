"""Every golden case still comes out as its file says. `make golden` writes expectations anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.case import case_files, read_case, run_case
from tests.golden.rewrite import rewritten

EVERY_CASE = pytest.mark.parametrize("file", case_files(), ids=lambda file: file.stem)


@EVERY_CASE
def test_golden(file: Path, tmp_path: Path) -> None:
    case = read_case(file)
    assert run_case(case, tmp_path) == case.expect, f"if this is meant: make golden ARGS={file.stem}"


@EVERY_CASE
def test_a_case_is_written_as_make_golden_writes_it(file: Path) -> None:
    """So that the diff of a rewrite shows what has changed and nothing else."""
    case = read_case(file)
    assert case.expect is not None
    assert rewritten(case.source, dict(case.expect)) == case.source


def test_there_are_cases_of_every_kind() -> None:
    families = {file.stem.partition("_")[0] for file in case_files()}
    assert len(case_files()) >= 60
    assert families >= {"agent", "rag", "support", "vision", "extraction", "code", "responses", "anthropic"}
