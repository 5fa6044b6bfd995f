"""LangChain's OpenAI integration: chat (Chat Completions and Responses), completions, embeddings."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessageChunk
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from observing import LLAMA, SIMULATOR, Scenarios, refusal
from pydantic import BaseModel

MODEL = "gpt-4o-mini"
ASKED = [("system", "You know rivers."), ("human", "What does a weir do? Ünïcödé, 水, 🌊")]

scenarios = Scenarios()
model = ChatOpenAI(model=MODEL, temperature=0, seed=1, max_tokens=16)
roomy = ChatOpenAI(model=MODEL, max_tokens=200)


class River(BaseModel):
    """A river."""

    name: str
    length_km: float


@tool
def get_weather(city: str, days: int) -> str:
    """Look up the weather."""
    return f"rain in {city} for {days} days"


def added_up(chunks: list[AIMessageChunk]) -> AIMessageChunk:
    """Return what LangChain makes of the chunks."""
    total = chunks[0]
    for chunk in chunks[1:]:
        total += chunk
    return total


@scenarios.on(SIMULATOR, LLAMA)
def invoked() -> Any:
    return model.invoke(ASKED)


@scenarios.on(SIMULATOR, LLAMA)
def streamed() -> Any:
    chunks = list(model.stream(ASKED))
    return chunks, added_up(chunks)


@scenarios.on(SIMULATOR, LLAMA)
async def asynchronously() -> Any:
    return await model.ainvoke(ASKED), [chunk.content async for chunk in model.astream(ASKED)]


@scenarios.on(SIMULATOR)
def tools() -> Any:
    bound = roomy.bind_tools([get_weather], tool_choice="any")
    answer = bound.invoke(ASKED)
    results = [get_weather.invoke(call) for call in answer.tool_calls]
    history = [*ASKED, answer, *results]
    return answer, results, roomy.bind_tools([get_weather]).invoke(history)


@scenarios.on(SIMULATOR)
def tools_streamed() -> Any:
    chunks = list(roomy.bind_tools([get_weather], tool_choice="any").stream(ASKED))
    return added_up(chunks)


@scenarios.on(SIMULATOR)
def structured() -> Any:
    return [
        roomy.with_structured_output(River, method=method).invoke(ASKED)
        for method in ("json_schema", "function_calling")
    ]


@scenarios.on(SIMULATOR)
def responses() -> Any:
    responding = ChatOpenAI(model=MODEL, use_responses_api=True)
    chunks = list(responding.stream(ASKED))
    return responding.invoke(ASKED), chunks


@scenarios.on(SIMULATOR, LLAMA)
def completions() -> Any:
    completing = OpenAI(model="gpt-3.5-turbo-instruct", max_tokens=6, temperature=0, seed=1)
    return completing.invoke("the river"), list(completing.stream("the river"))


@scenarios.on(SIMULATOR)
def embeddings() -> Any:
    # Without the check it sends text; with it, it would load a vocabulary from the network.
    embedding = OpenAIEmbeddings(model="text-embedding-3-small", check_embedding_ctx_length=False)
    return embedding.embed_query("river"), embedding.embed_documents(["a river", "a stone"])


@scenarios.on(SIMULATOR)
def refused() -> Any:
    failing = ChatOpenAI(
        model=MODEL, max_retries=0, default_headers={"x-sim-status": "429", "x-sim-retry-after": "2"}
    )
    return refusal(lambda: failing.invoke(ASKED))


@scenarios.on(SIMULATOR)
def batch() -> Any:
    questions = [f"Question {number}" for number in range(8)]
    return [answer.content for answer in model.batch(questions)]


if __name__ == "__main__":
    scenarios.main()
