"""The real vocabularies, loaded once per test process, and a fresh counter over them for each test."""

from __future__ import annotations

import pytest

from proxy.tokens.counter import TokenCounter
from proxy.tokens.vocabulary import Vocabularies, load_vocabularies


@pytest.fixture(scope="session")
def vocabularies() -> Vocabularies:
    return load_vocabularies()


@pytest.fixture
def counter(vocabularies: Vocabularies) -> TokenCounter:
    return TokenCounter(vocabularies.encodings)
