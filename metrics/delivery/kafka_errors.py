"""One-line explanations of librdkafka's errors about a topic."""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

_NOBODY: Final = "no broker answers; check the address, and how clients must connect"
_EXPLAINED: Final = {
    "UNKNOWN_TOPIC_OR_PART": "there is no such topic, or it may not be described",
    "TOPIC_AUTHORIZATION_FAILED": "there is no right on this topic for that",
    "CLUSTER_AUTHORIZATION_FAILED": "there is no right on the cluster for that",
    "TOPIC_ALREADY_EXISTS": "there is such a topic already",
    "INVALID_REPLICATION_FACTOR": "there are fewer brokers than replicas are asked for",
    "_TRANSPORT": _NOBODY,
    "_ALL_BROKERS_DOWN": _NOBODY,
    "_TIMED_OUT": "no broker answers in time",
}
_VAGUE: Final = ("_TRANSPORT", "_TIMED_OUT", "_ALL_BROKERS_DOWN")
"""Errors that mean only that there was no answer."""


class Problems:
    """Last problem of a client's connections, as reported to librdkafka's `error_cb`."""

    def __init__(self) -> None:
        self._last: KafkaError | None = None

    def note(self, error: "KafkaError") -> None:
        """Record a problem. A vague one (`_VAGUE`) never replaces a specific one."""
        if self._last is None or error.name() not in _VAGUE:
            self._last = error

    def explained(self, error: "KafkaError | None") -> str:
        """Return what a failure means; `error` None: there was no answer."""
        if (error is None or error.name() in _VAGUE) and self._last is not None:
            error = self._last
        if error is None:
            return _EXPLAINED["_TIMED_OUT"]
        return _EXPLAINED.get(error.name()) or error.str()
