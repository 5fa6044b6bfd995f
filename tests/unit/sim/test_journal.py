from __future__ import annotations

from pathlib import Path

import pytest

from proxy.sim.journal import Journal


def test_what_was_committed_is_there_again_in_its_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "state")
    journal.put("file", "b", {"n": 1}, b"raw")
    journal.put("file", "a", {"n": 2})
    journal.put("batch", "b", {})
    journal.put("file", "b", {"n": 3})
    journal.commit()
    journal.put("file", "c", {})
    journal.close()
    again = Journal(tmp_path / "state")
    assert [(entry.name, entry.value, entry.raw) for entry in again.all_of("file")] == [
        ("b", {"n": 3}, b"raw"),
        ("a", {"n": 2}, b""),
    ]
    again.drop("file", "b")
    again.commit()
    assert [entry.name for entry in again.all_of("file")] == ["a"]
    again.put("file", "d", {})
    again.drop_all("file")
    assert list(again.all_of("file")) == []
    afresh = again.start_afresh()
    again.put("file", "late", {})
    assert (again.is_on, list(afresh.all_of("batch")), list(afresh.all_of("file"))) == (False, [], [])
    afresh.close()


def test_without_a_file_nothing_is_kept() -> None:
    journal = Journal()
    journal.put("file", "a", {}, b"raw")
    journal.commit()
    assert (journal.is_on, list(journal.all_of("file"))) == (False, [])


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("not a database\n" * 100)
    for path in (other, tmp_path / "missing" / "state"):
        with pytest.raises(ValueError, match="cannot be used as a state file"):
            Journal(path)
    assert other.read_text().startswith("not a database")
