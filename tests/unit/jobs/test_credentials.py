"""A caller's credential is kept sealed, for its account only."""

from __future__ import annotations

import secrets

import pytest

from proxy.core.upstream import Secret
from proxy.jobs.credentials import open_credential, seal_credential
from proxy.jobs.sealing import PlainVault, SealError, SecretVault

FIELDS = (("Authorization", "Bearer sk-öne"), ("OpenAI-Project", "p"))


def test_a_credential_comes_back_as_it_was() -> None:
    vault = SecretVault([Secret(secrets.token_urlsafe(32))])
    blob = seal_credential(vault, "account-a", FIELDS)
    assert b"sk-" not in blob
    assert open_credential(vault, "account-a", blob) == FIELDS


def test_a_credential_of_one_account_does_not_open_for_another() -> None:
    vault = SecretVault([Secret(secrets.token_urlsafe(32))])
    with pytest.raises(SealError):
        open_credential(vault, "account-b", seal_credential(vault, "account-a", FIELDS))


def test_what_is_no_credential_is_refused_without_being_quoted() -> None:
    with pytest.raises(SealError) as refused:
        open_credential(PlainVault(), "a", PlainVault().seal(b"sk-secret", "x"))
    assert "sk-secret" not in str(refused.value)
