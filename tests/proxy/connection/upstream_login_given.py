"""A broker that wants a login of the proxy, and answers as it is told."""

from collections.abc import Callable

from proxy.connection.commands import Close, CloseReason, DeriveKeys
from proxy.connection.connection import Connection
from proxy.connection.upstream_login import UpstreamLogin
from sasl.login import ClientExchange, PlainClient
from sasl.messages import authenticate_response, handshake_response
from tests.proxy.frames_given import fetch, response
from tests.proxy.playbook import Play, logged_in

PLAIN = PlainClient("proxy", "secret")


def waiting_play() -> Play:
    """A client has asked for something, and the broker is connected but knows nobody yet."""
    play = logged_in(Play(logs_in=True))
    play.client(fetch(3))
    assert play.take() == ["connect", "GetIdentity"]
    return play


def on_login(play: Play, what: Callable[[UpstreamLogin, float], None]) -> None:
    def tell(connection: Connection, now: float) -> None:
        assert connection.upstream_login is not None
        what(connection.upstream_login, now)

    play.tell(tell)


def identify(play: Play, exchange: ClientExchange = PLAIN) -> None:
    on_login(play, lambda login, now: login.identified(exchange, now))


def derived(play: Play, derive: DeriveKeys) -> None:
    token = derive.work()
    on_login(play, lambda login, now: login.derived(token, now))


def offers(*mechanisms: str, error_code: int = 0) -> bytes:
    return response(0, handshake_response(error_code, mechanisms))


def lets_in(lifetime_ms: int = 0, *, token: bytes = b"", error_code: int = 0) -> bytes:
    body = authenticate_response(
        2,
        error_code=error_code,
        error_message="no such \x1b[31muser\n" if error_code else "",
        auth_bytes=token,
        session_lifetime_ms=lifetime_ms,
    )
    return response(0, b"\0" + body)


def log_in(play: Play, lifetime_ms: int = 0) -> None:
    """Let the broker say yes to all."""
    identify(play)
    play.broker(offers("PLAIN"))
    play.broker(lets_in(lifetime_ms))


def connected(lifetime_ms: int = 0) -> Play:
    """A client whose first request was answered."""
    play = waiting_play()
    log_in(play, lifetime_ms)
    play.broker(response(3))
    play.take()
    return play


def close_reason(play: Play) -> CloseReason:
    [close] = [one for one in play.commands if isinstance(one, Close)]
    return close.reason
