from __future__ import annotations

from proxy.policy.findings import Finding, FindingList, Mark, PolicyErrors, Severity, did_you_mean


def test_a_finding_reads_file_line_column_path_problem_hint() -> None:
    finding = Finding("p.yaml", 3, 7, "routes[0].nme", "unknown key nme", "did you mean name?")
    assert str(finding) == "p.yaml:3:7: routes[0].nme: unknown key nme (did you mean name?)"


def test_a_warning_is_marked() -> None:
    finding = Finding("p.yaml", 1, 1, "", "odd", severity=Severity.WARNING)
    assert str(finding) == "p.yaml:1:1: policy: warning: odd"


def test_findings_are_in_the_order_of_files_and_lines() -> None:
    findings = FindingList()
    for file, line in (("b", 2), ("a", 9), ("b", 1)):
        findings.error(Mark(file, line), "", "x")
    assert [(finding.file, finding.line) for finding in findings.in_order()] == [("b", 1), ("b", 2), ("a", 9)]


def test_warnings_alone_leave_a_set_usable() -> None:
    findings = FindingList()
    findings.warn(Mark("a"), "", "x")
    assert not findings.has_errors
    findings.error(Mark("a"), "", "y")
    assert findings.has_errors


def test_the_error_carries_and_prints_everything() -> None:
    findings = (Finding("a", 1, 1, "x", "one"), Finding("a", 2, 1, "y", "two"))
    error = PolicyErrors(findings)
    assert error.findings == findings
    assert str(error) == "a:1:1: x: one\na:2:1: y: two"


def test_suggests_only_what_is_near() -> None:
    assert did_you_mean("rout", ["routes", "version"]) == "did you mean routes?"
    assert did_you_mean("qqq", ["routes", "version"]) == ""
    assert did_you_mean("vLLM", ["openai", "vllm"]) == "did you mean vllm?"
