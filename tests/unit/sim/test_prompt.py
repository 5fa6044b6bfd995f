from __future__ import annotations

from proxy.sim.prompt import content_tokens, json_tokens, message_tokens, plain_text

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}


def test_text_parts_count_like_the_same_string() -> None:
    parts = [{"type": "text", "text": "one two"}, {"type": "text", "text": " three"}]
    assert content_tokens(parts) == content_tokens("one two three")


def test_media_count_a_flat_figure_and_are_told_apart() -> None:
    assert len(content_tokens([IMAGE])) == 85
    other = {"type": "image_url", "image_url": {"url": "https://example.com/x.png"}}
    assert content_tokens([IMAGE]) != content_tokens([other])


def test_no_content_counts_nothing() -> None:
    assert content_tokens(None) == ()
    assert json_tokens(None) == ()
    assert json_tokens([]) == ()


def test_json_counts_the_same_whatever_its_key_order() -> None:
    assert json_tokens({"a": 1, "b": 2}) == json_tokens({"b": 2, "a": 1})


def test_a_message_costs_three_tokens_more_than_its_content() -> None:
    assert len(message_tokens("user", "one two")) == 5


def test_plain_text_leaves_media_out() -> None:
    assert plain_text([IMAGE, {"type": "text", "text": "hello"}]) == "hello"
    assert plain_text(None) == ""
