"""A Kafka client with one socket that sends and receives single frames.

Messages are built and read by `tests.support.messages`.
"""

import enum
import io
import socket
import ssl
import struct
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self

from kio.records.schema import NewRecordBatch, Record
from kio.records.writers import write_new_batch
from kio.static.primitive import TZAwareMicros, i8, i16, i32, i64

from tests.support.kio_messages import request_type
from tests.support.messages import read_response, request_body

API_VERSIONS = 18
_SIZE = struct.Struct(">i")
_REQUEST_HEADER = struct.Struct(">hhi")

#: Long enough for a busy machine.
ANSWER_DEADLINE_SECONDS = 60.0


class Address(NamedTuple):
    """Address of a server."""

    host: str
    port: int
    ca: str | None = None
    """PEM file of the trusted authority; None without TLS."""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Outcome(enum.Enum):
    """What happened instead of a frame."""

    CLOSED = "closed"
    SILENT = "silent"


def is_flexible(api_key: int, version: int) -> bool:
    """Whether requests of this version have tagged fields; unknown versions do."""
    try:
        return bool(request_type(api_key, version).__flexible__)
    except LookupError:
        return True
    except RuntimeError:  # kio's own index errors
        return True


def request_header(
    api_key: int, version: int, correlation_id: int, client_id: str | None, *, flexible: bool
) -> bytes:
    """Request header version 1, or 2 when flexible."""
    header = _REQUEST_HEADER.pack(api_key, version, correlation_id)
    if client_id is None:
        header += b"\xff\xff"
    else:
        encoded = client_id.encode()
        header += struct.pack(">h", len(encoded)) + encoded
    return header + b"\x00" if flexible else header


class WireClient:
    """One connection without retries and negotiation; every wait has a timeout."""

    def __init__(self, address: Address, certificate: str | None = None) -> None:
        """`certificate`: PEM file of a client certificate and its key, or None."""
        self._socket = socket.create_connection(address[:2], timeout=ANSWER_DEADLINE_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if address.ca is not None:
            context = ssl.create_default_context(cafile=address.ca)
            if certificate is not None:
                context.load_cert_chain(certificate)
            self._socket = context.wrap_socket(self._socket, server_hostname=address.host)
        self._received = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection at once."""
        self._socket.close()

    def finish_sending(self) -> None:
        """Send FIN and keep reading."""
        socket.socket.shutdown(self._socket, socket.SHUT_WR)  # TLS's would also end reading

    def raw(self, data: bytes) -> None:
        """Send bytes as they are; errors show up when receiving."""
        try:
            self._socket.sendall(data)
        except (ConnectionError, TimeoutError, ssl.SSLError):
            return

    def send_payload(self, payload: bytes) -> None:
        """Send a size and these bytes: a frame without a header, like raw SASL tokens."""
        self.raw(_SIZE.pack(len(payload)) + payload)

    def send_frame(
        self,
        api_key: int,
        version: int,
        correlation_id: int,
        client_id: str | None,
        body: bytes,
        *,
        flexible: bool | None = None,
    ) -> None:
        """Sends one request."""
        if flexible is None:
            flexible = is_flexible(api_key, version)
        header = request_header(api_key, version, correlation_id, client_id, flexible=flexible)
        self.send_payload(header + body)

    def receive(self, deadline_seconds: float = ANSWER_DEADLINE_SECONDS) -> bytes | Outcome:
        """Return the next frame without its size, or the outcome at the deadline."""
        deadline = time.monotonic() + deadline_seconds
        while True:
            frame = self._try_frame()
            if frame is not None:
                return frame
            outcome = self._read_more(deadline)
            if outcome is not None:
                return outcome

    def _try_frame(self) -> bytes | None:
        if len(self._received) < _SIZE.size:
            return None
        end = _SIZE.size + _SIZE.unpack_from(self._received)[0]
        if len(self._received) < end:
            return None
        frame, self._received = self._received[_SIZE.size : end], self._received[end:]
        return frame

    def _read_more(self, deadline: float) -> Outcome | None:
        left = deadline - time.monotonic()
        if left <= 0:
            return Outcome.SILENT
        self._socket.settimeout(left)
        try:
            data = self._socket.recv(1 << 20)
        except TimeoutError:
            return Outcome.SILENT
        except (ConnectionError, ssl.SSLError):
            return Outcome.CLOSED
        if not data:
            return Outcome.CLOSED
        self._received += data
        return None


def ask(
    address: Address, api_key: int, version: int, fields: Mapping[str, object] | None = None
) -> Any:
    """Send one request on a new connection; raise ConnectionError without a response."""
    frame = ask_for_bytes(address, api_key, version, fields)
    return read_response(api_key, version, frame)[1]


def ask_for_bytes(
    address: Address, api_key: int, version: int, fields: Mapping[str, object] | None = None
) -> bytes:
    """Like `ask`, but return the frame's bytes."""
    with WireClient(address) as client:
        body = request_body(api_key, version, **(fields or {}))
        client.send_frame(api_key, version, 1, "harness", body)
        frame = client.receive()
    if isinstance(frame, Outcome):
        raise ConnectionError(f"{frame.value} instead of an answer to API {api_key} at {address}")
    return frame


def api_versions_fields(name: str = "harness", version: str = "1.0") -> dict[str, object]:
    """ApiVersions: v0 to v2 are empty."""
    return {"client_software_name": name, "client_software_version": version}


def metadata_fields(topics: Sequence[str] | None = ()) -> dict[str, object]:
    """Metadata without creating anything; no topics means brokers only, None means all."""
    entries = None if topics is None else [{"topic_id": None, "name": name} for name in topics]
    return {
        "topics": entries,
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
        "include_cluster_authorized_operations": False,
    }


def record_batch(*values: bytes) -> bytes:
    """A batch of plain records, as a producer without idempotence sends it."""
    timestamp = TZAwareMicros.parse(datetime.now(UTC))
    records = tuple(
        Record(
            attributes=i8(0),
            timestamp=timestamp,
            offset=i64(offset),
            key=None,
            value=value,
            headers=(),
        )
        for offset, value in enumerate(values)
    )
    batch = NewRecordBatch(
        producer_id=i64(-1),
        producer_epoch=i16(-1),
        base_sequence=i32(-1),
        records=records,
        attributes=i16(0),
    )
    buffer = io.BytesIO()
    write_new_batch(buffer, batch)
    return buffer.getvalue()
