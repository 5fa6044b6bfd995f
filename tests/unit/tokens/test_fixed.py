from __future__ import annotations

from proxy.tokens.fixed import FixedCounter
from proxy.tokens.port import Count


def test_four_characters_are_one_token() -> None:
    counter = FixedCounter()
    assert counter.count_text("12345678", "gpt-4o") == Count(2, False)
    assert counter.count_text("1234567", "anything") == Count(1, False)


def test_frames_messages_like_the_real_counter() -> None:
    raw = b'{"role":"user","content":"12345678"}'
    assert FixedCounter().count_message(raw, "gpt-4o") == Count(3 + len("user") // 4 + 2, False)
