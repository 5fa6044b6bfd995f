"""The official Python SDK of OpenAI: 1.x, 2.x and 3.x, synchronous and asynchronous."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import openai
from observing import LLAMA, SIMULATOR, Scenarios, read_until_it_breaks, refusal
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

MODEL = "gpt-4o-mini"
ASKED: list[Any] = [
    {"role": "system", "content": "You know rivers."},
    {"role": "user", "content": "What does a weir do? Ünïcödé, 水, 🌊"},
]
STEADY: dict[str, Any] = {"temperature": 0, "seed": 1}

scenarios = Scenarios()
client = OpenAI()
hasty = client.with_options(max_retries=0)


class GetWeather(BaseModel):
    """Look up the weather."""

    city: str
    days: int


class River(BaseModel):
    name: str
    length_km: float
    tributaries: list[str]
    is_navigable: bool


TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
        },
    },
}


@scenarios.on(SIMULATOR, LLAMA)
def chat() -> Any:
    return client.chat.completions.create(model=MODEL, messages=ASKED, max_tokens=8, **STEADY)


@scenarios.on(SIMULATOR, LLAMA)
def chat_streamed() -> Any:
    with client.chat.completions.create(
        model=MODEL, messages=ASKED, max_tokens=8, stream=True, **STEADY
    ) as stream:
        return list(stream)


@scenarios.on(SIMULATOR, LLAMA)
def chat_streamed_with_usage() -> Any:
    with client.chat.completions.create(
        model=MODEL,
        messages=ASKED,
        max_tokens=8,
        stream=True,
        stream_options={"include_usage": True},
        **STEADY,
    ) as stream:
        return list(stream)


@scenarios.on(SIMULATOR)
def several_choices_streamed() -> Any:
    stream = client.chat.completions.create(model=MODEL, messages=ASKED, n=3, logprobs=True, stream=True)
    return list(stream)


@scenarios.on(LLAMA)
def several_choices_of_each_their_own() -> Any:
    """Usage comes twice, once in the middle: the order of the choices is the server's mood, so by choice."""
    stream = client.chat.completions.create(
        model=MODEL,
        messages=ASKED,
        n=2,
        max_tokens=6,
        stream=True,
        stream_options={"include_usage": True},
        **STEADY,
    )
    texts: dict[int, str] = defaultdict(str)
    usages = []
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
        if chunk.usage is not None:
            usages.append((len(chunk.choices), chunk.usage))
    return dict(sorted(texts.items())), usages


@scenarios.on(SIMULATOR)
def chat_accumulated() -> Any:
    with client.chat.completions.stream(model=MODEL, messages=ASKED) as stream:
        kinds = [event.type for event in stream]
        return kinds, stream.get_final_completion()


@scenarios.on(SIMULATOR)
def tools() -> Any:
    return client.chat.completions.create(model=MODEL, messages=ASKED, tools=[TOOL], tool_choice="required")


@scenarios.on(SIMULATOR)
def tools_accumulated() -> Any:
    with client.chat.completions.stream(
        model=MODEL,
        messages=ASKED,
        tools=[openai.pydantic_function_tool(GetWeather)],
        tool_choice="required",
        extra_headers={"x-sim-tool-call": "2"},
    ) as stream:
        for _ in stream:
            pass
        return stream.get_final_completion()


@scenarios.on(SIMULATOR)
def structured() -> Any:
    return client.chat.completions.parse(model=MODEL, messages=ASKED, response_format=River)


@scenarios.on(SIMULATOR)
def structured_accumulated() -> Any:
    with client.chat.completions.stream(model=MODEL, messages=ASKED, response_format=River) as stream:
        for _ in stream:
            pass
        return stream.get_final_completion()


@scenarios.on(SIMULATOR)
def reasoning_content_streamed() -> Any:
    stream = client.chat.completions.create(
        model=MODEL, messages=ASKED, stream=True, extra_headers={"x-sim-reasoning": "6", "x-sim-tokens": "4"}
    )
    return list(stream)


@scenarios.on(SIMULATOR)
def slow_stream_with_comments() -> Any:
    slow = {"x-sim-tokens": "4", "x-sim-token-ms": "120", "x-sim-comment-every": "2"}
    return list(client.chat.completions.create(model=MODEL, messages=ASKED, stream=True, extra_headers=slow))


@scenarios.on(SIMULATOR)
def stream_of_an_upstream_that_never_says_done() -> Any:
    return list(
        client.chat.completions.create(
            model=MODEL, messages=ASKED, stream=True, extra_headers={"x-sim-end-without-done": "1"}
        )
    )


@scenarios.on(SIMULATOR)
def stream_that_breaks() -> Any:
    return read_until_it_breaks(
        hasty.chat.completions.create(
            model=MODEL, messages=ASKED, stream=True, extra_headers={"x-sim-cut-after": "4"}
        )
    )


@scenarios.on(SIMULATOR)
def error_event_in_a_stream() -> Any:
    stream = hasty.chat.completions.create(
        model=MODEL, messages=ASKED, stream=True, extra_headers={"x-sim-error-event-after": "3"}
    )
    return refusal(lambda: list(stream))


@scenarios.on(SIMULATOR)
def caller_that_leaves_and_comes_back() -> Any:
    read = []
    with client.chat.completions.create(
        model=MODEL, messages=ASKED, stream=True, extra_headers={"x-sim-tokens": "300"}
    ) as stream:
        for chunk in stream:
            read.append(chunk)
            if len(read) == 3:
                break
    again = client.chat.completions.create(model=MODEL, messages=ASKED)
    return read, again


@scenarios.on(SIMULATOR)
def refusals() -> Any:
    def refused(**headers: str) -> Any:
        sent = {f"x-sim-{name.replace('_', '-')}": value for name, value in headers.items()}
        return refusal(lambda: hasty.chat.completions.create(model=MODEL, messages=ASKED, extra_headers=sent))

    unknown: Any = [{"role": "nobody", "content": "?"}]
    return [
        refusal(lambda: hasty.chat.completions.create(model=MODEL, messages=unknown)),
        refusal(lambda: hasty.models.retrieve("no/such model")),
        *(refused(status=status) for status in ("401", "403", "404", "409", "422", "500")),
        refused(status="429", retry_after="3", error_code="insufficient_quota"),
    ]


@scenarios.on(LLAMA)
def refusals_of_llama() -> Any:
    shape: Any = {"type": "json_schema", "json_schema": {"name": "r", "schema": River.model_json_schema()}}
    return [
        refusal(lambda: hasty.chat.completions.create(model=MODEL, messages=ASKED, response_format=shape)),
        refusal(lambda: hasty.embeddings.create(model=MODEL, input="x")),
        refusal(lambda: hasty.moderations.create(input="x")),
        refusal(lambda: hasty.completions.create(model=MODEL, prompt="weir " * 5000)),
    ]


@scenarios.on(SIMULATOR)
def retries_of_the_sdk() -> Any:
    patient = client.with_options(max_retries=2)
    slow_down = {"x-sim-status": "503", "x-sim-retry-after": "0.01"}
    return refusal(
        lambda: patient.chat.completions.create(model=MODEL, messages=ASKED, extra_headers=slow_down)
    )


@scenarios.on(SIMULATOR)
def raw_headers() -> Any:
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=ASKED)
    return {
        "headers": {
            name: value
            for name, value in raw.headers.items()
            if not name.startswith("x-weir-") and name not in ("server-timing", "date", "x-request-id")
        },
        "parsed": raw.parse(),
    }


@scenarios.on(SIMULATOR, LLAMA)
def completions_of_an_array() -> Any:
    return client.completions.create(model=MODEL, prompt=["the river", "a stone"], max_tokens=5, **STEADY)


@scenarios.on(SIMULATOR, LLAMA)
def completions_of_an_array_streamed() -> Any:
    texts: dict[int, str] = defaultdict(str)
    empty = 0
    for chunk in client.completions.create(
        model=MODEL, prompt=["the river", "a stone"], max_tokens=5, stream=True, **STEADY
    ):
        if chunk is None:  # llama.cpp says `data: null` first
            empty += 1
            continue
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    return dict(sorted(texts.items())), empty


@scenarios.on(SIMULATOR)
def embeddings() -> Any:
    words = ["river", "rain", "水"]
    return [
        client.embeddings.create(model="text-embedding-3-small", input="river"),
        client.embeddings.create(model="text-embedding-3-small", input=words, dimensions=8),
        client.embeddings.create(model="text-embedding-3-small", input=words, encoding_format="float"),
    ]


@scenarios.on(SIMULATOR)
def moderations() -> Any:
    return client.moderations.create(input=["a river", "violence"])


@scenarios.on(SIMULATOR, LLAMA)
def models() -> Any:
    return [model.id for model in client.models.list()]


@scenarios.on(SIMULATOR, LLAMA)
def responses() -> Any:
    return client.responses.create(
        model=MODEL, input="What does a weir do?", max_output_tokens=16, temperature=0
    )


@scenarios.on(SIMULATOR, LLAMA)
def responses_streamed() -> Any:
    with client.responses.create(
        model=MODEL, input="What does a weir do?", max_output_tokens=16, temperature=0, stream=True
    ) as stream:
        return list(stream)


@scenarios.on(SIMULATOR)
def responses_accumulated_with_reasoning_and_tools() -> Any:
    tool: Any = {"type": "function", "strict": True, **TOOL["function"]}
    with client.responses.stream(
        model="gpt-5-mini",
        input="Use a tool.",
        tools=[tool],
        tool_choice="required",
        reasoning={"effort": "low"},
    ) as stream:
        kinds = [event.type for event in stream]
        return kinds, stream.get_final_response()


@scenarios.on(SIMULATOR)
def responses_structured_and_continued() -> Any:
    first = client.responses.parse(model=MODEL, input="Name a river.", text_format=River)
    second = client.responses.create(model=MODEL, input="And another?", previous_response_id=first.id)
    return first, first.output_parsed, second


@scenarios.on(SIMULATOR)
def responses_stream_that_breaks() -> Any:
    return read_until_it_breaks(
        hasty.responses.create(
            model=MODEL, input="Hello", stream=True, extra_headers={"x-sim-cut-after": "6"}
        )
    )


@scenarios.on(SIMULATOR, LLAMA)
async def asynchronously() -> Any:
    async with AsyncOpenAI() as awaited:
        whole = await awaited.chat.completions.create(model=MODEL, messages=ASKED, max_tokens=8, **STEADY)
        stream = await awaited.chat.completions.create(
            model=MODEL, messages=ASKED, max_tokens=8, stream=True, **STEADY
        )
        return whole, [chunk async for chunk in stream]


@scenarios.on(SIMULATOR)
async def many_at_once() -> Any:
    async with AsyncOpenAI() as awaited:

        async def one(number: int) -> str:
            asked: Any = [{"role": "user", "content": f"Question {number}"}]
            if number % 2:
                whole = await awaited.chat.completions.create(model=MODEL, messages=asked)
                return whole.choices[0].message.content or ""
            stream = await awaited.chat.completions.create(model=MODEL, messages=asked, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        return await asyncio.gather(*(one(number) for number in range(24)))


if __name__ == "__main__":
    scenarios.main()
