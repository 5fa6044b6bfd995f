"""LiteLLM's SDK, which speaks to OpenAI-compatible servers through the official SDK or by itself."""

from __future__ import annotations

from typing import Any

import litellm
from observing import LLAMA, SIMULATOR, Scenarios, read_until_it_breaks, refusal

MODEL = "openai/gpt-4o-mini"
ASKED = [
    {"role": "system", "content": "You know rivers."},
    {"role": "user", "content": "What does a weir do? Ünïcödé, 水, 🌊"},
]
STEADY: dict[str, Any] = {"temperature": 0, "seed": 1, "max_tokens": 12}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}

scenarios = Scenarios()


@scenarios.on(SIMULATOR, LLAMA)
def completion() -> Any:
    return litellm.completion(MODEL, ASKED, **STEADY)


@scenarios.on(SIMULATOR, LLAMA)
def completion_streamed() -> Any:
    chunks = list(litellm.completion(MODEL, ASKED, stream=True, **STEADY))
    return chunks, litellm.stream_chunk_builder(chunks)


@scenarios.on(SIMULATOR)
def completion_streamed_with_usage() -> Any:
    return list(
        litellm.completion(MODEL, ASKED, stream=True, stream_options={"include_usage": True}, **STEADY)
    )


@scenarios.on(SIMULATOR, LLAMA)
async def asynchronously() -> Any:
    stream = await litellm.acompletion(MODEL, ASKED, stream=True, **STEADY)
    return await litellm.acompletion(MODEL, ASKED, **STEADY), [chunk async for chunk in stream]


@scenarios.on(SIMULATOR)
def tools() -> Any:
    asked: dict[str, Any] = {"tools": [TOOL], "tool_choice": "required"}
    chunks = list(litellm.completion(MODEL, ASKED, stream=True, **asked))
    return litellm.completion(MODEL, ASKED, **asked), litellm.stream_chunk_builder(chunks)


@scenarios.on(SIMULATOR)
def structured() -> Any:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    shape = {"type": "json_schema", "json_schema": {"name": "river", "schema": schema}}
    return litellm.completion(MODEL, ASKED, response_format=shape)


@scenarios.on(SIMULATOR)
def text_completion() -> Any:
    return litellm.text_completion(model="text-completion-openai/gpt-3.5-turbo-instruct", prompt="the river")


@scenarios.on(SIMULATOR)
def embedding() -> Any:
    return litellm.embedding("openai/text-embedding-3-small", input=["a river", "a stone"])


@scenarios.on(SIMULATOR)
def responses() -> Any:
    return (
        litellm.responses(model=MODEL, input="What does a weir do?"),
        list(litellm.responses(model=MODEL, input="What does a weir do?", stream=True)),
    )


@scenarios.on(SIMULATOR)
def stream_that_breaks() -> Any:
    return read_until_it_breaks(
        litellm.completion(MODEL, ASKED, stream=True, num_retries=0, extra_headers={"x-sim-cut-after": "4"})
    )["broke"]


@scenarios.on(SIMULATOR)
def refusals() -> Any:
    return [
        refusal(
            lambda status=status: litellm.completion(
                MODEL, ASKED, max_retries=0, extra_headers={"x-sim-status": status}
            )
        )["raised"]
        for status in ("400", "401", "429", "500")
    ]


if __name__ == "__main__":
    scenarios.main()
