import base64
import secrets
import uuid
from string import ascii_letters, ascii_lowercase, digits

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sasl.salts import KAFKAS_FORM, MAX_SALT_BYTES, SaltForm, form_of, new_salt, salt_in, salt_of


def test_salts_have_the_form_of_kafkas_tools() -> None:
    """A salt must not reveal whether kafka-configs.sh, the proxy or a fake made it."""
    salts = {new_salt() for _ in range(100)}
    assert len(salts) == 100
    assert all(20 <= len(salt) <= 26 and salt.isalnum() and salt.islower() for salt in salts)
    assert (salt_of(0), salt_of(35), salt_of(36), salt_of(1 << 130)) == (b"0", b"z", b"10", b"0")


@pytest.mark.parametrize(
    ("salt", "form"),
    [
        (salt_of((1 << 130) - 1), KAFKAS_FORM),
        (salt_of(1 << 120), KAFKAS_FORM),
        (b"0" + b"k" * 24, SaltForm("base 36", 25)),  # Kafka's are numbers
        (b"2" + b"k" * 25, SaltForm("base 36", 26)),  # 130 bits do not make it
        (b"k" * 27, SaltForm("base 36", 27)),
        (b"0123456789abcdef", SaltForm("hexadecimal", 16)),
        (b"0123456789ABCDEF", SaltForm("upper-case hexadecimal", 16)),
        (b"1zA" * 8, SaltForm("base 62", 24)),
        (b"1z/A" * 8, SaltForm("base 64", 32)),
        (base64.b64encode(bytes(16)), SaltForm("base 64, padded", 16)),
        (base64.b64encode(bytes(17)), SaltForm("base 64, padded", 17)),
        (b"AB==", SaltForm("ASCII", 4)),  # no encoder writes it
        (b"a=b=", SaltForm("ASCII", 4)),
        (b"=", SaltForm("ASCII", 1)),
        (str(uuid.UUID(int=7)).encode(), SaltForm("ASCII", 36)),
        (bytes(20), SaltForm("bytes", 20)),
        ("\u00e9".encode(), SaltForm("bytes", 2)),
        (bytes(MAX_SALT_BYTES + 1), SaltForm("bytes", MAX_SALT_BYTES)),
        (
            base64.b64encode(bytes(3 * MAX_SALT_BYTES + 1)),
            SaltForm("base 64, padded", MAX_SALT_BYTES),
        ),
    ],
)
def test_the_form_of_a_salt(salt: bytes, form: SaltForm) -> None:
    assert form_of(salt) == form


@given(number=st.integers(0, (1 << 256) - 1))
def test_what_kafka_makes_has_its_form(number: int) -> None:
    salt = salt_of(number)
    assert form_of(salt) == KAFKAS_FORM or len(salt) < 22
    assert salt_in(KAFKAS_FORM, number, b"") == salt


@pytest.mark.parametrize(
    ("salt", "letters"),
    [
        (b"f" * 64, "0123456789abcdef"),
        (b"F" * 64, "0123456789ABCDEF"),
        (b"z" * 64, digits + ascii_lowercase),
        (b"zZ" * 32, digits + ascii_letters),
        (b"/Z" * 32, digits + ascii_letters + "+/"),
        (b"- " * 32, "".join(map(chr, range(0x20, 0x7F)))),
        (b"\xff" * 64, "".join(map(chr, range(256)))),
    ],
    ids=["hex", "upper-case hex", "base 36", "base 62", "base 64", "ASCII", "bytes"],
)
def test_a_salt_in_a_form_has_its_letters_and_length(salt: bytes, letters: str) -> None:
    every = bytes(range(256))
    made = [salt_in(form_of(salt), 1, every[at : at + 64]) for at in range(0, 256, 64)]
    assert {len(one) for one in made} == {64}
    assert set(b"".join(made)) == set(letters.encode("latin-1"))


@given(size=st.integers(1, 100).filter(lambda size: size % 3))
def test_a_padded_salt_is_padded_alike(size: int) -> None:
    """Its last letter, too, is one of the few that an encoder writes."""
    salt = base64.b64encode(bytes(size))
    made = salt_in(form_of(salt), 1, secrets.token_bytes(size))
    assert form_of(made) == form_of(salt)
    assert len(made) == len(salt)
