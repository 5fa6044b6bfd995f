from __future__ import annotations

from proxy.core.document import Document
from proxy.core.usage import Usage
from proxy.dialects.completions import COMPLETIONS
from proxy.dialects.dialect import NOTHING, EventFacts


def test_text_is_content() -> None:
    assert COMPLETIONS.read_event(b'data: {"choices":[{"text":"hi","index":0}]}\n\n') == EventFacts(
        first_content=True
    )
    assert COMPLETIONS.read_event(b'data: {"choices":[{"text":"","index":0}]}\n\n') == NOTHING
    assert COMPLETIONS.read_event(b"data: null\n\n") == NOTHING


def test_usage_on_the_last_choice_is_read_and_not_alone() -> None:
    raw = (
        b'data: {"choices":[{"text":"","index":1,"finish_reason":"length"}],'
        b'"usage":{"prompt_tokens":2,"completion_tokens":4}}\n\n'
    )
    assert COMPLETIONS.read_event(raw) == EventFacts(finish_reason="length", usage=Usage(2, 4), finished=(1,))


def test_bodies_are_read() -> None:
    facts = COMPLETIONS.read_body(
        b'{"choices":[{"text":"","finish_reason":"length"}],"usage":{"prompt_tokens":2}}'
    )
    assert (facts.usage, facts.finish_reason, facts.empty) == (Usage(2), "length", True)
    assert not COMPLETIONS.read_body(b'{"choices":[{"text":"x"}]}').empty


def test_one_cap_field_and_a_stop_for_every_model() -> None:
    document = Document.parse(b'{"model":"o3","stream":true}')
    assert COMPLETIONS.cap_field(document, "o3", "openai") == "max_tokens"
    assert not COMPLETIONS.refuses_stop("o3")
    assert COMPLETIONS.ask_usage(document).get("stream_options") == b'{"include_usage":true}'
    assert COMPLETIONS.waits_for_person(document) is None
