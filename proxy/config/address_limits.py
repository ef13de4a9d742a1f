"""Connection limits by address: the values of `max.connections.per.ip.overrides`."""

import ipaddress
from dataclasses import dataclass
from typing import Annotated, Self

from proxy.config.values import MAX_INT32, one_or_list, shown
from proxy.declarations import BeforeValidator, PlainSerializer, PlainValidator, WithJsonSchema


@dataclass(frozen=True, slots=True)
class AddressLimit:
    """Limit of the connections that one address may have open."""

    address: str
    """IP address, in any spelling."""
    max_connections: int

    @classmethod
    def parse(cls, value: object) -> Self:
        """Parse `127.0.0.1:200`, `::1:200` or `[::1]:200`: the number follows the last colon."""
        if isinstance(value, cls):
            return value
        address, _, number = value.rpartition(":") if isinstance(value, str) else ("", "", "")
        if address.startswith("[") and address.endswith("]"):
            address = address[1:-1]
        try:
            ipaddress.ip_address(address)
        except ValueError:
            raise ValueError(
                f"must be an IP address and a number such as 127.0.0.1:200, got {shown(value)}"
            ) from None
        if not (
            number.isascii() and number.isdigit() and len(number) <= 10 and int(number) <= MAX_INT32
        ):
            raise ValueError(f"must end in a number from 0 to {MAX_INT32}, got {shown(value)}")
        return cls(address, int(number))

    def __str__(self) -> str:
        return f"{self.address}:{self.max_connections}"


def _listed(value: object) -> object:
    """Return a list; Kafka's default, an empty text, is an empty one."""
    return [] if value == "" else one_or_list(value)


AddressLimits = Annotated[
    tuple[
        Annotated[
            AddressLimit,
            PlainValidator(AddressLimit.parse),
            PlainSerializer(str),
            WithJsonSchema({"type": "string", "title": "ADDRESS:COUNT"}),
        ],
        ...,
    ],
    BeforeValidator(_listed),
]
