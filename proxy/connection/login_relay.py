"""Upstream part of a relayed login: what waits for a connection, and answers on a side connection.

No sockets, no clock. Laws:

- One message of a login is under way at a time: its client is held (`PauseReason.LOGIN`) until the
  broker has answered.
- On the connection of the requests, answers come in the order of the requests, as all do
  (`proxy.connection.inflight`). A side connection carries one login and nothing else, so its
  answers are cut here.
- A side connection is bounded in time (`ends_at`) and in bytes (`MAX_RESPONSE_BYTES`), and what
  comes on it unasked is a fault of the broker.
- A broker that says which node it is (KIP-1242) is asked once on the connection of the requests,
  and on each side connection behind its login: another node there fails the re-authentication.
- A client that wants a broker which is not known logs in at another one (`LoginRelay.wanted`).
  Behind the login the proxy asks that one for the cluster's brokers, and closes: the client
  reconnects, and its broker is known then. None of its requests is forwarded.
"""

from collections.abc import Callable
from math import inf
from typing import Final

from proxy.connection.frames import RESPONSE_HEAD, SIZE, Bytes
from proxy.connection.inflight import ASKED_ID
from proxy.connection.interfaces import UpstreamBroker
from proxy.connection.verdicts import Relay
from proxy.errors import BrokerFault
from proxy.wire.api_versions import BrokerIdentity
from proxy.wire.apis import API_VERSIONS
from proxy.wire.identification import Identification, Query, identify, meaning, names_itself
from proxy.wire.primitives import INT16
from proxy.wire.request import CLIENT_ID, request_frame
from sasl.messages import MAX_RESPONSE_BYTES

CONFIRMATION: Final = request_frame(API_VERSIONS, 0, ASKED_ID, CLIENT_ID, b"")
"""Request that a broker answers without an error before a login, or after it, but not within."""
CONFIRM_SECONDS: Final = 10.0
"""Seconds for the answer to it."""
ABSENT_SECONDS: Final = 3.0
"""Seconds after which a client is closed whose broker the cluster does not have, or not now: each
time that it comes back costs a login."""
MAX_NODES_TRIED: Final = 16
"""Largest number of nodes that a broker is asked for on a client's connection."""


class LoginRelay:
    """Login of one client, on its way to the broker. See the laws at the head of this module."""

    __slots__ = (
        "_data",
        "_expected",
        "_identification",
        "confirmation",
        "ends_at",
        "is_confirming",
        "is_identified",
        "is_moving",
        "to_side",
        "unsent",
        "waits_since",
        "wanted",
    )

    def __init__(self, wanted: int | None = None) -> None:
        self.wanted = wanted
        """Id of the broker that the client wants, and that is not known; None if it is known."""
        self.unsent: Relay | None = None
        """Message that waits for its connection; None: none does."""
        self.waits_since = 0.0
        """Time at which the login began to wait for the client's next message, in monotonic
        seconds; bytes of a part of it change nothing."""
        self.to_side: Callable[[Bytes], None] | None = None
        """Writes to the side connection; None: there is none."""
        self.ends_at = inf
        """Time at which a re-authentication aside is over, in monotonic seconds; infinity: there is
        none."""
        self.is_moving = False
        """True if requests move to the side connection, and those in flight are waited for."""
        self.is_confirming = False
        """True while the broker is asked whether a login is complete."""
        self.confirmation = CONFIRMATION
        """Request that a broker answers without an error behind a login, and on a side connection
        only the broker of the requests, if it says which one it is."""
        self.is_identified = False
        """True if the broker of the requests was asked which one it is, and answered."""
        self._identification: Identification | None = None
        self._expected: int | None = None
        """Correlation id of the answer on the side connection; negative: it has none, to a raw
        token; None: no answer is expected."""
        self._data = bytearray()

    def identify(self, target: UpstreamBroker) -> Query | None:
        """Begin to find out which broker the requests go to; return what to ask it.

        None: it does not say, or it was asked before.
        """
        offered = target.offered
        if self.is_identified or self.is_identifying or offered is None:
            return None
        if not names_itself(offered):
            self.is_identified = True
            return None
        said = next(iter(target.identity.node_ids), None)
        self._identification = identify(offered, target.address, said, MAX_NODES_TRIED)
        return self._next_query(None)

    @property
    def is_identifying(self) -> bool:
        """True while the broker of the requests is asked which one it is."""
        return self._identification is not None

    def identified(self, content: bytes) -> Query | None:
        """Take an answer from behind its size; return what to ask next, None: nothing.

        Raises BrokerFault.
        """
        return self._next_query(content[SIZE.size :])

    def _next_query(self, answer: bytes | None) -> Query | None:
        steps = self._identification
        assert steps is not None
        try:
            return next(steps) if answer is None else steps.send(answer)
        except StopIteration as found:
            self._identification = None
            self.is_identified = True
            identity: BrokerIdentity = found.value
            for node_id in identity.node_ids:
                assert identity.cluster_id is not None
                api_key, version, body = meaning(identity.cluster_id, node_id)
                self.confirmation = request_frame(api_key, version, ASKED_ID, CLIENT_ID, body)
            return None

    def ask_aside(self, frame: bytes, correlation_id: int | None) -> None:
        """Send a message on the side connection."""
        assert self.to_side is not None
        self._expected = -1 if correlation_id is None else correlation_id & 0xFFFFFFFF
        self.to_side(frame)

    def side_answer(self, data: Bytes) -> bytes | None:
        """Take bytes of the side connection; return an answer from behind its size, or None if it
        is not all there. Raises BrokerFault."""
        if self._expected is None:
            raise BrokerFault("a response that nobody asked for")
        self._data += data
        if len(self._data) < SIZE.size:
            return None
        (size,) = SIZE.unpack_from(self._data)
        if not 0 <= size <= MAX_RESPONSE_BYTES or len(self._data) > SIZE.size + size:
            raise BrokerFault("an answer to a login of an impossible size, or more than one")
        if len(self._data) < SIZE.size + size:
            return None
        if self._expected >= 0:
            if size < SIZE.size:
                raise BrokerFault("an answer to a login of an impossible size")
            _, correlation_id = RESPONSE_HEAD.unpack_from(self._data)
            if correlation_id & 0xFFFFFFFF != self._expected:
                raise BrokerFault("an answer to another request")
        content = bytes(self._data[SIZE.size :])
        self._data.clear()
        self._expected = None
        return content

    def end_side(self) -> None:
        """The side connection is closed, or has become that of the requests."""
        self.to_side = self._expected = None
        self.ends_at = inf
        self.is_moving = False
        self._data.clear()


def confirmation_error(content: bytes) -> int:
    """Return the error code of the answer to `CONFIRMATION`. Raises BrokerFault."""
    if len(content) < SIZE.size + INT16.size:
        raise BrokerFault("an answer that is too short")
    error_code: int = INT16.unpack_from(content, SIZE.size)[0]
    return error_code
