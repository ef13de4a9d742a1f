"""Messages as kio has them: a second reading of Kafka's definitions, beside `proxy.wire`.

kio has one frozen class per structure and version, and its own reader and writer. The modules of
this package have, in kio's style, what kio lacks: versions that Kafka dropped (`acl_v0`), those
that no Kafka has (`batch_describe`), and those of Kafka 4.4 (`kafka_4_4`).
"""

import io
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer

from tests.support.kio_messages import acl_v0, batch_describe, kafka_4_4


def _by_key_and_version(*messages: Any) -> Mapping[tuple[int, int], Any]:
    return {(int(one.__api_key__), int(one.__version__)): one for one in messages}


_OWN_REQUESTS: Final = _by_key_and_version(
    *acl_v0.REQUESTS, *batch_describe.REQUESTS, *kafka_4_4.REQUESTS
)
_OWN_RESPONSES: Final = _by_key_and_version(
    *acl_v0.RESPONSES, *batch_describe.RESPONSES, *kafka_4_4.RESPONSES
)


def is_of_kio(api_key: int, api_version: int) -> bool:
    """Whether kio itself knows the version."""
    return api_key in api_key_map and api_version in schema_name_map[api_key_map[api_key]]


@cache
def request_type(api_key: int, api_version: int) -> Any:
    own = _OWN_REQUESTS.get((api_key, api_version))
    return own or load_request_schema(api_key, api_version)


@cache
def response_type(api_key: int, api_version: int) -> Any:
    own = _OWN_RESPONSES.get((api_key, api_version))
    return own or load_response_schema(api_key, api_version)


def encode(entity: Any) -> bytes:
    """A message without its header."""
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def decode(schema: Any, data: bytes, position: int = 0) -> Any:
    """A message without its header; what follows is ignored."""
    return entity_reader(schema)(data, position)[0]
