"""Requests of AlterUserScramCredentials, and what is answered; a user `old` exists before each."""

from collections.abc import Sequence

from kio.schema.alter_user_scram_credentials.v0.request import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from kio.static.primitive import i8, i32

DUPLICATE = ("duplicate_resource", "A user credential cannot be altered twice in the same request")
NOT_FOUND = ("resource_not_found", "Attempt to delete a user credential that does not exist")
NO_USER = ("unacceptable_credential", "Username must not be empty")
UNKNOWN_MECHANISM = ("unsupported_sasl_mechanism", "Unknown SCRAM mechanism")
TOO_FEW = ("unacceptable_credential", "Too few iterations")
TOO_MANY = ("unacceptable_credential", "Too many iterations")
DONE = ("none", None)
SALT = b"salt" * 8
SALTED_PASSWORD = b"p" * 32

Answer = dict[str, tuple[str, str | None]]
"""By user: the error's name and message."""
Change = ScramCredentialDeletion | ScramCredentialUpsertion


def delete(name: str, mechanism: int = 1) -> ScramCredentialDeletion:
    return ScramCredentialDeletion(name=name, mechanism=i8(mechanism))


def upsert(
    name: str,
    mechanism: int = 1,
    iterations: int = 4096,
    salt: bytes = SALT,
    salted_password: bytes = SALTED_PASSWORD,
) -> ScramCredentialUpsertion:
    return ScramCredentialUpsertion(
        name=name,
        mechanism=i8(mechanism),
        iterations=i32(iterations),
        salt=salt,
        salted_password=salted_password,
    )


def request_of(changes: Sequence[Change]) -> AlterUserScramCredentialsRequest:
    return AlterUserScramCredentialsRequest(
        deletions=tuple(c for c in changes if isinstance(c, ScramCredentialDeletion)),
        upsertions=tuple(c for c in changes if isinstance(c, ScramCredentialUpsertion)),
    )


SEEN: list[tuple[tuple[Change, ...], Answer]] = [
    ((), {}),
    ((upsert("a"),), {"a": DONE}),
    ((upsert("a", 2, 16384),), {"a": DONE}),
    ((upsert("a", 1, 0),), {"a": TOO_FEW}),
    ((upsert("a", 1, -1),), {"a": TOO_FEW}),
    ((upsert("a", 1, 4095),), {"a": TOO_FEW}),
    ((upsert("a", 1, 16385),), {"a": TOO_MANY}),
    ((upsert("a", 0),), {"a": UNKNOWN_MECHANISM}),
    ((upsert("a", 3),), {"a": UNKNOWN_MECHANISM}),
    ((upsert("a", -1),), {"a": UNKNOWN_MECHANISM}),
    ((upsert("a", 9, 1),), {"a": UNKNOWN_MECHANISM}),
    ((delete("a", 9),), {"a": UNKNOWN_MECHANISM}),
    ((upsert(""),), {"": NO_USER}),
    ((upsert("", 9, 1),), {"": NO_USER}),
    ((delete(""),), {"": NO_USER}),
    ((delete("", 9),), {"": NO_USER}),
    ((upsert(""), upsert("")), {"": NO_USER}),
    ((upsert("a", salted_password=b"x"),), {"a": DONE}),
    ((upsert("a", salted_password=b"x" * 1000),), {"a": DONE}),
    ((upsert("x" * 300), upsert(" ")), {"x" * 300: DONE, " ": DONE}),
    ((upsert("a\0b"), upsert("é😀")), {"a\0b": DONE, "é😀": DONE}),
    # two changes of one user
    ((upsert("a", 1), upsert("a", 2)), {"a": DUPLICATE}),
    ((upsert("a"), upsert("a")), {"a": DUPLICATE}),
    ((upsert("a", 1), upsert("a", 2), upsert("a", 1)), {"a": DUPLICATE}),
    ((upsert("a"), upsert("a", 9, 1)), {"a": DUPLICATE}),
    ((upsert("a", 1, 1), upsert("a", 2)), {"a": TOO_FEW}),
    ((upsert("a", 9), upsert("a", 1)), {"a": UNKNOWN_MECHANISM}),
    ((delete("a", 9), upsert("a")), {"a": UNKNOWN_MECHANISM}),
    ((delete("a"), upsert("a", 2)), {"a": NOT_FOUND}),
    ((delete("old"), delete("old")), {"old": DUPLICATE}),
    ((delete("old"), delete("old", 9)), {"old": DUPLICATE}),
    ((delete("old", 1), delete("old", 2)), {"old": DUPLICATE}),
    ((delete("old"), upsert("old")), {"old": DUPLICATE}),
    ((delete("old"), upsert("old", 2)), {"old": DUPLICATE}),
    ((delete("old"), upsert("old", 1, 1)), {"old": DUPLICATE}),
    # deletions
    ((delete("a"),), {"a": NOT_FOUND}),
    ((delete("old", 2),), {"old": NOT_FOUND}),
    ((delete("old"),), {"old": DONE}),
    # each user is answered on its own
    (
        (delete("m1"), delete("m2", 9), upsert("m3"), upsert("m4", 1, 1), upsert("m5", 9)),
        {
            "m3": DONE,
            "m1": NOT_FOUND,
            "m2": UNKNOWN_MECHANISM,
            "m4": TOO_FEW,
            "m5": UNKNOWN_MECHANISM,
        },
    ),
    (
        (delete("a"), delete("old"), upsert("n2"), upsert("n1", 1, 1), upsert("n2", 2)),
        {"old": DONE, "a": NOT_FOUND, "n1": TOO_FEW, "n2": DUPLICATE},
    ),
]
"""As Apache Kafka 4.1 answers; tests/kafka asks it."""

BETTER_THAN_KAFKA: list[tuple[tuple[Change, ...], Answer]] = [
    # Kafka: UNKNOWN_SERVER_ERROR, and a credential that nobody can log in with
    (
        (upsert("a", salted_password=b""),),
        {"a": ("unacceptable_credential", "Salted password must not be empty")},
    ),
    ((upsert("a", salt=b""),), {"a": ("unacceptable_credential", "Salt must not be empty")}),
]
