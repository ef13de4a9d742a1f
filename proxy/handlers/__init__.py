"""Requests answered from the store: ACLs, quotas, SCRAM users. Called outside the event loop."""

from collections.abc import Callable
from time import thread_time_ns
from typing import Final

from proxy.connection.commands import AnswerFromStore
from proxy.handlers import acls as acl_api
from proxy.handlers import quotas as quota_api
from proxy.handlers import scram_users
from proxy.handlers.acls import Acls
from proxy.store import Store
from proxy.store.interface import UserStore
from proxy.wire.apis import (
    ACL_APIS,
    ALTER_CLIENT_QUOTAS,
    ALTER_USER_SCRAM_CREDENTIALS,
    CREATE_ACLS,
    DELETE_ACLS,
    QUOTA_APIS,
)

CHANGES: Final = frozenset(
    {CREATE_ACLS, DELETE_ACLS, ALTER_CLIENT_QUOTAS, ALTER_USER_SCRAM_CREDENTIALS}
)
"""API keys of the requests that change the store."""


def answer(
    question: AnswerFromStore, store: Store, users: UserStore, acls: Acls | None
) -> tuple[bytes | Callable[[], bytes], int]:
    """Return the response body, or a function that returns it but may take long and does not use
    the store; and the CPU time that it took in ns.

    Pass None for `acls` without an authorizer. Raises ClientFault if the request does not parse or
    is too large, and StoreError if the store cannot be read. The response to a change that cannot
    be stored has an error for each item.
    """
    began = thread_time_ns()
    request, authorized = question.request, question.authorized
    key, version, body = request.api_key, request.api_version, request.body
    found: bytes | Callable[[], bytes]
    if key in ACL_APIS:
        found = acl_api.answer(key, version, body, acls, authorized=authorized)
    elif key in QUOTA_APIS:
        found = quota_api.answer(key, version, body, store, authorized=authorized)
    else:
        found = scram_users.answer(key, body, users, authorized=authorized)
    return found, thread_time_ns() - began
