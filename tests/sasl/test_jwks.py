import json
from itertools import pairwise
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st

from sasl.jwks import (
    MAX_DOCUMENT_BYTES,
    MAX_KEYS,
    UNKNOWN_KID_INTERVAL_SECONDS,
    KeyCache,
    KeyCacheSettings,
    KeyMissing,
)
from tests.support.sasl import JSON, NOW, Key, all_keys, cache_of, document, ec_key, ed_key, rsa_key

HOUR = 3600.0
RSA_JWK = rsa_key().jwk()


def found(cache: KeyCache, algorithm: str, kid: str | None, now: float = NOW) -> object:
    key = cache.find(algorithm, kid, now)
    return key if isinstance(key, KeyMissing) else key.public_numbers()  # type: ignore[union-attr]


def numbers(key: Key) -> object:
    return key.private.public_key().public_numbers()


def test_keys_are_found_by_kid() -> None:
    cache = cache_of(rsa_key(), ec_key(), ed_key())
    assert found(cache, "RS256", "rsa") == numbers(rsa_key())
    assert found(cache, "ES256", "ec") == numbers(ec_key())
    assert found(cache, "RS256", "other") is KeyMissing.UNKNOWN_KID
    assert cache.key_count == 3


@pytest.mark.parametrize(
    ("algorithm", "kid"),
    [("ES256", "rsa"), ("EdDSA", "rsa"), ("RS256", "ec"), ("ES384", "ec"), ("PS256", "ed")],
)
def test_a_key_of_another_type_does_not_fit(algorithm: str, kid: str) -> None:
    """Key and algorithm are not the token's to combine."""
    assert found(cache_of(rsa_key(), ec_key(), ed_key()), algorithm, kid) is KeyMissing.NO_FIT


def test_a_keys_own_algorithm_does_not_bind() -> None:
    """Kafka takes RS512 and PS256 with a key that says RS256."""
    cache = KeyCache()
    assert cache.loaded(document(rsa_key().jwk(alg="RS256")), NOW)
    assert {found(cache, name, "rsa") for name in ("RS256", "RS512", "PS256")} == {
        numbers(rsa_key())
    }


def found_for(entries: list[dict[str, Any]], *algorithms: str) -> list[object]:
    cache = KeyCache()
    assert cache.loaded(document(*entries), NOW)
    assert cache.key_count == 1
    return [found(cache, name, kid) for name in algorithms for kid in ("rsa", None)]


def test_a_key_listed_for_several_algorithms_is_one_key_for_these_alone() -> None:
    """Kafka reads such a document too, and selects by kid and algorithm."""
    key, no_fit = numbers(rsa_key()), KeyMissing.NO_FIT
    listed = [rsa_key().jwk(alg=name) for name in ("RS256", "RS512", "RSA-OAEP")]
    assert found_for(listed, "RS256", "RS512") == [key] * 4
    assert found_for(listed, "RS384", "PS256") == [no_fit] * 4
    unbound = rsa_key().jwk(alg=None)
    assert found_for([unbound, *listed], "RS512", "PS256") == [key] * 2 + [no_fit] * 2
    assert found_for([unbound, unbound], "RS512", "PS256") == [key] * 4


def test_all_offered_key_types_are_read() -> None:
    assert cache_of(*all_keys()).key_count == 6


UNUSABLE: list[Any] = [
    None,
    "key",
    {},
    {"kty": "oct", "k": "c2VjcmV0", "kid": "hmac"},
    {"kty": ["RSA"], "n": "AQAB", "e": "AQAB"},
    RSA_JWK | {"use": "enc"},
    RSA_JWK | {"use": ["sig"]},
    RSA_JWK | {"key_ops": ["encrypt"]},
    RSA_JWK | {"key_ops": "verify"},
    RSA_JWK | {"kid": 7},
    RSA_JWK | {"d": "AQAB"},
    RSA_JWK | {"n": 7},
    RSA_JWK | {"n": ""},
    RSA_JWK | {"n": "\u00e9"},
    RSA_JWK | {"e": "AA"},
    RSA_JWK | {"e": "AQ"},
    {"kty": "RSA", "kid": "rsa"},
    rsa_key("weak", 1024).jwk(),
    RSA_JWK | {"n": "_" * 4096},
    ec_key().jwk() | {"x": "AAAA"},
    ec_key().jwk() | {"crv": "P-384"},
    ec_key().jwk() | {"y": ec_key().jwk()["x"]},
    ed_key().jwk() | {"crv": "X25519"},
    ed_key().jwk() | {"x": "AAAA"},
    Key("k1", "ES256K", ec.generate_private_key(ec.SECP256K1())).jwk(),
]


@pytest.mark.parametrize("entry", UNUSABLE)
def test_unusable_keys_are_left_out(entry: object) -> None:
    """A provider that publishes other keys too must not lock everybody out."""
    cache = KeyCache()
    assert cache.loaded(document(entry, rsa_key("good").jwk()), NOW)
    assert cache.key_count == 1
    assert not cache.loaded(document(entry), NOW)


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"not JSON",
        b"[]",
        b"{}",
        b'{"keys":{}}',
        b'{"keys":[]}',
        b'{"keys":[],"keys":[]}',
        b"\xff",
        b"[" * 100_000,
        b'{"keys":' + b"[" * 100_000,
        document(RSA_JWK, ec_key("rsa").jwk()),
        document(RSA_JWK, RSA_JWK, rsa_key("rsa-2").jwk(alg="RS512") | {"kid": "rsa"}),
        document(*[RSA_JWK] * (MAX_KEYS + 1)),
        document(RSA_JWK) + b" " * MAX_DOCUMENT_BYTES,
        json.dumps({"keys": [RSA_JWK]}).encode("utf-16"),
    ],
)
def test_a_bad_document_changes_nothing(bad: bytes) -> None:
    cache = cache_of(rsa_key())
    assert not cache.loaded(bad, NOW + HOUR)
    assert found(cache, "RS256", "rsa", NOW + HOUR) == numbers(rsa_key())
    assert cache.age_seconds(NOW + HOUR) == HOUR
    assert (cache.refresh_failures, cache.last_error is None) == (1, False)


def test_refresh_schedule() -> None:
    """At once, then an hour after success; failures are retried with doubling delays."""
    cache = KeyCache()
    assert (cache.next_refresh(NOW), cache.wants_refresh(NOW)) == (NOW, True)
    assert cache.age_seconds(NOW) is None
    cache.loaded(document(RSA_JWK), NOW)
    assert (cache.next_refresh(NOW), cache.wants_refresh(NOW)) == (NOW + HOUR, False)
    assert cache.wants_refresh(NOW + HOUR)
    assert cache.next_refresh(NOW + 2 * HOUR) == NOW + 2 * HOUR
    delays = []
    now = NOW + HOUR
    for _ in range(10):
        cache.failed("refused", now)
        delays.append(round(cache.next_refresh(now) - now, 3))
        now = cache.next_refresh(now)
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0]
    cache.loaded(document(RSA_JWK), now)
    cache.failed("refused", now + HOUR)
    assert round(cache.next_refresh(now + HOUR) - now - HOUR, 3) == 0.1


def test_a_very_long_outage_does_not_overflow() -> None:
    cache = KeyCache()
    for _ in range(5_000):
        cache.failed("refused", NOW)
    assert cache.next_refresh(NOW) == NOW + 10.0


def test_keys_outlive_an_outage_for_their_maximum_age_only() -> None:
    """Then fail closed: blocking the provider must not keep a revoked key alive."""
    cache = cache_of(rsa_key(), settings=KeyCacheSettings(max_age_ms=7_200_000))
    cache.failed("refused", NOW + HOUR)
    assert found(cache, "RS256", "rsa", NOW + 2 * HOUR) == numbers(rsa_key())
    assert found(cache, "RS256", "rsa", NOW + 2 * HOUR + 0.001) is KeyMissing.NO_KEYS
    assert found(KeyCache(), "RS256", "rsa") is KeyMissing.NO_KEYS


def test_a_flood_of_unknown_kids_causes_few_fetches() -> None:
    """A thousand a second for a minute: one fetch per interval, and nothing remembered."""
    cache = cache_of(rsa_key())
    before = {name: id(value) for name, value in vars(cache).items()}
    fetches = []
    for tick in range(60_000):
        now = NOW + tick / 1000
        assert found(cache, "RS256", f"kid-{tick}", now) is KeyMissing.UNKNOWN_KID
        if cache.may_fetch_for_unknown_kid(now):
            assert {name: id(value) for name, value in vars(cache).items()} == before
            fetches.append(now)
            assert cache.loaded(document(RSA_JWK), now)
            before = {name: id(value) for name, value in vars(cache).items()}
    assert len(fetches) == 5
    assert all(
        later - earlier >= UNKNOWN_KID_INTERVAL_SECONDS for earlier, later in pairwise(fetches)
    )


def test_who_asks_while_a_fetch_is_under_way_joins_it() -> None:
    """After a rotation many clients come with the new key at once; none must be refused."""
    cache = cache_of(rsa_key())
    later = NOW + UNKNOWN_KID_INTERVAL_SECONDS
    assert [cache.may_fetch_for_unknown_kid(later), cache.may_fetch_for_unknown_kid(later + 1)] == [
        True,
        True,
    ]
    cache.failed("refused", later + 2)
    assert not cache.may_fetch_for_unknown_kid(later + 2)


MEMBERS = st.sampled_from(["kty", "kid", "use", "key_ops", "n", "e", "crv", "x", "y", "alg", "d"])
VALUES = JSON | st.sampled_from(["RSA", "EC", "OKP", "P-256", "Ed25519", "sig", "AQAB"])


@given(
    entry=st.sampled_from([RSA_JWK, ec_key().jwk(), ed_key().jwk()]),
    changes=st.dictionaries(MEMBERS, VALUES, max_size=3),
)
@settings(deadline=None)
def test_no_key_raises(entry: dict[str, Any], changes: dict[str, object]) -> None:
    cache = KeyCache()
    assert cache.loaded(document(entry | changes), NOW) is (cache.last_error is None)


@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_no_document_raises(data: bytes) -> None:
    assert not KeyCache().loaded(data, NOW)
