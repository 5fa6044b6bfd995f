"""Counting tokens: vocabularies shipped inside, guarded text, media estimates, a per-message cache.

Owns every figure that Weir calculates itself about the size of a prompt, and says of each whether it
is exact. Refuses to open a socket, to read a vocabulary from anywhere but this package, and to fail a
request: what cannot be counted is estimated.
"""
