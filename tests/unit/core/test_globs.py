from __future__ import annotations

import pytest

from proxy.core.globs import fits


@pytest.mark.parametrize(
    ("pattern", "value", "fitting"),
    [
        ("gpt-4o", "gpt-4o", True),
        ("gpt-4o", "gpt-4o-mini", False),
        ("gpt-4o*", "gpt-4o-mini", True),
        ("*mini", "gpt-4o-mini", True),
        ("gpt-*-mini", "gpt-4o-mini", True),
        ("gpt-*-mini", "gpt-mini", False),
        ("a*a", "a", False),
        ("*a*b*", "xxaxxbxx", True),
        ("*b*a*", "xxaxxbxx", False),
        ("*", "", True),
        ("", "", True),
        ("[a-z]", "a", False),
        ("o?", "o3", False),
    ],
)
def test_only_the_star_is_special(pattern: str, value: str, fitting: bool) -> None:
    assert fits(pattern, value) is fitting
