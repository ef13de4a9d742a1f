"""What somebody learns of the users who is none of them: nothing, not even who exists."""

import base64
import sys
from collections import Counter
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sasl.credentials import DEFAULT_ITERATIONS, IterationShares, ScramMechanism
from sasl.scram import ScramServer
from sasl.scram_messages import encode_base64
from tests.sasl.given import FAKE_SECRET, NOW, Users, scram_exchange
from tests.sasl.scram_given import BAD_CREDENTIALS, SHA_256, SHA_512, challenge, login


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
    def test_the_same_hashing_work_is_done(self, mechanism: ScramMechanism) -> None:
        """Time is not measured but counted: every call into the hashing library."""
        unknown = hash_calls(lambda: scram_exchange(mechanism=mechanism), "nobody", mechanism)
        wrong = hash_calls(lambda: scram_exchange(mechanism=mechanism), "alice", mechanism)
        assert unknown == wrong
        assert unknown.total() >= 4


def iterations_shown(users: Users, user: str) -> int:
    step = scram_exchange(users).step(f"n,,n={user},r=client".encode(), NOW)
    return int(challenge(step).split(b",i=")[1])


@given(
    iterations=st.lists(st.integers(4096, 4100), max_size=30),
    fractions=st.lists(st.floats(0, 1, exclude_max=True), max_size=10),
)
def test_a_drawn_count_is_one_in_use(iterations: list[int], fractions: list[float]) -> None:
    shares = IterationShares.of(iterations)
    for fraction in fractions:
        drawn = shares.draw(fraction, otherwise=1)
        assert drawn == (sorted(iterations)[int(fraction * len(iterations))] if iterations else 1)


def hash_calls(begin: Any, user: str, mechanism: ScramMechanism) -> Counter[str]:
    """The calls of C functions of hashlib and hmac while the server refuses a bad proof."""
    calls: Counter[str] = Counter()

    def count(_frame: FrameType, event: str, function: Any) -> None:
        owner = type(getattr(function, "__self__", None)).__module__
        if event == "c_call" and "hashlib" in f"{getattr(function, '__module__', '')} {owner}":
            calls[function.__name__] += 1

    exchange = begin()
    proof = encode_base64(bytes(mechanism.key_bytes))
    sys.setprofile(count)
    try:
        exchange.step(f"n,,n={user},r=client".encode(), NOW)
        step = exchange.step(f"c=biws,r=clientserver,p={proof}".encode(), NOW)
    finally:
        sys.setprofile(None)
    assert step == BAD_CREDENTIALS
    return calls
