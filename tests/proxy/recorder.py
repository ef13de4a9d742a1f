"""What the observer of a connection is told, as lines of a transcript."""

from dataclasses import dataclass, field

from proxy.connection.commands import CloseReason
from proxy.connection.connection import Connection
from sasl.states import Authenticated, Failed
from tests.proxy.frames_given import name_of


@dataclass
class Recorder:
    """Tells the transcript what the observer is told."""

    log: list[str]
    seen: list[Authenticated | Failed] = field(default_factory=list)

    def authenticated(self, _: Connection, session: Authenticated, now: float) -> None:
        assert session.authenticated_at == now
        self.seen.append(session)
        again = f" again ({session.reauthentications})" if session.reauthentications else ""
        self.log.append(f"authenticated {session.principal}{again}")

    def authentication_failed(self, _: Connection, failed: Failed, now: float) -> None:
        del now
        self.seen.append(failed)
        self.log.append(f"failed {failed.reason}")

    def expired(self, _: Connection, session: Authenticated, api_key: int, now: float) -> None:
        del now
        self.log.append(f"expired {session.enforcement} by {name_of(api_key)}")

    def logged_in(self, *, again: bool) -> None:
        self.log.append("logged in again" if again else "logged in")

    def login_failed(self, _: Connection, reason: str, *, again: bool) -> None:
        self.log.append(f"login failed{' again' * again}: {reason}")

    def closed(self, _: Connection, reason: CloseReason, now: float) -> None:
        del now
        self.log.append(f"closed {reason}")
