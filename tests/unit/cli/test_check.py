from __future__ import annotations

from pathlib import Path

import pytest

from proxy.cli.main import main

SECRET = "version: 1\nupstreams: {a: {base_url: http://h/v1, api_key: '${WEIR_TEST_MISSING}'}}\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version: 1\n", "good"),
        ("version: 1\nrouts: []\n", "1 error, 0 warnings"),
        ("versio: 1\n", "2 errors, 0 warnings"),
        ("version: 1\nroutes: [{name: r, match: {stream: true}}]\n", "0 errors, 1 warning"),
    ],
)
def test_findings_are_counted_in_plain_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(text)
    main(["check", str(file)])
    assert capsys.readouterr().out.splitlines()[-1] == f"weir check: {said}"


def test_missing_variables_are_warnings_where_that_is_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(SECRET)
    assert main(["check", str(file)]) == 1
    assert main(["check", "--allow-missing-env", str(file)]) == 0
    assert capsys.readouterr().out.endswith("weir check: 0 errors, 1 warning\n")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("explain", "policy file or directory (repeatable)"),
        ("check", "--allow-missing-env"),
        ("simulate", "(default 127.0.0.1:9000)"),
        ("init", "(default weir.yaml)"),
    ],
)
def test_help_names_defaults(command: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert said in " ".join(capsys.readouterr().out.split())
