from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxy.sim.text import count_tokens, digest_of, prose, seeded, split_tokens


@given(st.text())
def test_tokens_joined_are_the_text_again(text: str) -> None:
    assert "".join(split_tokens(text)) == text
    assert count_tokens(text) == len(split_tokens(text))


def test_counts_english_at_four_to_five_characters_a_token() -> None:
    text = (
        "The quick brown fox jumps over the lazy dog, and then it rests for a while in the shade of a tree."
    )
    assert 4 <= len(text) / count_tokens(text) <= 5


def test_counts_each_letter_of_other_scripts() -> None:
    assert count_tokens("川の水") == 3


def test_counts_a_megabyte_of_spaces_as_one_token() -> None:
    assert count_tokens(" " * 1_000_000) == 1


def test_prose_has_exactly_the_wanted_length_and_survives_splitting() -> None:
    for wanted in (0, 1, 7, 40, 500):
        pieces = prose(seeded("x"), wanted)
        assert len(pieces) == wanted
        assert split_tokens("".join(pieces)) == pieces


def test_equal_seeds_give_equal_prose_and_others_do_not() -> None:
    assert prose(seeded("a", "b"), 30) == prose(seeded("a", "b"), 30)
    assert prose(seeded("a", "b"), 30) != prose(seeded("ab"), 30)


def test_digest_depends_on_where_parts_end() -> None:
    assert digest_of(("ab", "c")) != digest_of(("a", "bc"))


def test_digest_takes_lone_surrogates() -> None:
    assert digest_of(("\ud83d",)) != digest_of(("?",))
