"""Documentation is complete: what a user can meet has an entry, and no entry describes what is not there."""

from __future__ import annotations

import re
from pathlib import Path

from proxy.core.errors import CODES
from proxy.observe.catalogue import METRICS
from proxy.steps import STEPS

DOCS = Path(__file__).resolve().parent.parent / "docs"


def _error_rows() -> dict[str, tuple[int, str]]:
    text = (DOCS / "errors.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\d{3}) \| `(\w+)` \| .+ \| .+ \|$", text, re.MULTILINE)
    return {code: (int(status), kind) for code, status, kind in rows}


def test_every_error_code_is_documented_with_its_status_and_type() -> None:
    assert _error_rows() == {kind.code: (kind.status, kind.type) for kind in CODES}


def test_every_step_has_its_page() -> None:
    pages = {path.stem for path in (DOCS / "steps").glob("*.md")}
    assert {step.name for step in STEPS} - pages == set()


def test_no_page_describes_a_step_that_is_not_there() -> None:
    pages = {path.stem for path in (DOCS / "steps").glob("*.md")} - {"README"}
    assert pages - {step.name for step in STEPS} == set()


def test_every_metric_is_documented_with_its_kind_and_labels() -> None:
    text = (DOCS / "metrics.md").read_text(encoding="utf-8")
    rows = {
        name: (kind, tuple(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in re.findall(r"^\| `(\w+)` \| (\w+) \| (.+?) \| .+ \|$", text, re.MULTILINE)
    }
    assert rows == {metric.name: (metric.kind.value, metric.labels) for metric in METRICS}


def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    pages = [*DOCS.rglob("*.md"), *DOCS.parent.glob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
            if (
                "://" not in target
                and not target.startswith("mailto:")
                and not (page.parent / target).exists()
            ):
                broken.append(f"{page.relative_to(DOCS.parent)}: {target}")
    assert broken == []
