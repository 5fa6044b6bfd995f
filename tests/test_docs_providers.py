"""Every batch API is documented, priced or said not to be, and tested against a server of its dialect.

So is every provider whose callers Weir serves itself.
"""

from __future__ import annotations

import re
from pathlib import Path

from proxy.core.price import Tier
from proxy.core.upstream import Provider
from proxy.policy.batch_api import SERVED_BY_DEFAULT
from proxy.upstream.providers.batch_apis import BATCH_APIS
from proxy.upstream.providers.prices import load_prices
from tests.contract.batch_apis.test_served import SERVED
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


def rows(section: str = "Batch APIs") -> dict[str, list[str]]:
    """Return the rows of a section's table: the name of a provider, and the other cells."""
    text = PAGE.read_text(encoding="utf-8").split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
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


def test_every_provider_that_is_served_has_its_row_and_every_row_its_test() -> None:
    served = rows("Served by Weir")
    by_default = {provider.value for provider in SERVED_BY_DEFAULT}
    assert {name for name, cells in served.items() if cells[0] == "by default"} == by_default
    assert {case.provider: case.is_default for case in SERVED} == {
        name: name in by_default for name in served
    }
    assert {case.provider for case in SERVED if case.priority is not None} == {
        name for name, cells in served.items() if "`priority`" in cells[1]
    }
