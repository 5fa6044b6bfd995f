from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.core.document import Document
from proxy.dialects.structured_output import wants_structured

TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.mark.parametrize(
    ("fields", "structured"),
    [
        ({}, False),
        ({"response_format": {"type": "text"}}, False),
        ({"response_format": {"type": "json_object"}}, True),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, True),
        ({"response_format": "json"}, False),
        ({"text": {"format": {"type": "text"}, "verbosity": "low"}}, False),
        ({"text": {"format": {"type": "json_schema"}}}, True),
        ({"output_format": {"type": "json_schema"}}, True),
        ({"output_config": {"format": {"type": "json_schema"}}}, True),
        ({"output_config": {"effort": "low"}}, False),
        ({"tools": TOOLS}, True),
        ({"tools": TOOLS, "tool_choice": "none"}, False),
        ({"tools": []}, False),
        ({"tools": None}, False),
        ({"functions": [{"name": "f"}]}, True),
        ({"functions": [{"name": "f"}], "function_call": "none"}, False),
        ({"guided_json": {}}, True),
        ({"guided_json": None}, False),
        ({"grammar": "root ::= x"}, True),
    ],
)
def test_formats_grammars_and_tools_want_an_answer_that_parses(
    fields: dict[str, Any], structured: bool
) -> None:
    assert wants_structured(Document.parse(json.dumps(fields).encode())) is structured
