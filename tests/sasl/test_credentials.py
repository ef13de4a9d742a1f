import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sasl.credentials import (
    MAX_STORED_ITERATIONS,
    MIN_ITERATIONS,
    NoVerifier,
    ScramCredential,
    ScramMechanism,
    read_verifier,
    verifier_text,
)

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")


# Kafka 4.1: ScramFormatter.storedKey(clientKey(…)) and serverKey(…) of "pencil", 4096 iterations.
@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_a_salted_password_gives_the_same_verifier(mechanism: ScramMechanism) -> None:
    """AlterUserScramCredentials carries the salted password, `users add` knows the password."""
    salted = mechanism.salted_password("pencil", SALT, 4096)
    assert ScramCredential.from_salted_password(
        mechanism, salted, SALT, 4096
    ) == ScramCredential.from_password(mechanism, "pencil", SALT, 4096)


def test_mechanism_codes_are_kafkas() -> None:
    """KIP-554 numbers them on the wire."""
    assert [mechanism.code for mechanism in ScramMechanism] == [1, 2]
    assert [ScramMechanism.from_code(code) for code in (0, 1, 2, 3)] == [
        None,
        ScramMechanism.SCRAM_SHA_256,
        ScramMechanism.SCRAM_SHA_512,
        None,
    ]


def test_passwords_are_not_normalized() -> None:
    """Kafka applies no SASLprep: two spellings of the same letters are two passwords."""
    mechanism = ScramMechanism.SCRAM_SHA_256
    composed = ScramCredential.from_password(mechanism, "\u00e9", SALT, 4096)
    decomposed = ScramCredential.from_password(mechanism, "e\u0301", SALT, 4096)
    assert composed.stored_key != decomposed.stored_key


def test_keys_do_not_show_in_a_repr() -> None:
    """A verifier in a log could be guessed against offline."""
    credential = ScramCredential(
        salt=SALT, stored_key=b"stored" * 6, server_key=b"server" * 6, iterations=4096
    )
    assert "stored" not in repr(credential).replace("stored_key", "")
    assert "server" not in repr(credential).replace("server_key", "")


@pytest.mark.parametrize(
    ("salt", "stored_key", "server_key", "iterations"),
    [
        (SALT, b"k" * 32, b"k" * 32, MIN_ITERATIONS - 1),
        (b"", b"k" * 32, b"k" * 32, MIN_ITERATIONS),
        (SALT, b"", b"", MIN_ITERATIONS),
        (SALT, b"k" * 32, b"k" * 64, MIN_ITERATIONS),
    ],
)
def test_weak_or_broken_verifiers_cannot_be_built(
    salt: bytes, stored_key: bytes, server_key: bytes, iterations: int
) -> None:
    """An empty stored key would let anybody in who hashes to nothing."""
    with pytest.raises(ValueError, match=r"iterations|salt|key"):
        ScramCredential(
            salt=salt, stored_key=stored_key, server_key=server_key, iterations=iterations
        )


KAFKAS = {
    ScramMechanism.SCRAM_SHA_256: (
        "salt=YWJjMTIzc2FsdA==,stored_key=X5Fs0DCfPthDDPNZI3jk07DK8w2Z0GYerQAk9md20Ow=,"
        "server_key=Aoi0Cz69WVVXivRlsX+hgkH4Y6ij/ZQwLYYQu8q1XJM=,iterations=4096"
    ),
    ScramMechanism.SCRAM_SHA_512: (
        "salt=YWJjMTIzc2FsdA==,stored_key=mOh6POXIm09M1eFakzV7l4ymCbEIN9dnEMhMnGpidq4hBlULkBFbDTbr/"
        "xdN/CEwlFcP3sBMzO2rXVoQv0e5Gg==,server_key=YVMMOKduaIHAdznUyjsWUxccIuKBRkNCsnL1by+kLrUbULa"
        "pbP+oNyTpmd7Nk6XUiL6Oxik13pO6R3pRUzro/g==,iterations=4096"
    ),
}
"""What `ScramCredentialUtils.credentialToString` of Kafka 4.1 makes of `pässword`."""

SHA_256 = ScramMechanism.SCRAM_SHA_256
RIGHT = KAFKAS[SHA_256]


@pytest.mark.parametrize("mechanism", list(KAFKAS), ids=lambda mechanism: mechanism.value)
def test_what_kafka_kept_fits_the_password(mechanism: ScramMechanism) -> None:
    verifier = read_verifier(mechanism, KAFKAS[mechanism])
    assert verifier == ScramCredential.from_password(mechanism, "pässword", b"abc123salt", 4096)
    assert verifier_text(verifier) == KAFKAS[mechanism]


@given(
    salt=st.binary(min_size=1, max_size=64),
    keys=st.binary(min_size=64, max_size=64),
    iterations=st.integers(MIN_ITERATIONS, MAX_STORED_ITERATIONS),
)
def test_what_is_written_is_read(salt: bytes, keys: bytes, iterations: int) -> None:
    verifier = ScramCredential(
        salt=salt, stored_key=keys[:32], server_key=keys[32:], iterations=iterations
    )
    assert read_verifier(SHA_256, verifier_text(verifier)) == verifier


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "must be salt="),
        ("secret", "must be salt="),
        (RIGHT + ",", "must be salt="),
        (RIGHT + "\n", "must be salt="),
        (RIGHT.replace("stored_key", "storedKey"), "must be salt="),
        (RIGHT.replace("4096", "-4096"), "must be salt="),
        (RIGHT.replace("4096", "٤٠٩٦"), "must be salt="),
        (RIGHT.replace("4096", "4095"), "iterations must be at least 4096"),
        (RIGHT.replace("4096", "2147483648"), "iterations must be at most 2147483647"),
        (RIGHT.replace("4096", "99999999999"), "must be salt="),
        (RIGHT.replace("YWJjMTIzc2FsdA==", "YWJj*TIzc2FsdA=="), "must be base64"),
        (RIGHT.replace("YWJjMTIzc2FsdA==", "YWJjMTIzc2FsdA="), "must be base64"),
        (RIGHT.replace("Aoi0Cz69WVVX", ""), "have 32 bytes"),
        (KAFKAS[ScramMechanism.SCRAM_SHA_512], "have 32 bytes"),
    ],
)
def test_what_is_none_is_refused_without_repeating_it(text: str, why: str) -> None:
    with pytest.raises(NoVerifier, match=why) as refused:
        read_verifier(SHA_256, text)
    assert "X5Fs0DCfPthDDPNZI3jk07DK8w2Z0GYerQAk9md20Ow" not in str(refused.value)
    assert "secret" not in str(refused.value)
