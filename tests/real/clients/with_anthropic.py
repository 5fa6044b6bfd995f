"""The official Python SDK of Anthropic."""

from __future__ import annotations

import asyncio
from typing import Any

from anthropic import Anthropic, AsyncAnthropic
from observing import LLAMA, SIMULATOR, Scenarios, read_until_it_breaks, refusal

ASKED: dict[str, Any] = {
    "model": "claude-haiku-4-5",
    "max_tokens": 12,
    # The SDK has no word for it any more; llama.cpp does.
    "extra_body": {"temperature": 0},
    "system": "You know rivers.",
    "messages": [{"role": "user", "content": "What does a weir do? Ünïcödé, 水, 🌊"}],
}
TOOL: Any = {
    "name": "get_weather",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
    },
}

scenarios = Scenarios()
client = Anthropic()
hasty = client.with_options(max_retries=0)


@scenarios.on(SIMULATOR, LLAMA)
def message() -> Any:
    return client.messages.create(**ASKED)


@scenarios.on(SIMULATOR, LLAMA)
def message_streamed() -> Any:
    with client.messages.create(**ASKED, stream=True) as stream:
        return list(stream)


@scenarios.on(SIMULATOR, LLAMA)
def message_accumulated() -> Any:
    with client.messages.stream(**ASKED) as stream:
        kinds = [event.type for event in stream]
        return kinds, stream.get_final_message()


@scenarios.on(SIMULATOR)
def tools() -> Any:
    return client.messages.create(**ASKED, tools=[TOOL], tool_choice={"type": "any"})


@scenarios.on(SIMULATOR)
def tools_accumulated() -> Any:
    with client.messages.stream(
        **ASKED | {"max_tokens": 200},
        tools=[TOOL],
        tool_choice={"type": "any"},
        extra_headers={"x-sim-tool-call": "2"},
    ) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "input_json"]
        return snapshots, stream.get_final_message()


@scenarios.on(SIMULATOR)
def tool_loop() -> Any:
    first = client.messages.create(
        **ASKED | {"max_tokens": 200}, tools=[TOOL], extra_headers={"x-sim-tool-call": "1"}
    )
    results: Any = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "rain"}
        for block in first.content
        if block.type == "tool_use"
    ]
    history = [
        *ASKED["messages"],
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": results},
    ]
    return first, client.messages.create(**ASKED | {"messages": history}, tools=[TOOL])


@scenarios.on(SIMULATOR)
def thinking_accumulated() -> Any:
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    with client.messages.stream(**ASKED | {"max_tokens": 1200, "thinking": thinking}) as stream:
        return [event.type for event in stream], stream.get_final_message()


@scenarios.on(SIMULATOR)
def slow_stream_with_comments() -> Any:
    slow = {"x-sim-tokens": "4", "x-sim-token-ms": "120", "x-sim-comment-every": "2"}
    return list(client.messages.create(**ASKED, stream=True, extra_headers=slow))


@scenarios.on(SIMULATOR)
def stream_that_breaks() -> Any:
    return read_until_it_breaks(
        hasty.messages.create(**ASKED, stream=True, extra_headers={"x-sim-cut-after": "6"})
    )


@scenarios.on(SIMULATOR)
def error_event_in_a_stream() -> Any:
    stream = hasty.messages.create(**ASKED, stream=True, extra_headers={"x-sim-error-event-after": "5"})
    return refusal(lambda: list(stream))


@scenarios.on(SIMULATOR)
def refusals() -> Any:
    def refused(status: str) -> Any:
        return refusal(lambda: hasty.messages.create(**ASKED, extra_headers={"x-sim-status": status}))

    return [
        refusal(lambda: hasty.messages.create(**ASKED | {"max_tokens": -1})),
        *(refused(status) for status in ("401", "403", "404", "413", "429", "500", "529")),
    ]


@scenarios.on(LLAMA)
def refusals_of_llama() -> Any:
    long: Any = [{"role": "user", "content": "weir " * 5000}]
    return refusal(lambda: hasty.messages.create(**ASKED | {"messages": long}))


@scenarios.on(SIMULATOR)
def retries_of_the_sdk() -> Any:
    patient = client.with_options(max_retries=1)
    slow_down = {"x-sim-status": "529", "x-sim-retry-after": "0.01"}
    return refusal(lambda: patient.messages.create(**ASKED, extra_headers=slow_down))


@scenarios.on(SIMULATOR, LLAMA)
def tokens() -> Any:
    asked = {name: value for name, value in ASKED.items() if name != "max_tokens"}
    return client.messages.count_tokens(**asked)


@scenarios.on(SIMULATOR)
async def many_at_once() -> Any:
    async with AsyncAnthropic() as awaited:

        async def one(number: int) -> Any:
            asked = ASKED | {"messages": [{"role": "user", "content": f"Question {number}"}]}
            if number % 2:
                return await awaited.messages.create(**asked)
            async with awaited.messages.stream(**asked) as stream:
                return await stream.get_final_message()

        return [answer.content for answer in await asyncio.gather(*(one(n) for n in range(16)))]


if __name__ == "__main__":
    scenarios.main()
