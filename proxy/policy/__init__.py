"""Policies: from YAML to a validated, compiled `PolicySet`, and the decisions that follow from it."""
