from __future__ import annotations

import pytest

from proxy.core.document import Document
from proxy.core.usage import Usage
from proxy.dialects.dialect import NOTHING, BodyFacts, Dialect
from proxy.dialects.embeddings import EMBEDDINGS
from proxy.dialects.moderations import MODERATIONS

PLAIN = pytest.mark.parametrize("dialect", [EMBEDDINGS, MODERATIONS], ids=repr)


@PLAIN
def test_there_is_nothing_to_rewrite(dialect: Dialect) -> None:
    document = Document.parse(b'{"model":"m","input":"x","stream":true,"max_tokens":3}')
    assert dialect.cap_field(document, "m", "openai") is None
    assert dialect.stop_field is None
    assert not dialect.refuses_stop("m")
    assert not dialect.is_reasoning(document, "o3")
    assert dialect.ask_usage(document) is document
    assert dialect.waits_for_person(document) is None
    assert dialect.read_event(b'data: {"usage":{"prompt_tokens":3}}\n\n') == NOTHING


@PLAIN
def test_usage_and_errors_of_bodies_are_read(dialect: Dialect) -> None:
    raw = b'{"object":"list","data":[{"embedding":[0.1,1E-9]}],"usage":{"prompt_tokens":8,"total_tokens":8}}'
    assert dialect.read_body(raw) == BodyFacts(usage=Usage(8))
    assert dialect.read_body(b'{"error":{"message":"no"}}') == BodyFacts(error=True)
    assert dialect.read_body(b"oops") == BodyFacts()
    assert dialect.error_event("m", "c", None).startswith(b'data: {"error":')
