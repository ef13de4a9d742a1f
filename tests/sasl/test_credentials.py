import base64

import pytest

from sasl.credentials import (
    MIN_ITERATIONS,
    ScramCredential,
    ScramMechanism,
)

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")

# Kafka 4.1: ScramFormatter.storedKey(clientKey(…)) and serverKey(…) of "pencil", 4096 iterations.
KAFKA_KEYS = {
    ScramMechanism.SCRAM_SHA_256: (
        "WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=",
        "wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=",
    ),
    ScramMechanism.SCRAM_SHA_512: (
        "6AAub3065EYRmyFpM2RNwqK+eGnrkYuEWbXn19LsEmBqzu8QaCXNc1FwpnX9NhH2hK/60dzj9DoO5DvVkOHbvg==",
        "jZHbYjC1aHh0/hKbxyBuGFjDrgjgKTT1esA7awWiKcRZ0o/0b1yWEebBeSVkkCFewf91nLDfKF24mvD5nmE6rA==",
    ),
}


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_verifiers_are_those_that_kafka_derives(mechanism: ScramMechanism) -> None:
    credential = ScramCredential.from_password(mechanism, "pencil", SALT, 4096)
    stored_key, server_key = map(base64.b64decode, KAFKA_KEYS[mechanism])
    assert credential == ScramCredential(
        salt=SALT, stored_key=stored_key, server_key=server_key, iterations=4096
    )
    assert len(stored_key) == mechanism.key_bytes


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
