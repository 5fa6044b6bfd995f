"""HTTP/1.1 on asyncio protocols and httptools: both ends of the data path, with one model of a head.

Heads are raw bytes; names, values, order and duplicates are kept. Nothing here knows policies or providers.
"""
