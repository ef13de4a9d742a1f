"""Errors of the admin client: one class per kind, one root."""

from collections.abc import Mapping
from typing import ClassVar, Final

from kio.schema.errors import ErrorCode

from proxy.errors import ProxyError


class AdminError(ProxyError):
    """Root of the errors of `proxy.admin`, except those in its arguments."""


class BrokerUnavailable(AdminError):
    """No broker could be reached, or one did not answer correctly or in time.

    The request may have been carried out or not.
    """


class KafkaError(AdminError):
    """The broker, or the proxy, answered with an error."""

    default_code: ClassVar[ErrorCode] = ErrorCode.unknown_server_error

    def __init__(self, message: str | None = None, code: ErrorCode | int | None = None) -> None:
        code = self.default_code if code is None else code
        name = code.name.upper() if isinstance(code, ErrorCode) else f"error {code}"
        super().__init__(f"{name}: {message}" if message else name)
        self.code: ErrorCode | int = code
        """Kafka's error code; a plain number if this program does not know it."""
        self.message = message
        """Message of the broker; None if it sent none."""


class AuthenticationFailed(KafkaError):
    """The broker refused the login."""

    default_code = ErrorCode.sasl_authentication_failed


class AuthorizationFailed(KafkaError):
    """The principal lacks Describe or Alter on the cluster."""

    default_code = ErrorCode.cluster_authorization_failed


class SecurityDisabled(KafkaError):
    """The broker has no authorizer, so no ACLs."""

    default_code = ErrorCode.security_disabled


class InvalidRequest(KafkaError):
    """The request is invalid."""

    default_code = ErrorCode.invalid_request


class PolicyViolation(KafkaError):
    """The request exceeds a limit of the broker."""

    default_code = ErrorCode.policy_violation


class UnsupportedVersion(KafkaError):
    """The broker is too old, or too new, for this request."""

    default_code = ErrorCode.unsupported_version


_CLASSES: Final[Mapping[ErrorCode, type[KafkaError]]] = {
    one.default_code: one
    for one in (
        AuthenticationFailed,
        AuthorizationFailed,
        SecurityDisabled,
        InvalidRequest,
        PolicyViolation,
        UnsupportedVersion,
    )
} | {
    ErrorCode.illegal_sasl_state: AuthenticationFailed,
    ErrorCode.unsupported_sasl_mechanism: AuthenticationFailed,
}


def kafka_error(code: ErrorCode | int, message: str | None) -> KafkaError | None:
    """Return the error for an error code in a response; None for success."""
    if code == ErrorCode.none:
        return None
    kind = _CLASSES.get(code, KafkaError) if isinstance(code, ErrorCode) else KafkaError
    return kind(message or None, code)
