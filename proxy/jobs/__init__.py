"""Deferred work: what a job is, how it moves, where it is kept and how many jobs become one batch."""
