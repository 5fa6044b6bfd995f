from __future__ import annotations

import pytest

from proxy.dialects import DIALECTS, dialect_for_path, names_model


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_every_dialect_is_found_at_its_own_path(dialect: object) -> None:
    path = getattr(dialect, "path")  # noqa: B009
    for called in (path, path.removeprefix("/v1"), "/openai" + path, "/any/prefix" + path):
        assert dialect_for_path(called) is dialect


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/openai/deployments/my-gpt/chat/completions", "chat"),
        ("/openai/deployments/my-gpt/completions", "completions"),
        ("/openai/deployments/my-ada/embeddings", "embeddings"),
        ("/openai/responses", "responses"),
        ("/api/v3/chat/completions", "chat"),
        ("/anthropic/v1/messages", "messages"),
    ],
)
def test_other_hosts_paths_are_known(path: str, name: str) -> None:
    dialect = dialect_for_path(path)
    assert dialect is not None
    assert dialect.name == name


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/v1",
        "/v1/models",
        "/v1/files",
        "/v1/audio/transcriptions",
        "/v1/realtime",
        "/v1/messages/batches",
        "/v1/messages/count_tokens",
        "/v1/threads/thread_1/messages",
        "/v1/responses/resp_1",
        "/v1/responses/input_tokens",
        "/v1/chat/completions/batch",
        "/v1/chat/completions/chatcmpl_1/messages",
        "/v1/chat/moderations",
        "/v1/fim/completions",
        "/v1/CHAT/COMPLETIONS",
        "/v1/chat/completions/",
    ],
)
def test_what_merely_resembles_them_is_another_api(path: str) -> None:
    assert dialect_for_path(path) is None


@pytest.mark.parametrize(
    ("path", "is_named"),
    [
        ("/openai/deployments/gpt-4o/chat/completions", True),
        ("/OpenAI/Deployments/gpt-4o/chat/completions", True),
        ("/openai/deployments", False),
        ("/v1/chat/completions", False),
        ("/openai/responses", False),
    ],
)
def test_a_deployment_in_the_path_names_the_model(path: str, is_named: bool) -> None:
    assert names_model(path) is is_named
