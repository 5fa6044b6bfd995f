"""The real vocabularies, loaded once per test process, and a fresh counter over them for each test."""

from __future__ import annotations

import pytest

from proxy.tokens.counter import TokenCounter
from proxy.tokens.vocabulary import Vocabularies


@pytest.fixture(scope="session")
def vocabularies() -> Vocabularies:
    return Vocabularies()


@pytest.fixture
def counter(vocabularies: Vocabularies) -> TokenCounter:
    counter = TokenCounter(vocabularies)
    counter.prepare()
    return counter
