"""A verifier as text: Kafka's own form, read and written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sasl.credentials import MIN_ITERATIONS, ScramCredential, ScramMechanism
from sasl.verifiers import MAX_ITERATIONS, NoVerifier, read, written

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
    verifier = read(mechanism, KAFKAS[mechanism])
    assert verifier == ScramCredential.from_password(mechanism, "pässword", b"abc123salt", 4096)
    assert written(verifier) == KAFKAS[mechanism]


@given(
    salt=st.binary(min_size=1, max_size=64),
    keys=st.binary(min_size=64, max_size=64),
    iterations=st.integers(MIN_ITERATIONS, MAX_ITERATIONS),
)
def test_what_is_written_is_read(salt: bytes, keys: bytes, iterations: int) -> None:
    verifier = ScramCredential(
        salt=salt, stored_key=keys[:32], server_key=keys[32:], iterations=iterations
    )
    assert read(SHA_256, written(verifier)) == verifier


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
        read(SHA_256, text)
    assert "X5Fs0DCfPthDDPNZI3jk07DK8w2Z0GYerQAk9md20Ow" not in str(refused.value)
    assert "secret" not in str(refused.value)
