"""The APIs of SCRAM users."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.errors import ClientFault
from proxy.handlers.scram_users import MAX_ITEMS, alter, answer, describe
from proxy.store import CachedCredentials, Store, open_store
from proxy.store.interface import CredentialStore
from proxy.store.users_file import UsersFile
from proxy.wire.apis import ALTER_USER_SCRAM_CREDENTIALS, DESCRIBE_USER_SCRAM_CREDENTIALS
from proxy.wire.error_codes import ErrorCode
from proxy.wire.messages import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
)
from proxy.wire.primitives import MAX_STRING, MAX_TAGS, write_uvarint
from sasl.credentials import ScramCredential, ScramMechanism
from tests.support.frames import array
from tests.support.store import (
    DONE,
    NOT_FOUND,
    SALT,
    SEEN,
    UNKNOWN_MECHANISM,
    Answer,
    Change,
    content,
    delete,
    of,
    put,
    request_of,
    upsert,
)

BETTER_THAN_KAFKA: list[tuple[tuple[Change, ...], Answer]] = [
    # Kafka: UNKNOWN_SERVER_ERROR, and a credential that nobody can log in with
    (
        (upsert("a", salted_password=b""),),
        {"a": ("unacceptable_credential", "Salted password must not be empty")},
    ),
    ((upsert("a", salt=b""),), {"a": ("unacceptable_credential", "Salt must not be empty")}),
]


UserName = DescribeUserScramCredentialsRequest.UserName


def name_of(error_code: int) -> str:
    return ErrorCode(error_code).name.lower()


def altered(store: CredentialStore, *changes: Change, authorized: bool = True) -> Answer:
    response = alter(request_of(changes), store, authorized=authorized)
    reported = {one.user: (name_of(one.error_code), one.error_message) for one in response.results}
    assert len(reported) == len(response.results), "one result for each user"
    return reported


def asking_for(users: Sequence[str] | None) -> DescribeUserScramCredentialsRequest:
    named = None if users is None else tuple(UserName(name=name) for name in users)
    return DescribeUserScramCredentialsRequest(users=named)


def described(store: Store, users: Sequence[str] | None) -> dict[str, object]:
    response = describe(asking_for(users), store, authorized=True)
    assert (name_of(response.error_code), response.error_message) == ("none", "")
    return {
        one.user: [(info.mechanism, info.iterations) for info in one.credential_infos]
        if not one.error_code
        else (name_of(one.error_code), one.error_message)
        for one in response.results
    }


@pytest.mark.parametrize(("changes", "expected"), [*SEEN, *BETTER_THAN_KAFKA])
def test_alter_answers_as_kafka_does(
    store: Store, changes: tuple[Change, ...], expected: Answer
) -> None:
    assert altered(store, upsert("old")) == {"old": DONE}
    before = set(store.credential_snapshot().credentials)

    assert altered(store, *changes) == expected

    # the answer matches the changes made
    after = set(store.credential_snapshot().credentials)
    changed = {user for user, outcome in expected.items() if outcome == DONE}
    assert {user for user, _ in before ^ after} == changed


def test_where_users_are_in_a_file_each_change_is_refused(tmp_path: Path) -> None:
    """Those that are wrong anyway for what is wrong with them."""
    file = tmp_path / "users.json"
    put(file, content(old=of(ScramMechanism.SCRAM_SHA_256)))
    refused = ("policy_violation", "SCRAM users are in a file: change them where it comes from")
    assert altered(UsersFile(file), delete("old"), upsert("new"), upsert("q", 9), delete("r")) == {
        "old": refused,
        "new": refused,
        "q": UNKNOWN_MECHANISM,
        "r": NOT_FOUND,
    }


def test_what_is_stored_lets_the_user_in(store: Store) -> None:
    """The client's admin tool salts the password; the login derives the verifier from it."""
    salted = ScramMechanism.SCRAM_SHA_512.salted_password("secret", SALT, 4096)
    altered(store, upsert("alice", 2, 4096, SALT, salted))

    found = CachedCredentials(store).find("alice", ScramMechanism.SCRAM_SHA_512)
    assert found == ScramCredential.from_password(
        ScramMechanism.SCRAM_SHA_512, "secret", SALT, 4096
    )


def test_nobody_alters_without_authorization(store: Store) -> None:
    """Each user once; the answer reveals neither other errors nor which users exist."""
    altered(store, upsert("old"))
    denied = ("cluster_authorization_failed", "Cluster authorization failed.")

    reported = altered(
        store, delete("old"), delete("q"), delete("q"), upsert(""), upsert("r", 9), authorized=False
    )

    assert reported == dict.fromkeys(("old", "q", "", "r"), denied)
    assert described(store, None) == {"old": [(1, 4096)]}
    assert altered(store, authorized=False) == {}


@pytest.mark.parametrize(("users", "results"), [(None, 0), ((), 0), (("x", "x", "y"), 3)])
def test_nobody_describes_without_authorization(
    store: Store, users: tuple[str, ...] | None, results: int
) -> None:
    """Seen: a nameless result for each user asked for; a null list gets the same answer here."""
    altered(store, upsert("x"))
    response = describe(asking_for(users), store, authorized=False)
    denied = "cluster_authorization_failed"
    assert (name_of(response.error_code), response.error_message) == (denied, None)
    answers = [(r.user, name_of(r.error_code), r.error_message) for r in response.results]
    assert answers == [("", denied, None)] * results
    assert all(r.credential_infos == () for r in response.results)


def test_describe_answers_as_kafka_does(store: Store) -> None:
    assert described(store, None) == {}
    altered(store, upsert("b"))
    altered(store, upsert("a", 2, 8192))
    altered(store, upsert("a", 1, 4096))
    everybody = {"a": [(1, 4096), (2, 8192)], "b": [(1, 4096)]}
    twice = "Cannot describe SCRAM credentials for the same user twice in a single request"
    unknown = "Attempt to describe a user credential that does not exist"

    assert described(store, None) == everybody
    assert described(store, []) == everybody
    assert described(store, ["a"]) == {"a": everybody["a"]}
    assert described(store, ["x", "a", "x", "", "b", "b"]) == {
        "x": ("duplicate_resource", f"{twice}: x"),
        "a": everybody["a"],
        "": ("resource_not_found", f"{unknown}: "),
        "b": ("duplicate_resource", f"{twice}: b"),
    }


names = st.sampled_from(["", "a", "b", "c"])
mechanisms = st.integers(-1, 3)
changes = st.one_of(
    st.builds(delete, names, mechanisms),
    st.builds(upsert, names, mechanisms, st.sampled_from([4095, 4096, 16384, 16385])),
)


@given(requests=st.lists(st.lists(changes, max_size=5), max_size=3))
def test_the_answer_is_the_truth(
    requests: list[list[Change]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """For any request: users answered with `none` have changed as requested, and no others."""
    store = open_store(f"sqlite:{tmp_path_factory.mktemp('store') / 'state.db'}")
    model: dict[tuple[str, int], int] = {}
    for request in requests:
        reported = altered(store, *request)
        assert reported.keys() == {change.name for change in request}
        for change in request:
            if reported[change.name] != DONE:
                continue
            if isinstance(change, AlterUserScramCredentialsRequest.ScramCredentialDeletion):
                del model[change.name, change.mechanism]
            else:
                model[change.name, change.mechanism] = change.iterations
        assert {
            (user, mechanism.code): one.iterations
            for (user, mechanism), one in store.credential_snapshot().credentials.items()
        } == model
    store.close()


def test_a_request_is_answered_in_bytes(store: Store) -> None:
    """The compact array of one name, two empty tag sections; bytes behind it mean nothing."""
    altered(store, upsert("a"))
    assert answer(50, b"\x02\x02a\x00\x00ignored", store, authorized=True) == (
        b"\x00\x00\x00\x00\x00\x00\x01"  # not throttled, no error, empty message
        b"\x02\x02a\x00\x00\x01"  # one user, no error, empty message
        b"\x02\x01\x00\x00\x10\x00\x00"  # one credential: SCRAM-SHA-256, 4096
        b"\x00\x00"
    )


DELETION, UPSERTION = b"\x01\x01\x00", b"\x01\x01" + bytes(4) + b"\x01\x01\x00"


def users(count: int) -> tuple[int, bytes]:
    return DESCRIBE_USER_SCRAM_CREDENTIALS, array(b"\x01\x00", count) + b"\x00"


def tagged_users(count: int) -> tuple[int, bytes]:
    """Users with as many tagged fields as each may have, and one with the rest."""
    user = b"\x01" + write_uvarint(MAX_TAGS) + b"\x01\x00" * MAX_TAGS
    full, rest = divmod(count, MAX_TAGS + 1)
    last = b"\x01" + write_uvarint(rest - 1) + b"\x01\x00" * (rest - 1)
    return DESCRIBE_USER_SCRAM_CREDENTIALS, write_uvarint(full + 2) + user * full + last + b"\x00"


def deletions(count: int) -> tuple[int, bytes]:
    return ALTER_USER_SCRAM_CREDENTIALS, array(DELETION, count) + b"\x01\x00"


def both(count: int) -> tuple[int, bytes]:
    half = count // 2
    body = array(DELETION, half) + array(UPSERTION, count - half) + b"\x00"
    return ALTER_USER_SCRAM_CREDENTIALS, body


@pytest.mark.parametrize("authorized", [True, False])
@pytest.mark.parametrize("items", [users, tagged_users, deletions, both])
def test_more_items_than_anybody_sends_are_the_clients_fault(
    store: Store, items: Callable[[int], tuple[int, bytes]], authorized: bool
) -> None:
    """Whatever they are; so many are served."""
    api_key, body = items(MAX_ITEMS)
    assert answer(api_key, body, store, authorized=authorized)
    api_key, body = items(MAX_ITEMS + 1)
    with pytest.raises(ClientFault):
        answer(api_key, body, store, authorized=authorized)


@pytest.mark.parametrize("letter", ["x", "\N{GRINNING FACE}"])
@pytest.mark.parametrize("times", [1, 2])
def test_sentences_can_be_read_whatever_they_repeat(store: Store, letter: str, times: int) -> None:
    """Kafka's clients read strings of at most 32,767 bytes; the name may have them all."""
    name = letter * (MAX_STRING // len(letter.encode()))
    [result] = describe(asking_for([name] * times), store, authorized=True).results
    assert result.error_message is not None
    assert result.error_message.endswith(letter)
    assert len(result.error_message.encode()) <= MAX_STRING
