"""Owns the JSON Schema of policy files, generated from the very tables and step configs that read them.

An editor that knows it completes keys while a policy is written. It is a little stricter than `weir check`
where `${…}` stands for one of a few words, and knows nothing of names that refer to each other.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from proxy.policy.format import file_record
from proxy.steps import STEPS
from proxy.steps.step import Step

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def policy_schema(steps: Sequence[Step] = STEPS) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of one policy file."""
    return {"$schema": DRAFT, "title": "Weir policy"} | file_record(steps).schema()


def schema_text(steps: Sequence[Step] = STEPS) -> str:
    """Return the schema as the text of `policies/policy.schema.json`, the output of `weir schema`."""
    return json.dumps(policy_schema(steps), indent=2, ensure_ascii=False) + "\n"
