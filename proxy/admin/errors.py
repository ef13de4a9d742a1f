"""Errors of the admin client: one class per kind, one root."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Generic, TypeVar

from proxy.errors import ProxyError
from proxy.wire.error_codes import ErrorCode

T = TypeVar("T")

_KNOWN: Final[Mapping[int, ErrorCode]] = {code.value: code for code in ErrorCode}


class AdminError(ProxyError):
    """Root of the errors of `proxy.admin`, except those in its arguments."""


class BrokerUnavailable(AdminError):
    """No broker could be reached, or one did not answer correctly or in time.

    The request may have been carried out or not.
    """


class KafkaError(AdminError):
    """The broker, or the proxy, answered with an error."""

    default_code: ClassVar[ErrorCode] = ErrorCode.UNKNOWN_SERVER_ERROR

    def __init__(self, message: str | None = None, code: int | None = None) -> None:
        code = self.default_code if code is None else _KNOWN.get(code, code)
        name = code.name if isinstance(code, ErrorCode) else f"error {code}"
        super().__init__(f"{name}: {message}" if message else name)
        self.code: ErrorCode | int = code
        """Kafka's error code; a plain number if this program does not know it."""
        self.message = message
        """Message of the broker; None if it sent none."""


class AuthenticationFailed(KafkaError):
    """The broker refused the login."""

    default_code = ErrorCode.SASL_AUTHENTICATION_FAILED


class AuthorizationFailed(KafkaError):
    """The principal lacks Describe or Alter on the cluster."""

    default_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


class SecurityDisabled(KafkaError):
    """The broker has no authorizer, so no ACLs."""

    default_code = ErrorCode.SECURITY_DISABLED


class InvalidRequest(KafkaError):
    """The request is invalid."""

    default_code = ErrorCode.INVALID_REQUEST


class PolicyViolation(KafkaError):
    """The request exceeds a limit of the broker."""

    default_code = ErrorCode.POLICY_VIOLATION


class UnsupportedVersion(KafkaError):
    """The broker is too old, or too new, for this request."""

    default_code = ErrorCode.UNSUPPORTED_VERSION


_CLASSES: Final[Mapping[int, type[KafkaError]]] = {
    **{
        one.default_code: one
        for one in (
            AuthenticationFailed,
            AuthorizationFailed,
            SecurityDisabled,
            InvalidRequest,
            PolicyViolation,
            UnsupportedVersion,
        )
    },
    ErrorCode.ILLEGAL_SASL_STATE: AuthenticationFailed,
    ErrorCode.UNSUPPORTED_SASL_MECHANISM: AuthenticationFailed,
}


def kafka_error(code: int, message: str | None) -> KafkaError | None:
    """Return the error for an error code in a response; None for success."""
    if code == ErrorCode.NONE:
        return None
    return _CLASSES.get(code, KafkaError)(message or None, code)


@dataclass(frozen=True)
class ChangeResult(Generic[T]):
    """Result of a change of several items."""

    errors: Mapping[T, KafkaError | None]

    def values(self) -> Mapping[T, KafkaError | None]:
        """Return the error of each item; None for success."""
        return self.errors

    def all(self) -> None:
        """Raise the first error, if any."""
        for error in self.errors.values():
            if error is not None:
                raise error
