"""Errors of the admin client: one class per kind, one root."""

from collections.abc import Mapping
from typing import ClassVar, Final

from kio.schema.errors import ErrorCode

from proxy.errors import ProxyError


class AdminError(ProxyError):
    """Root of what `proxy.admin` raises, except for mistakes in its arguments."""


class BrokerUnavailable(AdminError):
    """No broker could be reached, or one did not answer correctly or in time.

    It is not known whether the request was carried out.
    """


class KafkaError(AdminError):
    """The broker, or the proxy, answered with an error."""

    default_code: ClassVar[ErrorCode] = ErrorCode.unknown_server_error

    def __init__(self, message: str | None = None, code: ErrorCode | int | None = None) -> None:
        code = self.default_code if code is None else code
        name = code.name.upper() if isinstance(code, ErrorCode) else f"error {code}"
        super().__init__(f"{name}: {message}" if message else name)
        self.code: ErrorCode | int = code
        """Kafka's error code; a plain number where this program is too old to know it."""
        self.message = message
        """The broker's own message, possibly empty."""


class AuthenticationFailed(KafkaError):
    """The login was refused."""

    default_code = ErrorCode.sasl_authentication_failed


class AuthorizationFailed(KafkaError):
    """The principal may not do this: Describe or Alter on the cluster is missing."""

    default_code = ErrorCode.cluster_authorization_failed


class SecurityDisabled(KafkaError):
    """There is no authorizer."""

    default_code = ErrorCode.security_disabled


class InvalidRequest(KafkaError):
    """The request is invalid."""

    default_code = ErrorCode.invalid_request


class PolicyViolation(KafkaError):
    """The request exceeds what the broker does at once."""

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
    """Return what an error code in a response stands for; None: success."""
    if code == ErrorCode.none:
        return None
    kind = _CLASSES.get(code, KafkaError) if isinstance(code, ErrorCode) else KafkaError
    return kind(message or None, code)
