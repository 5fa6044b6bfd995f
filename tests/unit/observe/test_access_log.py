from __future__ import annotations

from typing import Any

import pytest

from proxy.core.exchange import Exchange
from proxy.observe.access_log import AccessLog
from proxy.observe.log_line import exchange_words


def line(tmp_path: Any, record: dict[str, Any]) -> str:
    path = tmp_path / "log"
    with path.open("ab") as file:
        log = AccessLog(file.fileno(), as_text=True)
        log.write(record)
        log.close()
    return str(path.read_text())


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("chat", "k=chat"),
        (0, "k=0"),
        (1.5, "k=1.5"),
        (True, "k=true"),
        (False, "k=false"),
        ("route default", 'k="route default"'),
        ("a=b", 'k="a=b"'),
        ('say "x"', r'k="say \"x\""'),
        ("a\nb", r'k="a\nb"'),
        ("caf\u00e9", "k=caf\u00e9"),
        (["a", "b"], "k=a,b"),
        (["trim;applied;saved=8", "cap;skipped (no cap)"], 'k="trim;applied;saved=8,cap;skipped (no cap)"'),
    ],
)
def test_text_lines_are_logfmt(tmp_path: Any, value: object, word: str) -> None:
    assert line(tmp_path, {"a": 1, "k": value, "z": 2}) == f"a=1 {word} z=2\n"


def test_text_lines_leave_out_what_is_empty(tmp_path: Any) -> None:
    assert line(tmp_path, {"a": None, "b": "", "c": [], "d": "x"}) == "d=x\n"


def test_an_exchange_without_steps_has_no_word_about_them(tmp_path: Any) -> None:
    words = line(tmp_path, exchange_words(Exchange("id", 100.0), 0.0)).split()
    assert not [word for word in words if word.endswith("=")]
