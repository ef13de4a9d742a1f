"""Entity types of Kafka's messages, made on first use: see `proxy.wire.schema`.

mypy reads `messages.pyi`, which has the types that the code uses; `make schemas` generates it.
"""

from proxy.wire.schema import Message as Message
from proxy.wire.schema import message_type
from proxy.wire.schema import replace as replace


def __getattr__(name: str) -> type[Message]:
    try:
        return message_type(name)
    except KeyError:
        raise AttributeError(f"Kafka has no message {name!r}") from None
