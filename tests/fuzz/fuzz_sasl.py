"""Mutational fuzzer of parts in any client's reach: both mechanisms, the JWKS and the SCRAM client.

Seeds are good messages; each round bends some and offers them in any order.
Run: python -m tests.fuzz.fuzz_sasl --seconds 60 [--seed 1]
Exit status 1 on any exception, or if a bent message lets somebody in; the input is printed in hex.
"""

import json
import random

from sasl.credentials import ScramMechanism
from sasl.jwks import KeyCache, KeyMissing
from sasl.jwt_claims import MAX_LIFETIME_SECONDS
from sasl.login import LoginError, ScramClient
from sasl.mechanism import Challenge, Failure, KeysNeeded, Success
from sasl.messages import client_initial_response, read_client_initial_response
from tests.support.fuzzing import main, mutate
from tests.support.sasl import (
    NOW,
    all_keys,
    cache_of,
    claims,
    document,
    ec_key,
    ed_key,
    oauth_exchange,
    rsa_key,
    scram_exchange,
    sign,
    token,
)


class Fuzzer:
    """A method per target, which asserts the invariants."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
        self.inputs: list[bytes] = []
        """Inputs of the current round."""
        self.mechanism = ScramMechanism.SCRAM_SHA_256
        self.keys = cache_of(*all_keys())
        self.tokens = [token(key=key) for key in (rsa_key(), ec_key(), ed_key())]
        self.document = document(rsa_key().jwk(), ec_key().jwk(), ed_key().jwk())
        self.scram_messages = self.good_login()
        self.server_first, self.server_final = self.server_messages()

    def client(self) -> ScramClient:
        return ScramClient(
            mechanism=self.mechanism, username="alice", password="secret", nonce="client"
        )

    def good_login(self) -> list[bytes]:
        client = self.client()
        challenge = scram_exchange().step(client.first(), NOW)
        assert isinstance(challenge, Challenge)
        return [client.first(), client.final(challenge.data)]

    def server_messages(self) -> tuple[bytes, bytes]:
        exchange = scram_exchange()
        challenge, success = (exchange.step(message, NOW) for message in self.scram_messages)
        assert isinstance(challenge, Challenge)
        assert isinstance(success, Success)
        return challenge.data, success.data

    def bent(self, message: bytes) -> bytes:
        """Record and return the message, altered three times out of four."""
        offered = mutate(self.rng, message) if self.rng.randint(0, 3) else message
        self.inputs.append(offered)
        return offered

    def round(self) -> None:
        self.inputs = []
        target = self.rng.choices(
            (self.scram, self.oauthbearer, self.signed_token, self.jwks, self.scram_client),
            weights=(30, 30, 20, 10, 1),
        )[0]
        target()

    def scram(self) -> None:
        exchange = scram_exchange()
        order = self.rng.choice(((0, 1), (0, 1), (0, 1), (0, 1, 1), (1, 0), (0, 0, 1)))
        for which in order:
            step = exchange.step(self.bent(self.scram_messages[which]), NOW)
            assert isinstance(step, Challenge | Failure | Success)
            assert not isinstance(step, Success) or self.inputs == self.scram_messages

    def oauthbearer(self) -> None:
        exchange = oauth_exchange(self.keys)
        good = client_initial_response(self.rng.choice(self.tokens), {"k": "v"})
        for _ in range(self.rng.randint(1, 3)):
            message = self.bent(self.rng.choice((good, good, b"\x01")))
            step = exchange.step(message, NOW)
            assert isinstance(step, Challenge | Failure | Success | KeysNeeded)
            if isinstance(step, Success):  # another message may hold the same token
                response = read_client_initial_response(message)
                assert response is not None
                assert response.token in self.tokens

    def signed_token(self) -> None:
        """A token that the identity provider might sign."""
        header = self.bent(json.dumps({"alg": "EdDSA", "kid": "ed"}).encode())
        payload = self.bent(json.dumps(claims(scope="read", nbf=0)).encode())
        bearer = sign(header, payload, ed_key(), "EdDSA")
        step = oauth_exchange(self.keys).step(client_initial_response(bearer), NOW)
        assert isinstance(step, Challenge | Failure | Success | KeysNeeded)
        if isinstance(step, Success):
            assert step.identity.principal.removeprefix("User:").strip().encode()
            assert step.credential_deadline is not None
            assert NOW < step.credential_deadline <= NOW + MAX_LIFETIME_SECONDS

    def jwks(self) -> None:
        cache = KeyCache()
        taken = cache.loaded(self.bent(self.document), NOW)
        found = cache.find("RS256", "rsa", NOW)
        assert taken == (cache.key_count > 0) == (found is not KeyMissing.NO_KEYS)

    def scram_client(self) -> None:
        client = self.client()
        try:
            client.final(self.bent(self.server_first))
            client.verify(self.bent(self.server_final))
        except LoginError:
            return
        assert self.inputs == [self.server_first, self.server_final]


if __name__ == "__main__":
    main(Fuzzer, __doc__, "nothing got in")
