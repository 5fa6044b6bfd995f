"""What makes a provider look at a world that changes."""

from __future__ import annotations

import pytest

from proxy.core.document import Document
from proxy.lanes.coalesce.share_world import looks_around


@pytest.mark.parametrize(
    "fields",
    [
        '"web_search_options":{}',
        '"plugins":[{"id":"web"}]',
        '"mcp_servers":[{"type":"url","url":"https://example.com/mcp"}]',
        '"search_parameters":{"mode":"auto"}',
        '"data_sources":[{"type":"azure_search"}]',
        '"enable_search":true',
        '"search_settings":{"country":"de"}',
        '"tools":[{"type":"web_search_20250305","name":"web_search"}]',
        '"tools":[{"type":"mcp","server_url":"https://example.com"}]',
        '"tools":[{"type":"function"},{"type":"file_search"}]',
    ],
)
def test_tools_and_searches_of_the_provider_look_around(fields: str) -> None:
    assert looks_around(Document.parse(b"{%b}" % fields.encode()), "m")


@pytest.mark.parametrize(
    "fields",
    [
        "",
        '"plugins":[],"mcp_servers":null,"enable_search":false',
        '"tools":[{"type":"function"},{"type":"custom"},{"name":"f"}]',
        '"tools":7',
    ],
)
def test_what_the_caller_does_itself_does_not(fields: str) -> None:
    assert not looks_around(Document.parse(b"{%b}" % fields.encode()), "gpt-4o")


@pytest.mark.parametrize(
    "model",
    ["openai/gpt-5:online", "gpt-4o-search-preview", "perplexity/sonar-pro", "groq/compound-mini"],
)
def test_some_models_always_search(model: str) -> None:
    assert looks_around(Document.parse(b"{}"), model)
