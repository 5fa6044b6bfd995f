from __future__ import annotations

from pathlib import Path

import pytest

from proxy.policy.findings import FindingList
from proxy.policy.sources import MAX_FILE_BYTES, policy_files, read_bytes, signature


def names(directory: Path) -> list[str]:
    return [Path(path).name for path in policy_files([str(directory)], FindingList())]


def test_takes_yaml_files_in_name_order_without_subdirectories(tmp_path: Path) -> None:
    for name in ("b.yaml", "a.yaml", "notes.txt", "policy.schema.json", "10.yaml"):
        (tmp_path / name).touch()
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "x.yaml").touch()
    (tmp_path / "dir.yaml").mkdir()
    assert names(tmp_path) == ["10.yaml", "a.yaml", "b.yaml"]


def test_ignores_dot_files_such_as_those_of_editors(tmp_path: Path) -> None:
    for name in (".hidden.yaml", "._a.yaml", ".a.yaml.swp", "a.yaml~", "a.yaml"):
        (tmp_path / name).touch()
    assert names(tmp_path) == ["a.yaml"]


def test_reads_a_config_map_mount_once(tmp_path: Path) -> None:
    version = tmp_path / "..2024_01_01_00_00_00.1"
    version.mkdir()
    (version / "a.yaml").touch()
    (tmp_path / "..data").symlink_to(version.name)
    (tmp_path / "a.yaml").symlink_to("..data/a.yaml")
    assert names(tmp_path) == ["a.yaml"]


def test_says_that_yml_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").touch()
    (tmp_path / "b.yml").touch()
    findings = FindingList()
    policy_files([str(tmp_path)], findings)
    (finding,) = findings.in_order()
    assert str(finding) == f"{tmp_path}/b.yml:1:1: policy: warning: not read: only *.yaml is (rename it)"


def test_an_empty_directory_is_an_error(tmp_path: Path) -> None:
    findings = FindingList()
    assert policy_files([str(tmp_path)], findings) == ()
    assert findings.has_errors


@pytest.mark.parametrize("kind", ["missing", "dangling", "large"])
def test_what_cannot_be_read_is_reported(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.yaml"
    if kind == "dangling":
        path.symlink_to("nowhere")
    if kind == "large":
        path.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    findings = FindingList()
    assert read_bytes(str(path), findings) is None
    assert findings.has_errors


def test_the_signature_changes_with_content_files_and_links(tmp_path: Path) -> None:
    def now() -> object:
        return signature([str(tmp_path)], [str(tmp_path / "secret")])

    seen = [now()]
    (tmp_path / "a.yaml").write_text("1")
    seen.append(now())
    (tmp_path / "a.yaml").write_text("22")
    seen.append(now())
    (tmp_path / "b.yaml").symlink_to("a.yaml")
    seen.append(now())
    (tmp_path / "secret").write_text("x")
    seen.append(now())
    (tmp_path / "a.yaml").rename(tmp_path / "c.yaml")
    seen.append(now())
    assert len(set(seen)) == len(seen)


def test_the_signature_stays_when_nothing_of_ours_changes(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("1")
    before = signature([str(tmp_path)])
    (tmp_path / "notes.txt").write_text("x")
    assert signature([str(tmp_path)]) == before
