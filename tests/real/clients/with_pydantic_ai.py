"""Pydantic AI: agents on Chat Completions and on Responses, with tools and structured output."""

from __future__ import annotations

from typing import Any

from observing import LLAMA, SIMULATOR, Scenarios
from pydantic import BaseModel
from pydantic_ai import Agent

CHAT, RESPONSES = "openai-chat:gpt-4o-mini", "openai-responses:gpt-4o-mini"
STEADY: Any = {"temperature": 0, "max_tokens": 16}

scenarios = Scenarios()


class River(BaseModel):
    """A river."""

    name: str
    length_km: float


def told(result: Any) -> Any:
    """Return the whole exchange as the agent keeps it, without the times and ids of its own making."""
    parts = [
        {name: part.__dict__.get(name) for name in ("part_kind", "tool_name", "args", "content")}
        for message in result.all_messages()
        for part in message.parts
    ]
    usage = result.usage() if callable(result.usage) else result.usage
    return {"parts": parts, "tokens": (usage.input_tokens, usage.output_tokens)}


def whole(result: Any) -> Any:
    """Return what a finished run produced, and how."""
    return result.output, told(result)


@scenarios.on(SIMULATOR, LLAMA)
def run() -> Any:
    return [
        whole(Agent(name, model_settings=STEADY).run_sync("What does a weir do?"))
        for name in (CHAT, RESPONSES)
    ]


@scenarios.on(SIMULATOR, LLAMA)
async def streamed() -> Any:
    seen = []
    for name in (CHAT, RESPONSES):
        async with Agent(name, model_settings=STEADY).run_stream("What does a weir do?") as result:
            seen.append(
                ([text async for text in result.stream_text(delta=True, debounce_by=None)], told(result))
            )
    return seen


@scenarios.on(SIMULATOR)
def tools() -> Any:
    seen = []
    for name in (CHAT, RESPONSES):
        agent = Agent(name)

        @agent.tool_plain
        def get_weather(city: str, days: int) -> str:
            """Look up the weather."""
            return f"rain in {city} for {days} days"

        seen.append(whole(agent.run_sync("Please get weather for Ghent.")))
    return seen


@scenarios.on(SIMULATOR)
def structured() -> Any:
    return [whole(Agent(name, output_type=River).run_sync("Name a river.")) for name in (CHAT, RESPONSES)]


if __name__ == "__main__":
    scenarios.main()
