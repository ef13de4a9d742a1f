"""The strict codec of `proxy.wire`, for entities of kio: what it reads and writes must be kio's."""

from typing import Any

from kio.static.constants import EntityType

from proxy.wire import codec
from tests.support import kio_messages
from tests.support.messages import request_kind, response_kind


def decode(schema: Any, data: bytes, position: int = 0) -> Any:
    """Raises Malformed."""
    api_key, version = int(schema.__api_key__), int(schema.__version__)
    is_request = schema.__type__ is EntityType.request
    kind = request_kind(api_key) if is_request else response_kind(api_key)
    entity = codec.decode(kind, version, data, position)
    return kio_messages.decode(schema, codec.encode(entity, version))


def encode(entity: Any) -> bytes:
    schema: Any = type(entity)
    version = int(schema.__version__)
    is_request = schema.__type__ is EntityType.request
    of = request_kind if is_request else response_kind
    kind = of(int(schema.__api_key__))
    return codec.encode(codec.decode(kind, version, kio_messages.encode(entity)), version)
