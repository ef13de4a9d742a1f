"""`max.connections.per.ip.overrides`: connection limits by address."""

import ipaddress
from dataclasses import dataclass
from typing import Annotated, Final, Self

from pydantic import BeforeValidator, PlainSerializer, PlainValidator, WithJsonSchema

from proxy.config.values import one_or_list, shown

LARGEST: Final = 2**31 - 1
"""The largest value of Kafka's INT."""


@dataclass(frozen=True, slots=True)
class AddressLimit:
    """Limit of the connections that one address may have open."""

    address: str
    most: int

    @classmethod
    def parse(cls, value: object) -> Self:
        """Read `127.0.0.1:200`, `::1:200` or `[::1]:200`; what is behind the last colon counts."""
        if isinstance(value, cls):
            return value
        address, _, most = value.rpartition(":") if isinstance(value, str) else ("", "", "")
        if address.startswith("[") and address.endswith("]"):
            address = address[1:-1]
        try:
            ipaddress.ip_address(address)
        except ValueError:
            raise ValueError(
                f"must be an IP address and a number such as 127.0.0.1:200, got {shown(value)}"
            ) from None
        if not (most.isascii() and most.isdigit() and len(most) <= 10 and int(most) <= LARGEST):
            raise ValueError(f"must end in a number from 0 to {LARGEST}, got {shown(value)}")
        return cls(address, int(most))

    def __str__(self) -> str:
        return f"{self.address}:{self.most}"


def _listed(value: object) -> object:
    """Kafka's default is an empty text."""
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
