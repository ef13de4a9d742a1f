"""Generated responses of kio's schemas, their bytes, and the addresses in them."""

import re
import typing
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.static.primitive import Records, TZAware, i32Timedelta

from proxy.wire import apis
from proxy.wire.primitives import uvarint
from proxy.wire.walks import TAGGED, UNKNOWN_TAG, LongFrameEndpoints
from tests.support.kio_messages import response_type
from tests.support.messages import read_response, response_bytes

CORRELATION_ID = 0x01020304

# Entities are kio's generated classes, one per API and version: `Any` is the honest type here.
Entity = Any
Resolve = Callable[[int, str, int], tuple[str, int] | None]


def _texts() -> st.SearchStrategy[str]:
    lengthy = st.integers(120, 140).map(lambda length: "h" * length)
    return st.text("abcé.-0", max_size=8) | lengthy


def _integers(bits: int, signed: bool = True) -> st.SearchStrategy[int]:
    if not signed:
        return st.integers(0, 2**bits - 1)
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "int8": _integers(8),
    "int16": _integers(16),
    "uint16": _integers(16, signed=False),
    "int32": _integers(32),
    "int64": _integers(64),
    "bool": st.booleans(),
    "string": _texts(),
    "uuid": st.uuids(),
    "error_code": st.sampled_from((ErrorCode.none, ErrorCode.not_leader_or_follower)),
    "timedelta_i32": st.integers(0, 2**31 - 1).map(
        lambda ms: i32Timedelta.parse(timedelta(milliseconds=ms))
    ),
    "datetime_i64": st.integers(0, 2**33).map(
        lambda s: TZAware.parse(datetime.fromtimestamp(s, UTC))
    ),
    "bytes": st.binary(max_size=20),
    "float64": st.floats(allow_nan=False),
    "records": (st.binary(max_size=40) | st.integers(100, 20_000).map(bytes)).map(Records),
}


@cache
def entities(schema: type[Any]) -> st.SearchStrategy[Entity]:
    """Strategy for any entity of a schema, with arrays of up to three items."""
    return st.builds(schema, **{field.name: _values(field) for field in fields(schema)})


def _values(field: Any) -> st.SearchStrategy[Any]:
    arguments = typing.get_args(field.type)
    nullable = type(None) in arguments
    kinds = [kind for kind in arguments if kind not in (type(None), ...)] or [field.type]
    kind: Any = kinds[0]
    is_array = typing.get_origin(field.type) is tuple or typing.get_origin(kind) is tuple
    if typing.get_origin(kind) is tuple:
        kind = typing.get_args(kind)[0]
    value = (
        entities(kind) if hasattr(kind, "__type__") else PRIMITIVES[field.metadata["kafka_type"]]
    )
    if is_array:
        value = st.lists(value, max_size=3).map(tuple)
    return value | st.none() if nullable else value


def responses(api_key: int, version: int) -> st.SearchStrategy[Entity]:
    schema: Any = response_type(api_key, version)
    return entities(schema)


def encode(entity: Entity) -> bytes:
    """A response from its correlation id on."""
    return response_bytes(entity, CORRELATION_ID)


def decode(api_key: int, version: int, body: bytes) -> Entity:
    """Decode a complete response without trailing bytes."""
    correlation_id, entity = read_response(api_key, version, body)
    assert correlation_id == CORRELATION_ID
    return entity


def resolved(entity: Entity, resolve: Resolve) -> Entity:
    """Expected result of a rewrite, computed on decoded values."""
    if entity.__api_key__ == apis.FIND_COORDINATOR:
        if hasattr(entity, "coordinators"):
            coordinators = tuple(_coordinator(one, resolve) for one in entity.coordinators)
            return replace(entity, coordinators=coordinators)
        return _coordinator(entity, resolve)
    if entity.__api_key__ == apis.DESCRIBE_QUORUM:
        return replace(entity, nodes=tuple(replace(node, listeners=()) for node in entity.nodes))
    if getattr(entity, "endpoint_type", 1) != 1:
        return replace(entity, brokers=())
    name = "brokers" if hasattr(entity, "brokers") else "node_endpoints"
    shown = []
    for node in getattr(entity, name):
        node_id = node.broker_id if hasattr(node, "broker_id") else node.node_id
        address = resolve(node_id, node.host, node.port)
        if address is not None:
            shown.append(replace(node, host=address[0], port=address[1]))
    return replace(entity, **{name: tuple(shown)})


def _coordinator(entity: Entity, resolve: Resolve) -> Entity:
    if entity.error_code is ErrorCode.none:
        address = resolve(entity.node_id, entity.host, entity.port)
        if address is not None:
            return replace(entity, host=address[0], port=address[1])
        message = {"error_message": None} if hasattr(entity, "error_message") else {}
        entity = replace(entity, error_code=ErrorCode.coordinator_not_available, **message)
    return replace(entity, node_id=-1, host="", port=-1)


def paths_of_addresses(schema: type[Any], path: str = "") -> Iterator[str]:
    """Paths of addresses in a schema: entities with both a host and a port."""
    names = {field.name for field in fields(schema)}
    if any(re.search("host", name) for name in names) and any("port" in name for name in names):
        yield path or "/"
    for field in fields(schema):
        for kind in _nested(field.type):
            yield from paths_of_addresses(kind, f"{path}/{field.name}")


def _nested(kind: Any) -> Iterator[type[Any]]:
    if is_dataclass(kind):
        assert isinstance(kind, type)
        yield kind
    for argument in typing.get_args(kind):
        yield from _nested(argument)


def pass_through(api_key: int, version: int, body: bytes, cuts: list[int]) -> bytes:
    """Bytes that a client receives for a body that arrives in pieces."""
    follower = LongFrameEndpoints(api_key, version, len(body))
    received = bytearray()
    for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True):
        chunk = bytearray(body[start:end])
        follower.feed(memoryview(chunk))
        received += chunk
    return bytes(received)


def judge(entity: Entity, body: bytes, received: bytes) -> None:
    """Compare with the response without endpoints, as kio rejects unknown tags."""
    assert len(received) == len(body)
    if not entity.node_endpoints:
        assert received == body
        return
    bare = encode(replace(entity, node_endpoints=()))
    assert bare[-1] == 0, "no tagged field"
    assert received[: len(bare) + 1] == bare[:-1] + bytes((1, UNKNOWN_TAG)), "one unknown field"
    size, start = uvarint(received, len(bare) + 1)
    if entity.__api_key__ in TAGGED:
        assert received[len(bare) + 1 :] == body[len(bare) + 1 :]
    assert start + size == len(received), "which holds all the rest"
