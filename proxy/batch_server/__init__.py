"""Weir's own batch API: `/v1/files` and `/v1/batches` for upstreams that have none (vLLM, llama.cpp, TGI).

model, lines, arrangement, objects, limit   pure: what is kept, what a line may say, in which order lines run,
                                            what callers are shown, how many run at once
store                                       the port to where files and batches are kept, with two stores
api                                         the caller's side, a lane
executor                                    works lines off in what interactive traffic leaves

A line is a request like any other: routes match it, steps rewrite it, it has a record of its own.
"""
