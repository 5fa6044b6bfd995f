from __future__ import annotations

import base64
import math
import struct
from typing import Any

import pytest

from tests.unit.sim.running import Sim

PATH = "/v1/embeddings"
BASE: dict[str, Any] = {"model": "text-embedding-3-small", "input": "river", "dimensions": 8}


def vectors(sim: Sim, **changes: Any) -> list[list[float]]:
    return [entry["embedding"] for entry in sim.post(PATH, {**BASE, **changes}).json()["data"]]


def test_vectors_have_length_one_and_the_model_s_dimensions(sim: Sim) -> None:
    for model, size in (("text-embedding-3-small", 1536), ("text-embedding-3-large", 3072)):
        (vector,) = vectors(sim, model=model, dimensions=None)
        assert len(vector) == size
        assert math.isclose(math.hypot(*vector), 1.0, abs_tol=1e-5)


def test_an_input_has_the_same_vector_alone_and_in_an_array(sim: Sim) -> None:
    both = vectors(sim, input=["river", "lake"])
    assert both == [vectors(sim, input="river")[0], vectors(sim, input="lake")[0]]
    assert both[0] != both[1]
    assert vectors(sim, model="text-embedding-3-large") != vectors(sim)


def test_base64_holds_the_same_floats(sim: Sim) -> None:
    raw = sim.post(PATH, {**BASE, "encoding_format": "base64"}).json()["data"][0]["embedding"]
    assert list(struct.unpack("<8f", base64.b64decode(raw))) == vectors(sim)[0]


def test_fewer_dimensions_are_the_first_of_the_longer_vector(sim: Sim) -> None:
    short, long = vectors(sim)[0], vectors(sim, dimensions=None)[0]
    scale = math.hypot(*long[:8])
    assert all(math.isclose(a, b / scale, abs_tol=1e-5) for a, b in zip(short, long, strict=False))


def test_usage_and_indices_cover_all_inputs(sim: Sim) -> None:
    answer = sim.post(PATH, {**BASE, "input": ["one two", "three"]}).json()
    assert answer["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    assert [entry["index"] for entry in answer["data"]] == [0, 1]


def test_token_ids_are_inputs(sim: Sim) -> None:
    assert len(vectors(sim, input=[1, 2, 3])) == 1
    assert len(vectors(sim, input=[[1, 2], [3]])) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"input": None},
        {"input": ["a", ""]},
        {"input": ["a"] * 2049},
        {"input": "word " * 8193},
        {"input": ["word " * 8000] * 38},
        {"dimensions": 1537},
        {"dimensions": 0},
        {"model": "text-embedding-ada-002", "dimensions": 8},
        {"encoding_format": "hex"},
        {"model": None},
    ],
)
def test_refuses_what_is_not_legal(sim: Sim, changes: dict[str, Any]) -> None:
    reply = sim.post(PATH, {**BASE, **changes})
    assert reply.status == 400
    assert reply.json()["error"]["type"] == "invalid_request_error"
