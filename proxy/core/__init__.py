"""Vocabulary without I/O: everything here takes values and returns values."""
