from __future__ import annotations

from proxy.core.upstream import Secret, Upstream
from proxy.lanes.batch.identity import Identity, has_credentials, identity_of

SALT = b"s" * 32
OWN = Upstream("openai", "https://api.example/v1", api_key=Secret("sk-own"))
PASSING = Upstream("openai", "https://api.example/v1")


def who(*fields: tuple[bytes, bytes]) -> Identity:
    return identity_of([(name.lower(), name, value) for name, value in fields])


ALICE = who((b"Authorization", b"Bearer sk-alice"))


def test_the_same_credentials_are_the_same_owner_in_any_order_and_spelling() -> None:
    two = (b"authorization", b"Bearer sk-alice"), (b"OpenAI-Organization", b"org-1")
    assert who(*two).owner(SALT) == who(*reversed(two)).owner(SALT)
    assert ALICE.owner(SALT) == who((b"AUTHORIZATION", b"Bearer sk-alice"), (b"X-Other", b"y")).owner(SALT)


def test_other_credentials_are_another_owner() -> None:
    owners = {
        ALICE.owner(SALT),
        who((b"Authorization", b"Bearer sk-bob")).owner(SALT),
        who((b"Authorization", b"Bearer sk-alice"), (b"OpenAI-Project", b"p")).owner(SALT),
        who((b"api-key", b"Bearer sk-alice")).owner(SALT),
        who().owner(SALT),
        ALICE.owner(b"t" * 32),
    }
    assert len(owners) == 6


def test_cookies_count_only_where_nothing_else_does() -> None:
    cookie = (b"Cookie", b"__cf_bm=1")
    assert who((b"Authorization", b"Bearer sk-alice"), cookie).owner(SALT) == ALICE.owner(SALT)
    assert who(cookie).owner(SALT) != who((b"Cookie", b"__cf_bm=2")).owner(SALT)
    assert not who(cookie).is_anonymous


def test_an_upstream_with_a_key_pays_itself() -> None:
    bob = who((b"Authorization", b"Bearer sk-bob"))
    assert ALICE.account(SALT, OWN) == bob.account(SALT, OWN)
    assert ALICE.account(SALT, PASSING) != bob.account(SALT, PASSING)


def test_nothing_secret_shows() -> None:
    assert "alice" not in repr(ALICE)
    assert ALICE.credential == (("authorization", "Bearer sk-alice"),)


def test_names_that_carry_credentials_are_known() -> None:
    assert has_credentials(["accept", "x-api-key"])
    assert not has_credentials(["accept", "user-agent"])
