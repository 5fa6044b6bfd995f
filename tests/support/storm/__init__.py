"""Callers and an upstream that do to Weir what networks, clients and servers do, all from one seed.

    upstream.py   answers each request as its `x-fault` header says
    callers.py    what callers do, and what they may see where their upstream behaves
    storm.py      many of them at once, and what was seen

Everything runs on one event loop in the test; Weir runs in a thread or a process of its own.
"""
