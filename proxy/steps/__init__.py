"""The steps that a policy can name. A new step is a new file and one line in `STEPS`."""

from __future__ import annotations

from proxy.steps import (
    add_stop,
    align_prefix,
    cap_output,
    choose_model,
    dedupe_context,
    set_params,
    shape_output,
    trim_history,
)
from proxy.steps.step import Step

__all__ = ["STEPS", "Step", "step_named"]

STEPS: tuple[Step, ...] = (
    trim_history.STEP,
    dedupe_context.STEP,
    align_prefix.STEP,
    cap_output.STEP,
    add_stop.STEP,
    shape_output.STEP,
    choose_model.STEP,
    set_params.STEP,
)


def step_named(name: str) -> Step | None:
    """Return the step of that name, or `None`."""
    return next((step for step in STEPS if step.name == name), None)
