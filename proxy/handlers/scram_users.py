"""DescribeUserScramCredentials and AlterUserScramCredentials v0 (KIP-554), from the store.

Responses and their messages are those of a running Kafka 4.1. Deliberate differences:

- Users and mechanisms are sorted; Kafka returns them in hash order.
- A null list of users without authorization is answered; Kafka 4.1 never answers it.
- An empty salted password is UNACCEPTABLE_CREDENTIAL; Kafka returns UNKNOWN_SERVER_ERROR.
- An empty salt is UNACCEPTABLE_CREDENTIAL; Kafka stores it, but no client can log in with it.
- A denial has one fixed message; Kafka's contains the server's internal objects.
- The size of a request is bounded: see the constants.

Pure except for the store, whose writes wait for the disk: call `answer` in a thread.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

from proxy.acl.validation import Refusal, refused_scram_changes, refused_scram_users
from proxy.errors import ClientFault
from proxy.store.interface import CredentialKey, CredentialStore, StoreError, by_user, refusal_of
from proxy.wire import messages
from proxy.wire.apis import ALTER_USER_SCRAM_CREDENTIALS
from proxy.wire.codec import decode_bounded, encode
from proxy.wire.error_codes import ErrorCode
from proxy.wire.primitives import MAX_SENTENCE, Malformed
from sasl.credentials import MAX_ITERATIONS, MIN_ITERATIONS, ScramCredential, ScramMechanism

MAX_ITEMS: Final = 40_000
"""Maximum number of users or changes in a request, including tagged fields. Kafka's tools send one
item, and larger requests have no known use. An item needs up to 1 KiB of memory, including its part
of the response."""
MAX_BYTES: Final = 2_097_152
"""Maximum size of a request in bytes: about 17,000 changes for SCRAM-SHA-512 with names of 20
characters. In memory, a name can be four times as large as in the request."""

_VERSION: Final = 0
"""Only version of both APIs."""
_Request = TypeVar(
    "_Request",
    messages.DescribeUserScramCredentialsRequest,
    messages.AlterUserScramCredentialsRequest,
)
_Infos = tuple[messages.DescribeUserScramCredentialsResponse.CredentialInfo, ...]
_Described = messages.DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult


_NO_USER = Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
_NO_SALT = Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Salt must not be empty")
_NO_PASSWORD = Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Salted password must not be empty")
_TOO_FEW = Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
_TOO_MANY = Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
_UNKNOWN_MECHANISM = Refusal(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
_TWICE = Refusal(
    ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request"
)
_NOTHING_TO_DELETE = Refusal(
    ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"
)


def answer(api_key: int, body: bytes, store: CredentialStore, *, authorized: bool) -> bytes:
    """Return the response body for a request to either API. Raises ClientFault.

    As in Kafka, bytes after the body are ignored.
    """
    if api_key == ALTER_USER_SCRAM_CREDENTIALS:
        changes = _read(messages.AlterUserScramCredentialsRequest, body)
        return encode(alter(changes, store, authorized=authorized), _VERSION)
    request = _read(messages.DescribeUserScramCredentialsRequest, body)
    return encode(describe(request, store, authorized=authorized), _VERSION)


def _read(request_type: type[_Request], body: bytes) -> _Request:
    try:
        return decode_bounded(
            request_type, _VERSION, body, max_bytes=MAX_BYTES, max_values=MAX_ITEMS
        )
    except Malformed as error:
        raise ClientFault("the request does not parse") from error


def describe(
    request: messages.DescribeUserScramCredentialsRequest,
    store: CredentialStore,
    *,
    authorized: bool,
) -> messages.DescribeUserScramCredentialsResponse:
    """Return the credentials of the users. `authorized` is True if the principal has Describe on
    the cluster."""
    users = request.users or ()
    if not authorized:
        return refused_scram_users(request)
    counts = Counter(user.name for user in users)
    known: dict[str, _Infos] = {}
    for (user, mechanism), verifier in by_user(store.credential_snapshot().credentials):
        described = messages.DescribeUserScramCredentialsResponse.CredentialInfo(
            mechanism=mechanism.code, iterations=verifier.iterations
        )
        known[user] = (*known.get(user, ()), described)
    names = counts or known
    return messages.DescribeUserScramCredentialsResponse(
        error_message="", results=tuple(_describe_one(name, counts[name], known) for name in names)
    )


def _describe_one(name: str, count: int, known: dict[str, _Infos]) -> _Described:
    if count > 1:
        message = "Cannot describe SCRAM credentials for the same user twice in a single request"
        return _described_user(name, _quoting(ErrorCode.DUPLICATE_RESOURCE, message, name))
    if name not in known:
        message = "Attempt to describe a user credential that does not exist"
        return _described_user(name, _quoting(ErrorCode.RESOURCE_NOT_FOUND, message, name))
    return _described_user(name, None, known[name])


def _quoting(code: ErrorCode, message: str, name: str) -> Refusal:
    """Return a refusal that quotes the name, truncated to the maximum length that can be
    encoded."""
    return Refusal(code, f"{message}: {name}"[:MAX_SENTENCE])


def _described_user(user: str, refusal: Refusal | None, infos: _Infos = ()) -> _Described:
    return _Described(
        user=user,
        error_code=refusal.code if refusal else ErrorCode.NONE,
        error_message=refusal.message if refusal else "",
        credential_infos=infos,
    )


def alter(
    request: messages.AlterUserScramCredentialsRequest, store: CredentialStore, *, authorized: bool
) -> messages.AlterUserScramCredentialsResponse:
    """Delete and set credentials. `authorized` is True if the principal has Alter on the cluster.

    Valid changes are made in one transaction; the others are reported per user. Waits for the disk.
    """
    if not authorized:
        return refused_scram_changes(request)
    try:
        existing = (
            frozenset(store.credential_snapshot().credentials) if request.deletions else frozenset()
        )
    except StoreError as problem:
        unknown = Refusal(*refusal_of(problem))
        return _altered((user, unknown) for user in _users(request))
    accepted, refused = _judged(request, existing)
    deletions = [_key(c) for c in accepted.values() if isinstance(c, _Deletion)]
    upserts = dict(_verifier(c) for c in accepted.values() if isinstance(c, _Upsertion))
    try:
        missing = store.alter_credentials(delete=deletions, upsert=upserts) if accepted else ()
    except StoreError as problem:
        refused |= dict.fromkeys(accepted, Refusal(*refusal_of(problem)))
    else:
        # Happens only if another connection deleted the user in the meantime
        refused |= {user: _NOTHING_TO_DELETE for user, _ in missing}
    done = ((user, None) for user in accepted if user not in refused)
    return _altered((*done, *refused.items()))


_Deletion = messages.AlterUserScramCredentialsRequest.ScramCredentialDeletion
_Upsertion = messages.AlterUserScramCredentialsRequest.ScramCredentialUpsertion
_Change = _Deletion | _Upsertion


def _changes(request: messages.AlterUserScramCredentialsRequest) -> Iterator[_Change]:
    yield from request.deletions
    yield from request.upsertions


def _users(request: messages.AlterUserScramCredentialsRequest) -> Iterable[str]:
    return dict.fromkeys(change.name for change in _changes(request))


def _judged(
    request: messages.AlterUserScramCredentialsRequest, existing: frozenset[CredentialKey]
) -> tuple[dict[str, _Change], dict[str, Refusal]]:
    """Return the valid changes, at most one per user, and the refusals of the other users.

    Only a user's first error is reported. If a request changes a user twice, both changes are
    invalid.
    """
    accepted: dict[str, _Change] = {}
    refused: dict[str, Refusal] = {}
    for change in _changes(request):
        user = change.name
        if user in refused:
            continue
        if accepted.pop(user, None):
            refused[user] = _TWICE
        elif refusal := _refusal(change, existing):
            refused[user] = refusal
        else:
            accepted[user] = change
    return accepted, refused


def _refusal(change: _Change, existing: frozenset[CredentialKey]) -> Refusal | None:
    if not change.name:
        return _NO_USER
    if ScramMechanism.from_code(change.mechanism) is None:
        return _UNKNOWN_MECHANISM
    if isinstance(change, _Deletion):
        return None if _key(change) in existing else _NOTHING_TO_DELETE
    return _upsertion_refusal(change)


def _upsertion_refusal(change: _Upsertion) -> Refusal | None:
    if change.iterations < MIN_ITERATIONS:
        return _TOO_FEW
    if change.iterations > MAX_ITERATIONS:
        return _TOO_MANY
    if not change.salt:
        return _NO_SALT
    return None if change.salted_password else _NO_PASSWORD


def _key(change: _Change) -> CredentialKey:
    mechanism = ScramMechanism.from_code(change.mechanism)
    assert mechanism is not None, "refused before"
    return change.name, mechanism


def _verifier(change: _Upsertion) -> tuple[CredentialKey, ScramCredential]:
    key = _key(change)
    return key, ScramCredential.from_salted_password(
        key[1], change.salted_password, change.salt, change.iterations
    )


def _altered(
    results: Iterable[tuple[str, Refusal | None]],
) -> messages.AlterUserScramCredentialsResponse:
    return messages.AlterUserScramCredentialsResponse(
        results=tuple(
            messages.AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult(
                user=user,
                error_code=refusal.code if refusal else ErrorCode.NONE,
                error_message=refusal.message if refusal else None,
            )
            for user, refusal in results
        )
    )
