"""Endpoints that answer from the provider's books: token counts and the list of models.

No model runs for them, so they take no slot and bill nothing.
"""

from __future__ import annotations

from proxy.sim.errors import ApiError, Family
from proxy.sim.messages import prompt_blocks
from proxy.sim.messages_rules import check_messages_request
from proxy.sim.responses import prompt_tokens
from proxy.sim.responses_rules import check_responses
from proxy.sim.work import Call, PlainAnswer, Shape, Work

_MODELS_PATH = "/v1/models"


def _read_messages_count(call: Call) -> Work:
    check_messages_request(call.body, call.headers, needs_cap=False)
    count = sum(len(block.tokens) for block in prompt_blocks(call.body))
    return Work(PlainAnswer({"input_tokens": count}), str(call.body["model"]), 0)


def _read_responses_count(call: Call) -> Work:
    check_responses(call.body)
    count = len(prompt_tokens(call.body))
    answer = PlainAnswer({"object": "response.input_tokens", "input_tokens": count})
    return Work(answer, str(call.body["model"]), 0)


def _model(name: str, created: int) -> dict[str, object]:
    return {"id": name, "object": "model", "created": created, "owned_by": "weir-sim"}


def _read_models(call: Call) -> Work:
    models = [_model(name, call.identity.created) for name in call.scenario.models]
    return Work(PlainAnswer({"object": "list", "data": models}), "", 0)


def _read_model(call: Call) -> Work:
    name = call.path.removeprefix(f"{_MODELS_PATH}/")
    if name not in call.scenario.models:
        raise unknown_model(name)
    return Work(PlainAnswer(_model(name, call.identity.created)), name, 0)


def unknown_model(name: str) -> ApiError:
    """Return the refusal of a model that the provider does not have."""
    message = f"The model '{name}' does not exist or you do not have access to it."
    return ApiError(404, message, "invalid_request_error", "model", "model_not_found")


SHAPES = (
    Shape("/v1/messages/count_tokens", Family.ANTHROPIC, _read_messages_count, runs_model=False),
    Shape("/v1/responses/input_tokens", Family.OPENAI, _read_responses_count, runs_model=False),
    Shape(_MODELS_PATH, Family.OPENAI, _read_models, "GET", runs_model=False),
    Shape(_MODELS_PATH + "/{model:.+}", Family.OPENAI, _read_model, "GET", runs_model=False),
)
