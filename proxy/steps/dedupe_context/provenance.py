"""Names under which retrievers say where a passage comes from, and how well it fits.

Two copies of one text differ in these; in every other field they say different things.
"""

from __future__ import annotations

import re

SCORES = (
    "score", "relevance_score", "relevance", "similarity", "similarity_score", "rerank_score", "_score",
    "@search.score",
)  # fmt: skip
ABOUT = frozenset(
    (
        *SCORES, "distance", "rank", "position", "id", "_id", "index", "idx", "number", "uuid", "hash",
        "chunk_id", "chunk_index", "doc_id", "document_id", "node_id", "seq_num", "source", "sources", "url",
        "uri", "link", "href", "file", "filename", "file_name", "file_path", "path", "page", "page_number",
        "start", "end", "offset", "start_index", "embedding", "vector", "loc",
    )
)  # fmt: skip

_NUMBER = r"([+-]?(?:\d{1,18}(?:\.\d{0,18})?|\.\d{1,18})(?:[eE][+-]?\d{1,3})?)"
_WHOLE = re.compile(_NUMBER)
_NAME = r"(?i:rerank[_ ]|relevance[_ ]|similarity[_ ])?(?i:score|relevance|similarity)"
_ATTRIBUTE = re.compile(r"([\w:.@-]{1,64})\s{0,8}=\s{0,8}(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'>]+))")
# In brackets, or alone between the label and the end of its line: elsewhere it is a word of the text.
_IN_BRACKETS = re.compile(rf"[(\[][ \t]*{_NAME}[ \t]*[:=][ \t]*{_NUMBER}[ \t]*[)\]],?")
_ALONE = re.compile(rf"[ \t:.)–—*|-]*{_NAME}[ \t]*[:=][ \t]*{_NUMBER}[ \t\r]*$")
_NAMES = ("score", "relevance", "similarity")
_LONGEST_LINE_CHARS = 200


def tag_attributes(tag: str) -> dict[str, str]:
    """Return the attributes of an opening tag by lower-case name."""
    return {name.lower(): a or b or c for name, a, b, c in _ATTRIBUTE.findall(tag)}


def attribute_score(attributes: dict[str, str]) -> float | None:
    """Return the score among a tag's attributes, where it is a whole number and nothing else."""
    for name in SCORES:
        value = attributes.get(name)
        if value is not None and _WHOLE.fullmatch(value.strip()):
            return float(value)
    return None


def label_score(text: str, start: int, end: int) -> re.Match[str] | None:
    """Return the match of a score in a label's line `text[start:end]`; its first group is the number."""
    end = min(end, start + _LONGEST_LINE_CHARS)
    head = text[start:end].lower()
    if not any(name in head for name in _NAMES):
        return None
    return _IN_BRACKETS.search(text, start, end) or _ALONE.match(text, start, end)
