"""Every batch API is documented, priced or said not to be, and tested against a server of its dialect."""

from __future__ import annotations

import re
from pathlib import Path

from proxy.core.price import Tier
from proxy.core.upstream import Provider
from proxy.upstream.providers.batch_apis import BATCH_APIS
from proxy.upstream.providers.prices import load_prices
from tests.support.batch_servers import SERVERS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "providers.md"
ROW = re.compile(r"^\| `(\w+)` \|(.+)\|$", re.MULTILINE)
WORDS = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "embeddings": "/v1/embeddings",
    "completions": "/v1/completions",
    "moderations": "/v1/moderations",
}


def rows() -> dict[str, list[str]]:
    text = PAGE.read_text(encoding="utf-8")
    return {name: [cell.strip() for cell in rest.split("|")] for name, rest in ROW.findall(text)}


def test_every_batch_api_has_its_row_and_every_row_its_server() -> None:
    documented = set(rows())
    assert documented == {provider.value for provider in BATCH_APIS}
    assert documented - {made().provider.value for made in SERVERS} == {Provider.GENERIC.value}, "OpenAI's"


def test_rows_name_the_paths_that_are_offered() -> None:
    prices = load_prices()
    for name, cells in rows().items():
        offer = prices.offer(name, Tier.BATCH)
        assert offer is not None, name
        words = rows()["openai"][1] if cells[1].startswith("as OpenAI") else cells[1]
        assert {WORDS[word] for word in re.findall(r"[a-z]+", words.replace("(translated)", ""))} == set(
            offer.endpoints
        ), name


def test_rows_say_whether_a_batch_price_is_shipped() -> None:
    priced = {provider for provider, _, price in load_prices().every() if price.batch is not None}
    assert {name for name, cells in rows().items() if cells[-1] != "your price file"} == priced
