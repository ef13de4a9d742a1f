"""Connection to ZooKeeper with kazoo, with readable errors."""

import logging
import socket
import ssl
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from proxy.config.model import Store as StoreSettings
from proxy.store.interface import StoreError
from proxy.store.zookeeper.changes import Create, Delete, Operation, Overtaken, Replace
from proxy.store.zookeeper.content import Node, Unanswered
from proxy.store.zookeeper.nodes import SECRET, USERS, Notification

MAX_REQUESTS: Final = 500
"""Maximum number of requests that are sent before waiting for the first answer."""

_quiet = logging.getLogger(f"{__name__}.kazoo")
"""Logger of kazoo, which at each attempt repeats errors that this module reports once."""
_quiet.setLevel(logging.CRITICAL)


class ZookeeperTree:
    """Tree of an ensemble: a `proxy.store.zookeeper.changes.WritableTree`."""

    def __init__(
        self,
        settings: StoreSettings,
        context: ssl.SSLContext | None,
        *,
        changed: Callable[[], None] = lambda: None,
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        """`context` is the TLS context. `changed` is called when watched names change, and `lost`
        when the connection or the session is lost, both on a separate thread.

        Raises StoreError if a password cannot be read.
        """
        import kazoo.exceptions
        from kazoo.client import KazooClient
        from kazoo.handlers.threading import KazooTimeoutError

        own = settings.zookeeper
        self._errors = kazoo.exceptions
        self._timed_out: type[Exception] = KazooTimeoutError
        self._timeout_s = own.session_timeout_ms / 1000
        self._secure = own.set_acl
        self._changed = changed
        hosts = settings.url.removeprefix("zookeeper://")
        # Like ZooKeeper's own client, so that one silent server leaves time for the others
        self._handler = _handler(context, self._timeout_s / (hosts.count(",") + 1))
        password = _password(settings)
        self._client: Any = KazooClient(
            hosts=hosts,
            timeout=self._timeout_s,
            handler=self._handler,
            logger=_quiet,
            use_ssl=context is not None,
            sasl_options={
                "mechanism": "DIGEST-MD5",
                "username": own.username,
                "password": password,
            }
            if own.sasl
            else None,
            auth_data=[("digest", f"{own.username}:{password}")]
            if password is not None and not own.sasl
            else None,
        )
        self._client.add_listener(lambda state: lost() if state != "CONNECTED" else None)

    def connect(self) -> None:
        """Connect. Raises StoreError."""
        connected = self._client.start_async()
        connected.wait(self._timeout_s)
        if not self._client.connected:
            refused = str(self._client.client_state) == "AUTH_FAILED"
            self.close()
            if refused:
                raise StoreError("ZooKeeper refused the login: check the user name and password")
            raise Unanswered(f"ZooKeeper does not answer{self._handler.reason()}")

    @property
    def is_closed(self) -> bool:
        """True if the connection was closed permanently, for example after a refused login."""
        return str(self._client.client_state) in ("AUTH_FAILED", "CLOSED")

    def close(self) -> None:
        """Close the connection."""
        with suppress(self._errors.KazooException):  # an attempt to connect may still run
            self._client.stop()
            self._client.close()

    def sync(self) -> None:
        """Wait until the server is up to date, so that later reads return data no older than this
        call. Raises StoreError."""
        self._results({USERS: self._client.sync_async(USERS)})

    def nodes(self, paths: Collection[str]) -> Mapping[str, Node]:
        """Return the nodes at these paths, without those that do not exist. Raises StoreError."""
        found = self._asked(paths, self._client.get_async)
        return {path: Node(data or b"", stat.version) for path, (data, stat) in found.items()}

    def children(
        self, paths: Collection[str], *, watched: bool = False
    ) -> Mapping[str, Collection[str]]:
        """Return the names of the nodes below these paths, without paths that do not exist."""
        if not watched:
            return self._asked(paths, self._client.get_children_async)
        return self._asked(
            paths, lambda path: self._client.get_children_async(path, watch=self._on_change)
        )

    def _on_change(self, _event: object) -> None:
        self._changed()

    def commit(self, operations: Sequence[Operation]) -> None:
        """Do all operations or no operation. Raises Overtaken and StoreError."""
        transaction = self._client.transaction()
        for one in operations:
            match one:
                case Create(path, data):
                    transaction.create(path, data, acl=self._acl(path))
                case Replace(path, data, version):
                    transaction.set_data(path, data, version)
                case Delete(path, version):
                    transaction.delete(path, version)
                case Notification(path, data):
                    transaction.create(path, data, acl=self._acl(path), sequence=True)
        with self._explained():
            results = transaction.commit_async().get(timeout=self._timeout_s)
        failed = [one for one in results if isinstance(one, Exception)]
        for error in failed:
            if isinstance(error, (self._errors.RolledBackError, self._errors.RuntimeInconsistency)):
                continue
            overtaken = (
                self._errors.BadVersionError,
                self._errors.NodeExistsError,
                self._errors.NoNodeError,
                self._errors.NotEmptyError,
            )
            if isinstance(error, overtaken):
                raise Overtaken
            raise StoreError(f"ZooKeeper refused the change: {self._reason(error)}")

    def _acl(self, path: str) -> Any:
        """Return the access control list of a new node, as Kafka's `ZkData.defaultAcls` does."""
        from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

        if not self._secure:
            return OPEN_ACL_UNSAFE
        return (
            CREATOR_ALL_ACL
            if path.startswith((USERS, SECRET))
            else CREATOR_ALL_ACL + READ_ACL_UNSAFE
        )

    def _asked(self, paths: Collection[str], ask: Callable[[str], Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        left = list(paths)
        while left:
            asked, left = left[:MAX_REQUESTS], left[MAX_REQUESTS:]
            found |= self._results({path: ask(path) for path in asked})
        return found

    def _results(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        found = {}
        for path, result in asked.items():
            with self._explained():
                try:
                    found[path] = result.get(timeout=self._timeout_s)
                except self._errors.NoNodeError:
                    continue
        return found

    @contextmanager
    def _explained(self) -> Iterator[None]:
        errors = self._errors
        try:
            yield
        except (self._timed_out, errors.ConnectionLoss, errors.SessionExpiredError) as error:
            raise Unanswered(f"ZooKeeper does not answer{self._handler.reason()}") from error
        except errors.KazooException as error:
            raise StoreError(f"ZooKeeper refused a request: {self._reason(error)}") from error

    def _reason(self, error: Exception) -> str:
        if isinstance(error, self._errors.NoAuthError):
            return "the proxy's user may not do it, by the access control list of the node"
        if isinstance(error, self._errors.AuthFailedError):
            return "the login failed: check the user name and password"
        return type(error).__name__


def _password(settings: StoreSettings) -> str | None:
    secret = settings.zookeeper.password
    if secret is None:
        return None
    try:
        return secret.read()
    except OSError as error:
        raise StoreError(f"{secret}: cannot be read: {error.strerror}") from None
    except ValueError as error:  # its text does not contain any of the secret
        problem = f"{secret} is not text" if isinstance(error, UnicodeError) else str(error)
        raise StoreError(problem) from None


def _handler(context: ssl.SSLContext | None, connect_s: float) -> Any:
    """Return a kazoo handler whose connections use this TLS context.

    An attempt to connect ends after `connect_s` seconds; kazoo would wait for the whole timeout.
    """
    from kazoo.handlers.threading import SequentialThreadingHandler

    class Handler(SequentialThreadingHandler):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self._problem = ""

        def reason(self) -> str:
            """Return the reason why the last connection failed, to be appended to a sentence."""
            return self._problem and f": {self._problem}"

        def create_connection(
            self, address: tuple[str, int], hostname: str, **_: object
        ) -> socket.socket:
            self._problem = ""
            try:
                return _connected(address, hostname, connect_s, context)
            except OSError as error:
                reason = getattr(error, "verify_message", None) or error.strerror or "no answer"
                self._problem = f"{hostname}:{address[1]}: {reason}"
                raise

    return Handler()


def _connected(
    address: tuple[str, int], hostname: str, timeout: float, context: ssl.SSLContext | None
) -> socket.socket:
    connection = socket.create_connection(address, timeout)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is None:
            return connection
        return context.wrap_socket(connection, server_hostname=hostname)
    except BaseException:
        connection.close()
        raise
