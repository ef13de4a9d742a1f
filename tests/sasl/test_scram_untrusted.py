"""What somebody learns of the users who is none of them: nothing, not even who exists."""

import base64
import secrets
import sys
from collections import Counter
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sasl.credentials import DEFAULT_ITERATIONS, ScramMechanism, Shape
from sasl.salts import KAFKAS_FORM, SaltForm, form_of
from sasl.scram import ScramServer, ScramServerExchange
from sasl.scram_messages import encode_base64
from tests.sasl.given import FAKE_SECRET, NOW, Users, scram_exchange
from tests.sasl.scram_given import BAD_CREDENTIALS, SHA_256, SHA_512, challenge, login

KAFKAS = b"12kq0by7717kdnjjcz7dzgzo2n"
"""A salt as Kafka's tools make it."""


class TestStrangersCannotAskWhoExists:
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

    def test_without_users_the_fake_has_default_iterations_and_kafkas_salt_form(self) -> None:
        step = scram_exchange(Users()).step(b"n,,n=nobody,r=client", NOW)
        _, salt, iterations = challenge(step).split(b",")
        assert iterations == b"i=%d" % DEFAULT_ITERATIONS
        decoded = base64.b64decode(salt.removeprefix(b"s="))
        assert decoded.isalnum()
        assert 20 <= len(decoded) <= 26

    def test_their_iterations_are_distributed_like_the_users(self) -> None:
        """Users of different years have different counts: none of them must mark who exists."""
        iterations = [4096] * 60 + [8192] * 30 + [16384] * 10
        users = Users()
        for number, count in enumerate(iterations):
            users.put(f"user{number}", SHA_256, count)
        users.put("other", SHA_512, 5000)
        shown = Counter(iterations_shown(users, f"stranger{number}") for number in range(2000))
        assert shown.keys() == {4096, 8192, 16384}
        for count, share in ((4096, 0.6), (8192, 0.3), (16384, 0.1)):
            assert abs(shown[count] / 2000 - share) < 0.04
        assert iterations_shown(users, "user99") == 16384

    def test_the_same_stranger_is_always_shown_the_same_iterations(self) -> None:
        users = Users()
        for number in range(50):
            users.put(f"user{number}", SHA_256, 4096 + number)
        assert len({iterations_shown(users, "nobody") for _ in range(5)}) == 1

    def test_one_more_user_changes_few_strangers(self) -> None:
        """Whoever asks day by day sees real users change as seldom."""
        users = Users()
        for number in range(100):
            users.put(f"user{number}", SHA_256, (4096, 8192)[number % 2])
        before = [iterations_shown(users, f"stranger{number}") for number in range(1000)]
        users.put("another", SHA_256, 8192)
        after = [iterations_shown(users, f"stranger{number}") for number in range(1000)]
        assert sum(one != two for one, two in zip(before, after, strict=True)) < 20

    def test_even_the_fakes_own_key_does_not_let_in(self) -> None:
        """Whoever learns the secret may tell who exists, but not log in."""
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
        names = ["user0", *(f"stranger{number}" for number in range(20))]
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
        shown = Counter(shape_shown(users, f"stranger{number}") for number in range(2000))
        shares = {
            Shape(4096, KAFKAS_FORM): 0.6,
            Shape(8192, SaltForm("bytes", 64)): 0.3,
            Shape(4096, SaltForm("hexadecimal", 32)): 0.1,
        }
        assert shown.keys() == shares.keys()
        assert all(abs(shown[shape] / 2000 - share) < 0.04 for shape, share in shares.items())

    def test_a_salt_of_kafkas_form_is_what_it_was(self) -> None:
        """A release that showed other ones would tell by it who exists."""
        assert salt_shown(Users(), "nobody") == KAFKAS
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
