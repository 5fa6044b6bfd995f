"""Instructor: structured output by tools, by JSON schema, and piece by piece."""

from __future__ import annotations

from typing import Any

import instructor
from observing import SIMULATOR, Scenarios
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

MODEL = "gpt-4o-mini"
ASKED: list[Any] = [{"role": "user", "content": "Name a river."}]


class River(BaseModel):
    """A river."""

    name: str
    length_km: float
    tributaries: list[str]


scenarios = Scenarios()


@scenarios.on(SIMULATOR)
def by_tools() -> Any:
    return instructor.from_openai(OpenAI()).create(model=MODEL, messages=ASKED, response_model=River)


@scenarios.on(SIMULATOR)
def by_schema() -> Any:
    patched = instructor.from_openai(OpenAI(), mode=instructor.Mode.JSON_SCHEMA)
    return patched.create(model=MODEL, messages=ASKED, response_model=River)


@scenarios.on(SIMULATOR)
def piece_by_piece() -> Any:
    patched = instructor.from_openai(OpenAI())
    return list(patched.create_partial(model=MODEL, messages=ASKED, response_model=River))


@scenarios.on(SIMULATOR)
def named_by_provider() -> Any:
    patched = instructor.from_provider(f"openai/{MODEL}")
    return patched.create(messages=ASKED, response_model=River)


@scenarios.on(SIMULATOR)
async def asynchronously() -> Any:
    patched = instructor.from_openai(AsyncOpenAI())
    return await patched.create_with_completion(model=MODEL, messages=ASKED, response_model=River)


if __name__ == "__main__":
    scenarios.main()
