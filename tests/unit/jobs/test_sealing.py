"""What is encrypted stays unreadable, and says clearly why it does not open."""

from __future__ import annotations

import pytest

from proxy.core.upstream import Secret
from proxy.jobs.sealing import PlainVault, SealError, SecretVault, fingerprint, vault_from

KEY = "k" * 40
OTHER = "o" * 40


def vault(*keys: str) -> SecretVault:
    return SecretVault([Secret(key) for key in keys])


def test_what_was_sealed_opens_and_cannot_be_read() -> None:
    blob = vault(KEY).seal(b"Bearer very-secret", "account")
    assert b"secret" not in blob
    assert vault(KEY).open(blob, "account") == b"Bearer very-secret"


def test_the_same_twice_is_not_the_same_blob() -> None:
    one = vault(KEY)
    assert one.seal(b"x", "a") != one.seal(b"x", "a")


def test_a_blob_opens_for_its_own_record_only() -> None:
    blob = vault(KEY).seal(b"x", "job-1")
    with pytest.raises(SealError, match="another record"):
        vault(KEY).open(blob, "job-2")


@pytest.mark.parametrize("position", [0, 3, 9, 20, -1])
def test_a_changed_blob_does_not_open(position: int) -> None:
    blob = bytearray(vault(KEY).seal(b"some plain text", "a"))
    blob[position] ^= 0x55
    with pytest.raises(SealError):
        vault(KEY).open(bytes(blob), "a")


@pytest.mark.parametrize("blob", [b"", b"\x01", b"\x02abc", b"\x01" + bytes(10)])
def test_nonsense_does_not_open(blob: bytes) -> None:
    with pytest.raises(SealError):
        vault(KEY).open(blob, "a")


def test_another_key_says_what_to_do() -> None:
    blob = vault(KEY).seal(b"x", "a")
    with pytest.raises(SealError, match="another WEIR_SECRET_KEY"):
        vault(OTHER).open(blob, "a")


def test_a_key_can_be_replaced() -> None:
    blob = vault(KEY).seal(b"x", "a")
    both = vault(OTHER, KEY)
    assert both.open(blob, "a") == b"x"
    assert vault(OTHER).open(both.seal(b"y", "a"), "a") == b"y"


def test_what_was_kept_in_the_clear_opens_when_there_is_a_key() -> None:
    blob = PlainVault().seal(b"x", "a")
    assert PlainVault().open(blob, "a") == b"x"
    assert vault(KEY).open(blob, "a") == b"x"


def test_without_a_key_the_sealed_says_which_is_missing() -> None:
    with pytest.raises(SealError, match="WEIR_SECRET_KEY is set"):
        PlainVault().open(vault(KEY).seal(b"x", "a"), "a")


def test_keys_that_can_be_guessed_are_refused_without_being_shown() -> None:
    with pytest.raises(SealError, match="shorter than 32") as caught:
        vault("hunter2-hunter2")
    assert "hunter2" not in str(caught.value)
    with pytest.raises(SealError):
        vault()


def test_the_environment_names_the_keys() -> None:
    assert vault_from(None) is None
    assert vault_from("  ") is None
    found = vault_from(f"{OTHER}, {KEY}")
    assert found is not None
    assert found.open(vault(KEY).seal(b"x", "a"), "a") == b"x"
    assert KEY not in repr(found)


def test_fingerprints_tell_equal_from_different_and_nothing_else() -> None:
    salt = b"s" * 32
    one = fingerprint(salt, b"Bearer a", b"POST")
    assert one == fingerprint(salt, b"Bearer a", b"POST")
    assert one != fingerprint(salt, b"Bearer aP", b"OST")
    assert one != fingerprint(b"t" * 32, b"Bearer a", b"POST")
    assert len(one) == 64
