"""The official SDKs of OpenAI and Anthropic put streams together, shown beside the whole answers."""

from __future__ import annotations

from typing import Any

from anthropic import Anthropic
from observing import SIMULATOR, Scenarios
from openai import OpenAI

MODEL = "gpt-4o-mini"
ASKED: list[Any] = [{"role": "user", "content": "Hello"}]

scenarios = Scenarios()
client = OpenAI()
anthropic = Anthropic(base_url=str(client.base_url).removesuffix("/v1/"), api_key="sk-test-of-a-client")


def chat(case: int) -> Any:
    headers = {"x-case": str(case)}
    with client.chat.completions.stream(
        model=MODEL, messages=ASKED, extra_headers=headers, stream_options={"include_usage": True}
    ) as stream:
        streamed = stream.get_final_completion()
    return {
        "streamed": streamed,
        "whole": client.chat.completions.create(model=MODEL, messages=ASKED, extra_headers=headers),
    }


@scenarios.on(SIMULATOR)
def chats() -> Any:
    return [chat(case) for case in range(3)]


@scenarios.on(SIMULATOR)
def completions() -> Any:
    asked: dict[str, Any] = {"model": MODEL, "prompt": "Hello"}
    pieces = list(client.completions.create(**asked, stream=True))
    return {
        "streamed": "".join(piece.choices[0].text for piece in pieces if piece.choices),
        "whole": client.completions.create(**asked).choices[0].text,
    }


@scenarios.on(SIMULATOR)
def responses() -> Any:
    with client.responses.stream(model=MODEL, input="Hello") as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_response()
    return {
        "kinds": kinds,
        "streamed": streamed,
        "whole": client.responses.create(model=MODEL, input="Hello"),
    }


@scenarios.on(SIMULATOR)
def messages() -> Any:
    asked: dict[str, Any] = {"model": "claude-sonnet-5-5", "max_tokens": 50, "messages": ASKED}
    with anthropic.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    return {"streamed": streamed, "whole": anthropic.messages.create(**asked)}


if __name__ == "__main__":
    scenarios.main()
