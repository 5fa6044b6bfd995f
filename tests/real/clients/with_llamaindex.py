"""LlamaIndex's OpenAI integration."""

from __future__ import annotations

from typing import Any

from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai import OpenAI
from observing import LLAMA, SIMULATOR, Scenarios
from pydantic import BaseModel

ASKED = [
    ChatMessage(role="system", content="You know rivers."),
    ChatMessage(role="user", content="What does a weir do? Ünïcödé, 水, 🌊"),
]

scenarios = Scenarios()
model = OpenAI(model="gpt-4o-mini", temperature=0, max_tokens=16)


class River(BaseModel):
    """A river."""

    name: str
    length_km: float


def get_weather(city: str, days: int) -> str:
    """Look up the weather."""
    return f"rain in {city} for {days} days"


@scenarios.on(SIMULATOR, LLAMA)
def chat() -> Any:
    return model.chat(ASKED)


@scenarios.on(SIMULATOR, LLAMA)
def chat_streamed() -> Any:
    return [(part.delta, part.message) for part in model.stream_chat(ASKED)]


@scenarios.on(SIMULATOR, LLAMA)
def completed() -> Any:
    return model.complete("What does a weir do?"), [
        part.delta for part in model.stream_complete("And a dam?")
    ]


@scenarios.on(SIMULATOR, LLAMA)
async def asynchronously() -> Any:
    return await model.achat(ASKED), [part.delta async for part in await model.astream_chat(ASKED)]


@scenarios.on(SIMULATOR)
def tools() -> Any:
    asked = model.chat_with_tools(
        [FunctionTool.from_defaults(get_weather)], chat_history=ASKED, tool_required=True
    )
    return asked.message, model.get_tool_calls_from_response(asked)


@scenarios.on(SIMULATOR)
def structured() -> Any:
    roomy = OpenAI(model="gpt-4o-mini", max_tokens=200)
    return roomy.structured_predict(River, PromptTemplate("Name a river."))


if __name__ == "__main__":
    scenarios.main()
