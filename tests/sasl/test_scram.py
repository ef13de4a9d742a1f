"""SCRAM, and the salts of unknown users."""

import base64
import secrets
import sys
import uuid
from collections import Counter
from string import ascii_letters, ascii_lowercase, digits
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sasl.credentials import (
    DEFAULT_ITERATIONS,
    NO_USERS,
    ScramCredential,
    ScramMechanism,
    Shape,
    ShapeShares,
)
from sasl.identity import Identity
from sasl.login import ScramClient
from sasl.mechanism import Challenge, Failure, FailureReason, Success
from sasl.salts import KAFKAS_FORM, MAX_SALT_BYTES, SaltForm, form_of, new_salt, salt_in, salt_of
from sasl.scram import AUTHORIZATION_ID_DIFFERS, ScramServer, ScramServerExchange
from sasl.scram_messages import MAX_MESSAGE_BYTES, encode_base64
from tests.support.sasl import (
    BAD_CREDENTIALS,
    FAKE_SECRET,
    NOW,
    SHA_256,
    SHA_512,
    Users,
    alice,
    challenge,
    login,
    scram_exchange,
)

BAD_MESSAGE = Failure(reason=FailureReason.BAD_MESSAGE)

# RFC 7677 section 3; for SHA-512, which has no published example, Kafka 4.1's ScramFormatter on the
# same user, password, nonces and salt.
PUBLISHED = {
    SHA_256: (
        "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
    ),
    SHA_512: (
        "gMGXRcevScNtxZ6/8lQYpGtnsNAc3mGcmNomv+xnoOMw+3R2xNJdMNnzMlTN8PPC6wdp6dybEmDYXYTxwnYPJQ==",
        "ZQnYEgWQMFmmsM8aQMF0nDDCy/AgCzkwk8CmMZYcMg0vSVlKDanekLtifDSeVGT4+5ZxXnJq199RVG2rR7N7Zw==",
    ),
}
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"


class Pencil:
    """The one user of RFC 7677."""

    def find(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
        if user != "user":
            return None
        return ScramCredential.from_password(mechanism, "pencil", salt, 4096)

    def shape_shares(self, mechanism: ScramMechanism) -> ShapeShares:  # noqa: ARG002
        return NO_USERS


def good_messages() -> tuple[bytes, bytes]:
    """The two messages of alice that let her into `scram_exchange()`."""
    client = ScramClient(mechanism=SHA_256, username="alice", password="secret", nonce="client")
    first = client.first()
    return first, client.final(challenge(scram_exchange().step(first, NOW)))


GOOD_FIRST, GOOD_FINAL = good_messages()


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_published_exchange(mechanism: ScramMechanism) -> None:
    exchange = ScramServer(
        mechanism=mechanism,
        credentials=Pencil(),
        fake_secret=FAKE_SECRET,
        server_nonce=lambda: SERVER_NONCE,
    ).exchange()
    client = ScramClient(
        mechanism=mechanism, username="user", password="pencil", nonce=CLIENT_NONCE
    )
    proof, verifier = PUBLISHED[mechanism]
    assert client.first() == f"n,,n=user,r={CLIENT_NONCE}".encode()
    server_first = challenge(exchange.step(client.first(), NOW))
    nonce = CLIENT_NONCE + SERVER_NONCE
    assert server_first == f"r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
    client_final = client.final(server_first)
    assert client_final == f"c=biws,r={nonce},p={proof}".encode()
    success = exchange.step(client_final, NOW)
    assert success == Success(
        data=f"v={verifier}".encode(), identity=Identity("User:user"), credential_deadline=None
    )
    client.verify(f"v={verifier}".encode())


@given(user=st.text(min_size=1, max_size=8), password=st.text(max_size=8))
@settings(max_examples=30, deadline=None)
def test_any_user_and_password_go_round(user: str, password: str) -> None:
    """Commas, equals signs and every script: the escapes and UTF-8 lose nothing."""
    user = user.replace("\0", "0")
    users = Users()
    users.add(user, password, SHA_256)
    assert isinstance(login(scram_exchange(users), user, password), Success)
    assert login(scram_exchange(users), user, password + "x") == BAD_CREDENTIALS


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n,,",
        b"y,,n=alice,r=client",
        b"p=tls-server-end-point,,n=alice,r=client",
        b"n,n=alice,r=client",
        b"n,a=,n=alice,r=client",
        b"n,,n=,r=client",
        b"n,,n=alice,r=",
        b"n,,n=alice",
        b"n,,r=client,n=alice",
        b"n,,n=a=2cb,r=client",
        b"n,,n=a=3db,r=client",
        b"n,,n=a=41b,r=client",
        b"n,,n=alice=,r=client",
        b"n,,n=alice\0,r=client",
        b"n,,n=alice,r=cli ent",
        b"n,,n=alice,r=client,",
        b"n,,n=alice,r=client,x",
        b"n,,n=alice,r=client,x=",
        b"n,,n=alice,r=client,1=x",
        b"n,,n=alice,r=client\n",
        b"n,,n=\xff\xfe,r=client",
        b"n,,m=x,n=alice,r=client",
        b"n,,n=alice,r=client,m=x",
        b"n,,n=alice,r=" + b"c" * MAX_MESSAGE_BYTES,
    ],
)
def test_bad_first_messages_end_the_exchange(first: bytes) -> None:
    assert scram_exchange().step(first, NOW) == BAD_MESSAGE


@pytest.mark.parametrize(
    ("first", "gs2_header"),
    [
        (b"n,a=alice,n=alice,r=client", b"n,a=alice,"),
        (b"n,,n=alice,r=client,x=1,yy=2=3,x=4", b"n,,"),
        (b"n,,n=alice,r=client,tokenauth=false", b"n,,"),
    ],
)
def test_first_messages_that_kafka_accepts(first: bytes, gs2_header: bytes) -> None:
    """An authorization id equal to the name, and extensions that nobody knows."""
    exchange = scram_exchange()
    server_first = challenge(exchange.step(first, NOW))
    final = signed_final(first, server_first, gs2_header)
    assert isinstance(exchange.step(final, NOW), Success)


def signed_final(first: bytes, server_first: bytes, gs2_header: bytes) -> bytes:
    """A last message whose proof is right for whatever the first one was."""
    credential = alice().find("alice", SHA_256)
    assert credential is not None
    salted = SHA_256.salted_password("secret", credential.salt, credential.iterations)
    client_key = SHA_256.hmac(salted, b"Client Key")
    nonce = server_first.split(b",")[0]
    without_proof = b"c=" + base64.b64encode(gs2_header) + b"," + nonce
    bare = first[first.index(b"n=", 2) :]
    signature = SHA_256.hmac(
        SHA_256.hash(client_key), b",".join([bare, server_first, without_proof])
    )
    proof = bytes(left ^ right for left, right in zip(client_key, signature, strict=True))
    return without_proof + b",p=" + base64.b64encode(proof)


@pytest.mark.parametrize("user", [b"alice", b"nobody"])
def test_another_authorization_id_fails_at_once(user: bytes) -> None:
    """Whether or not the user exists: the answer must not depend on it."""
    assert scram_exchange().step(b"n,a=bob,n=" + user + b",r=client", NOW) == Failure(
        reason=FailureReason.BAD_CREDENTIALS, message=AUTHORIZATION_ID_DIFFERS
    )


@pytest.mark.parametrize("extensions", [b"tokenauth=true", b"x=1,tokenauth=TRUE,tokenauth=no"])
def test_delegation_tokens_are_refused(extensions: bytes) -> None:
    """Their names are no users': the same bytes must never be looked up as a password login."""
    first = b"n,,n=alice,r=client," + extensions
    assert scram_exchange().step(first, NOW) == BAD_CREDENTIALS


def test_the_gs2_header_is_part_of_the_proof() -> None:
    """A middleman who adds or drops the authorization id is noticed (RFC 5802 section 6)."""
    exchange = scram_exchange()
    first = b"n,a=alice,n=alice,r=client"
    server_first = challenge(exchange.step(first, NOW))
    assert exchange.step(signed_final(first, server_first, b"n,,"), NOW) == BAD_MESSAGE


def bent(old: bytes, new: bytes) -> bytes:
    assert old in GOOD_FINAL
    return GOOD_FINAL.replace(old, new)


@pytest.mark.parametrize(
    ("final", "failure"),
    [
        (b"", BAD_MESSAGE),
        (GOOD_FIRST, BAD_MESSAGE),
        (bent(b"clientserver", b"client"), BAD_MESSAGE),
        (bent(b"clientserver", b"clientservers"), BAD_MESSAGE),
        (bent(b"biws", b"eSws"), BAD_MESSAGE),
        (bent(b"c=biws,", b""), BAD_MESSAGE),
        (bent(b",p=", b",x=1,p="), BAD_MESSAGE),
        (GOOD_FINAL + b",x=1", BAD_MESSAGE),
        (GOOD_FINAL + b"\n", BAD_MESSAGE),
        (GOOD_FINAL[:-1], BAD_MESSAGE),
        (GOOD_FINAL[: GOOD_FINAL.index(b",p=")], BAD_MESSAGE),
        (GOOD_FINAL[: GOOD_FINAL.index(b",p=")] + b",p=AAAA", BAD_MESSAGE),
        (GOOD_FINAL[: GOOD_FINAL.index(b",p=")] + b",p=" + b"A" * 43 + b"=", BAD_CREDENTIALS),
        (GOOD_FINAL[: GOOD_FINAL.index(b",p=")] + b",p=" + b"A" * 42 + b"B=", BAD_MESSAGE),
    ],
)
def test_bad_last_messages(final: bytes, failure: Failure) -> None:
    exchange = scram_exchange()
    challenge(exchange.step(GOOD_FIRST, NOW))
    assert exchange.step(final, NOW) == failure


def test_a_proof_is_good_for_one_exchange() -> None:
    """Replaying an overheard login meets another server nonce."""
    exchange = ScramServer(
        mechanism=SHA_256, credentials=alice(), fake_secret=FAKE_SECRET
    ).exchange()
    finished = scram_exchange()
    for one in (exchange, finished):
        challenge(one.step(GOOD_FIRST, NOW))
    assert exchange.step(GOOD_FINAL, NOW) == BAD_MESSAGE
    assert isinstance(finished.step(GOOD_FINAL, NOW), Success)
    assert finished.step(GOOD_FINAL, NOW) == Failure(reason=FailureReason.ILLEGAL_STATE)


def test_credentials_belong_to_one_mechanism() -> None:
    users = Users()
    users.add("alice", "secret", SHA_256)
    step = login(scram_exchange(users, SHA_512), mechanism=SHA_512)
    assert step == BAD_CREDENTIALS


@pytest.mark.parametrize(
    "arguments", [{"fake_secret": b"short"}, {"fake_secret": FAKE_SECRET, "fake_iterations": 1}]
)
def test_a_weak_configuration_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="fake_"):
        ScramServer(mechanism=SHA_256, credentials=Users(), **arguments)


@given(messages=st.lists(st.binary(max_size=60) | st.sampled_from([GOOD_FIRST]), max_size=4))
def test_arbitrary_bytes_never_raise_and_never_succeed(messages: list[bytes]) -> None:
    exchange = scram_exchange()
    for message in messages:
        assert isinstance(exchange.step(message, NOW), Challenge | Failure)


@given(
    which=st.integers(0, 1), position=st.integers(0, 8 * max(len(GOOD_FIRST), len(GOOD_FINAL)) - 1)
)
def test_no_flipped_bit_lets_in(which: int, position: int) -> None:
    """Every bit of both messages is covered by the grammar or by the proof."""
    pair = [bytearray(GOOD_FIRST), bytearray(GOOD_FINAL)]
    position %= 8 * len(pair[which])
    pair[which][position // 8] ^= 1 << position % 8
    exchange = scram_exchange()
    exchange.step(bytes(pair[0]), NOW)
    assert isinstance(exchange.step(bytes(pair[1]), NOW), Failure)


@pytest.mark.parametrize(
    ("identity", "password", "expected"),
    [
        (Identity("User:ALICE", ["Group:g"]), "secret", Identity("User:ALICE", ["Group:g"])),
        (Identity("User:ALICE", ["Group:g"]), "wrong", FailureReason.BAD_CREDENTIALS),
        (None, "secret", FailureReason.NO_PRINCIPAL),
        (None, "wrong", FailureReason.BAD_CREDENTIALS),
    ],
)
def test_a_user_has_the_name_that_the_rules_make(
    identity: Identity | None, password: str, expected: Identity | FailureReason
) -> None:
    """Without one, it cannot log in; whether the password is right is not said before."""
    exchange = ScramServer(
        mechanism=SHA_256,
        credentials=alice(),
        fake_secret=FAKE_SECRET,
        server_nonce=lambda: "server",
        identity_of=lambda _user: identity,
    ).exchange()
    step = login(exchange, password=password)
    assert isinstance(step, Success | Failure)
    assert (step.identity if isinstance(step, Success) else step.reason) == expected


KAFKAS = b"12kq0by7717kdnjjcz7dzgzo2n"
"""A salt as Kafka's tools make it."""


class TestNobodyCanFindOutWhoExists:
    def test_unknown_user_and_wrong_password_get_the_same_answers(self) -> None:
        unknown = login(scram_exchange(), user="nobody")
        wrong = login(scram_exchange(), password="wrong")
        assert unknown == wrong == BAD_CREDENTIALS

    def test_an_unknown_user_always_sees_the_same_salt(self) -> None:
        """A salt that changes from attempt to attempt, or from worker to worker, is a fake."""
        first = b"n,,n=nobody,r=client"
        assert scram_exchange().step(first, NOW) == scram_exchange().step(first, NOW)

    def test_salts_differ_by_user_mechanism_and_deployment(self) -> None:
        """As real ones do: a salt seen twice would be a fake."""
        seen = set()
        for secret in (FAKE_SECRET, FAKE_SECRET[::-1]):
            for mechanism in ScramMechanism:
                server = ScramServer(mechanism=mechanism, credentials=Users(), fake_secret=secret)
                for user in (b"nobody", b"noone"):
                    step = server.exchange().step(b"n,,n=" + user + b",r=client", NOW)
                    seen.add(challenge(step).split(b",")[1])
        assert len(seen) == 8

    def test_one_more_user_changes_few_unknown_users(self) -> None:
        """A client that asks daily sees real users change as seldom."""
        users = Users()
        for number in range(100):
            users.put(f"user{number}", SHA_256, (4096, 8192)[number % 2])
        before = [iterations_shown(users, f"unknown{number}") for number in range(1000)]
        users.put("another", SHA_256, 8192)
        after = [iterations_shown(users, f"unknown{number}") for number in range(1000)]
        assert sum(one != two for one, two in zip(before, after, strict=True)) < 20

    def test_even_the_fakes_own_key_does_not_let_in(self) -> None:
        """An attacker with the secret can find out who exists, but not log in."""
        server = ScramServer(
            mechanism=SHA_256,
            credentials=Users(),
            fake_secret=FAKE_SECRET,
            server_nonce=lambda: "server",
        )
        exchange = server.exchange()
        challenge(exchange.step(b"n,,n=nobody,r=client", NOW))
        proof = encode_base64(server._fake_key)
        final = f"c=biws,r=clientserver,p={proof}".encode()
        assert exchange.step(final, NOW) == BAD_CREDENTIALS

    @pytest.mark.parametrize("mechanism", ScramMechanism)
    @pytest.mark.parametrize("salts", [[KAFKAS], [KAFKAS, bytes(64)], [b"salt", bytes(20)]])
    def test_the_same_hashing_work_is_done(
        self, mechanism: ScramMechanism, salts: list[bytes]
    ) -> None:
        """Time is not measured but counted: every call into the hashing library."""
        users = Users()
        for number, salt in enumerate(salts):
            users.put(f"user{number}", mechanism, 4096, salt)
        names = ["user0", *(f"unknown{number}" for number in range(20))]
        work = [hash_calls(scram_exchange(users, mechanism), name, mechanism) for name in names]
        assert all(one == work[0] for one in work)
        assert work[0].total() >= 4


class TestSaltsHaveTheFormsOfTheUsers:
    def test_one_user_of_another_tool_is_not_alone_with_its_form(self) -> None:
        """librdkafka makes 64 random bytes, which nothing else here looks like."""
        users = Users()
        users.put("dave", SHA_256, 4096, secrets.token_bytes(64))
        salts = {salt_shown(users, name) for name in ("dave", "erin", "frank", "grace")}
        assert {form_of(salt) for salt in salts} == {SaltForm("bytes", 64)}
        assert len(salts) == 4
        assert form_of(salt_shown(users, "dave", SHA_512)) == KAFKAS_FORM

    def test_a_form_and_iterations_are_drawn_together(self) -> None:
        """A pair that no user has would be a fake."""
        users = Users()
        for number in range(100):
            if number < 60:
                users.put(f"user{number}", SHA_256, 4096, KAFKAS)
            elif number < 90:
                users.put(f"user{number}", SHA_256, 8192, secrets.token_bytes(64))
            else:
                users.put(f"user{number}", SHA_256, 4096, secrets.token_hex(16).encode())
        users.put("other", SHA_512, 5000)
        shown = Counter(shape_shown(users, f"unknown{number}") for number in range(2000))
        shares = {
            Shape(4096, KAFKAS_FORM): 0.6,
            Shape(8192, SaltForm("bytes", 64)): 0.3,
            Shape(4096, SaltForm("hexadecimal", 32)): 0.1,
        }
        assert shown.keys() == shares.keys()
        assert all(abs(shown[shape] / 2000 - share) < 0.04 for shape, share in shares.items())

    def test_a_salt_of_kafkas_form_is_what_it_was(self) -> None:
        """A release with different ones would reveal who exists."""
        assert salt_shown(Users(), "nobody") == KAFKAS
        assert iterations_shown(Users(), "nobody") == DEFAULT_ITERATIONS
        assert salt_shown(Users(), "nobody", SHA_512) == b"1ac9st3owfoqync4tfogmizv0"

    def test_another_form_some_day_shows_no_part_of_the_salt_before(self) -> None:
        """A user with a new password has a salt of which nothing is left."""
        shown = []
        for salt in (bytes(16), bytes(64), b"f" * 32, b"F" * 32):
            users = Users()
            users.put("dave", SHA_256, 4096, salt)
            shown.append(salt_shown(users, "nobody").upper()[:8])
            assert salt_shown(users, "nobody") == salt_shown(users, "nobody")
        assert len(set(shown)) == 4


def shape_shown(users: Users, user: str) -> Shape:
    return Shape(iterations_shown(users, user), form_of(salt_shown(users, user)))


def salt_shown(users: Users, user: str, mechanism: ScramMechanism = SHA_256) -> bytes:
    step = scram_exchange(users, mechanism).step(f"n,,n={user},r=client".encode(), NOW)
    return base64.b64decode(challenge(step).split(b",")[1].removeprefix(b"s="))


def iterations_shown(users: Users, user: str) -> int:
    step = scram_exchange(users).step(f"n,,n={user},r=client".encode(), NOW)
    return int(challenge(step).split(b",i=")[1])


SALTS = st.sampled_from([b"salt", KAFKAS, bytes(16), bytes(64)])


@given(
    users=st.lists(st.tuples(st.integers(4096, 4100), SALTS), max_size=30),
    fractions=st.lists(st.floats(0, 1, exclude_max=True), max_size=10),
)
def test_a_drawn_shape_is_one_in_use(
    users: list[tuple[int, bytes]], fractions: list[float]
) -> None:
    known = Users()
    for number, (iterations, salt) in enumerate(users):
        known.put(f"user{number}", SHA_256, iterations, salt)
    shares, shapes = known.shape_shares(SHA_256), sorted(Shape(i, form_of(s)) for i, s in users)
    nobody = Shape(1)
    for fraction in fractions:
        drawn = shares.draw(fraction, otherwise=nobody)
        assert drawn == (shapes[int(fraction * len(shapes))] if shapes else nobody)


def hash_calls(exchange: ScramServerExchange, user: str, mechanism: ScramMechanism) -> Counter[str]:
    """The calls of C functions of hashlib and hmac while the server refuses a bad proof."""
    calls: Counter[str] = Counter()

    def count(_frame: FrameType, event: str, function: Any) -> None:
        owner = type(getattr(function, "__self__", None)).__module__
        if event == "c_call" and "hashlib" in f"{getattr(function, '__module__', '')} {owner}":
            calls[function.__name__] += 1

    proof = encode_base64(bytes(mechanism.key_bytes))
    sys.setprofile(count)
    try:
        exchange.step(f"n,,n={user},r=client".encode(), NOW)
        step = exchange.step(f"c=biws,r=clientserver,p={proof}".encode(), NOW)
    finally:
        sys.setprofile(None)
    assert step == BAD_CREDENTIALS
    return calls


#


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
