"""Value types of settings, with parsers of YAML values.

A parser raises `ValueError` with the second half of a sentence, such as "must be a host and a
port, got 'x'"; the loader puts the key's path in front of it.
"""

import ipaddress
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar, get_args
from urllib.parse import SplitResult, unquote, urlsplit

from proxy.acl.principals import PrincipalMapping
from proxy.config.section import Unit
from proxy.declarations import (
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
)
from proxy.errors import host_port

if TYPE_CHECKING:
    from pydantic import ValidationInfo

MAX_SECRET = 65_536
"""Maximum length of a secret in characters; bounds the memory that a wrong path can cost."""
MAX_INT32 = 2**31 - 1
"""Largest value of Kafka's INT."""
_MAX_SHOWN = 60
_MAX_PORT = 65_535
_MAX_NAME_PREFIX = 50
"""Maximum length of an issuer's prefix in characters; it counts towards the limits on names."""
_MAX_INT64 = 2**63 - 1
_WILDCARDS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - recognised, not bound
_DESTINATIONS = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]+(?:/[0-9]{1,3})?)\]|(?P<v4>[0-9.]+(?:/[0-9]{1,2})?))"
    r"(?::(?P<first>[0-9]{1,5})(?:-(?P<last>[0-9]{1,5}))?)?"
    r"|(?P<bare6>[0-9A-Fa-f]*:[0-9A-Fa-f:.]*(?:/[0-9]{1,3})?)"
)
_CIPHER_SUITE = re.compile(r"TLS_[A-Z0-9]+(_[A-Z0-9]+)?_WITH_[A-Z0-9_]+")
_PRINCIPAL = re.compile(r"[^:]+:.+", re.DOTALL)
_BROKER_HOSTS = re.compile(r"([a-z0-9_.-]*)\$\(id\)([a-z0-9_.-]*[a-z0-9_-]|)(?::([0-9]{1,5}))?")
_ID = re.compile("[0-9]{1,10}")
_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252}[A-Za-z0-9_])?\.?")


def shown(value: object) -> str:
    """Return a value in a form for one-line messages: short and printable."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case _:
            text = ascii(value) if isinstance(value, str) else str(value)
            return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port in their usual form: `127.0.0.1:9092`, `[::1]:9092`."""

    host: str
    port: int

    @classmethod
    def parse(cls, value: object) -> Self:
        """Parse `HOST:PORT`; an IPv6 address is in brackets."""
        host, colon, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
        bracketed = host.startswith("[") and host.endswith("]")
        host = host[1:-1] if bracketed else host
        if not colon or bracketed != (":" in host) or not _is_host(host):
            raise ValueError(f"must be a host and a port such as 0.0.0.0:9094, got {shown(value)}")
        if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= _MAX_PORT):
            raise ValueError(f"must end in a port from 0 to {_MAX_PORT}, got {shown(value)}")
        return cls(host, int(port))

    def overlaps(self, other: "Address") -> bool:
        """Return whether the proxy cannot listen on both at once; port 0 is any free port."""
        same_host = self.host.lower() == other.host.lower()
        wildcard = self.host in _WILDCARDS or other.host in _WILDCARDS
        return self.port == other.port != 0 and (same_host or wildcard)

    def __str__(self) -> str:
        return host_port(self.host, self.port)


@dataclass(frozen=True, slots=True)
class PortRange:
    """Ports from `first` to `last`, both included; broker id N is at `first` + N."""

    first: int
    last: int

    @classmethod
    def parse(cls, value: object) -> Self:
        """Parse `FIRST-LAST`."""
        found = (
            re.fullmatch(r"([0-9]{1,5})-([0-9]{1,5})", value) if isinstance(value, str) else None
        )
        if not found:
            raise ValueError(
                "must be a range of ports such as 9100-9199, or a map of broker ids to ports,"
                f" got {shown(value)}"
            )
        first, last = int(found[1]), int(found[2])
        if not 1 <= first <= last <= _MAX_PORT:
            raise ValueError(
                f"must be ports from 1 to {_MAX_PORT} in rising order, got {shown(value)}"
            )
        return cls(first, last)

    def port_of(self, broker_id: int) -> int | None:
        """Return the port of a broker; None if the range is too short for its id."""
        port = self.first + broker_id
        return port if broker_id >= 0 and port <= self.last else None

    def by_broker(self) -> Iterator[tuple[int, int]]:
        """Yield the id and the port of each broker."""
        return enumerate(self)

    def with_brokers(self, broker_ids: Collection[int]) -> str:
        """Return a value of the setting that also has ports for these brokers."""
        last = self.first + max(broker_ids)
        if last <= _MAX_PORT:
            return f"{self.first}-{last}"
        return f"a map such as {{{min(broker_ids)}: {self.first}}}"

    def __contains__(self, port: object) -> bool:
        return isinstance(port, int) and self.first <= port <= self.last

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.last + 1))

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


@dataclass(frozen=True, slots=True)
class PortMap:
    """Ports of brokers by id, for ids that are large or have gaps."""

    ports: Mapping[int, int]

    @classmethod
    def parse(cls, value: dict[str, object]) -> Self:
        """Parse a mapping of broker ids to ports."""
        ports: dict[int, int] = {}
        for broker_id, port in value.items():
            id_ = int(broker_id) if _ID.fullmatch(broker_id) else -1
            if not 0 <= id_ <= MAX_INT32:
                raise ValueError(f"must have broker ids as keys, got {shown(broker_id)}")
            if type(port) is not int or not 1 <= port <= _MAX_PORT:
                raise ValueError(f"must be ports from 1 to {_MAX_PORT}, got {shown(port)}")
            if id_ in ports or port in ports.values():
                raise ValueError(f"must have one port for each id, got {id_}: {port} again")
            ports[id_] = port
        if not ports:
            raise ValueError("must list the port of at least one broker")
        return cls(ports)

    def port_of(self, broker_id: int) -> int | None:
        """Return the port of a broker; None if it has no port."""
        return self.ports.get(broker_id)

    def by_broker(self) -> Iterator[tuple[int, int]]:
        """Yield the id and the port of each broker."""
        return iter(self.ports.items())

    def with_brokers(self, _broker_ids: Collection[int]) -> str:
        """Return a value of the setting that also has ports for these brokers."""
        return "a map with their ids"

    def __contains__(self, port: object) -> bool:
        return port in self.ports.values()

    def __iter__(self) -> Iterator[int]:
        return iter(self.ports.values())

    def __len__(self) -> int:
        return len(self.ports)

    def __str__(self) -> str:
        return ", ".join(f"{broker_id}: {port}" for broker_id, port in self.ports.items())


@dataclass(frozen=True, slots=True)
class BrokerHosts:
    """Host names of brokers, which contain their ids, and the port that clients connect to."""

    before: str
    """The part of a name before the id, in lower case, as is the part after it."""
    after: str
    port: int | None
    """The port; None for that of the listener's address."""

    @classmethod
    def parse(cls, value: object) -> Self:
        """Parse `broker-$(id).example.com`, with or without a port."""
        found = _BROKER_HOSTS.fullmatch(value.lower()) if isinstance(value, str) else None
        longest = f"{found[1]}{MAX_INT32}{found[2]}" if found else ""
        if not found or not _HOST_NAME.fullmatch(longest) or re.fullmatch("[0-9.]+", longest):
            raise ValueError(
                "must be a host name with $(id), such as broker-$(id).example.com, got"
                f" {shown(value)}"
            )
        port = int(found[3]) if found[3] else None
        if port is not None and not 1 <= port <= _MAX_PORT:
            raise ValueError(f"must end in a port from 1 to {_MAX_PORT}, got {shown(value)}")
        return cls(found[1], found[2], port)

    def host_of(self, broker_id: int) -> str:
        """Return the name of a broker."""
        return f"{self.before}{broker_id}{self.after}"

    def id_of(self, host: str) -> int | None:
        """Return the id in a broker's name, which is in lower case; None for other names."""
        digits = host.removeprefix(self.before).removesuffix(self.after)
        broker_id = int(digits) if _ID.fullmatch(digits) else MAX_INT32 + 1
        return broker_id if broker_id <= MAX_INT32 and host == self.host_of(broker_id) else None

    def __str__(self) -> str:
        port = "" if self.port is None else f":{self.port}"
        return f"{self.before}$(id){self.after}{port}"


def _network(value: object) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """Parse a network. IPv4-mapped ones are refused: peers with such addresses count as IPv4."""
    try:
        network = ipaddress.ip_network(str(value))
        if network.version == 6 and network.network_address.ipv4_mapped is not None:
            raise ValueError
    except ValueError:
        raise ValueError(
            f"must be a network, such as 10.0.0.0/8 or 2001:db8::/32, got {shown(value)}"
        ) from None
    return network


@dataclass(frozen=True, slots=True)
class Destinations:
    """Allowed destinations: a network, and its ports from `first` to `last`."""

    network: ipaddress.IPv4Network | ipaddress.IPv6Network
    first: int = 1
    last: int = _MAX_PORT

    @classmethod
    def parse(cls, value: object) -> Self:
        """Parse `10.0.0.0/8`, `10.1.2.3:9092`, `10.0.0.0/8:9092-9094` or `[2001:db8::/32]:9092`."""
        found = _DESTINATIONS.fullmatch(value) if isinstance(value, str) else None
        try:
            if found is None:
                raise ValueError
            network = ipaddress.ip_network(found["v6"] or found["bare6"] or found["v4"])
        except ValueError:
            raise ValueError(
                "must be a network, optionally with ports, such as 10.0.0.0/8:9092 or"
                f" [2001:db8::/32]:9092, got {shown(value)}"
            ) from None
        first = int(found["first"] or 1)
        last = int(found["last"] or found["first"] or _MAX_PORT)
        if not 1 <= first <= last <= _MAX_PORT:
            raise ValueError(f"must have ports from 1 to {_MAX_PORT}, got {shown(value)}")
        return cls(network, first, last)

    def __contains__(self, address: object) -> bool:
        """Return whether the network contains an `Address`, whose host is an IP address."""
        if not isinstance(address, Address):
            return False
        return (
            self.first <= address.port <= self.last
            and ipaddress.ip_address(address.host) in self.network
        )

    def __str__(self) -> str:
        network = f"[{self.network}]" if self.network.version == 6 else str(self.network)
        return f"{network}:{self.first}-{self.last}"


@dataclass(frozen=True, slots=True)
class Secret:
    """Source of a secret, a file or a variable; the configuration itself contains no secrets."""

    path: Path | None
    """File that contains the secret; None if a variable does."""
    variable: str | None
    """Environment variable that contains the secret; None if a file does."""

    def read(self) -> str:
        """Return the secret. Raises OSError or ValueError, whose messages do not contain it."""
        if self.path is not None:
            with self.path.open() as file:
                text = file.read(MAX_SECRET + 1)
            if len(text) > MAX_SECRET:
                raise ValueError(f"{self.path} is too long for a secret")
            return text.rstrip("\r\n")
        assert self.variable is not None
        try:
            return os.environ[self.variable]
        except KeyError:
            raise ValueError(f"the environment has no {self.variable}") from None

    def __str__(self) -> str:
        return f"file:{self.path}" if self.path is not None else f"env:{self.variable}"


def _secret(value: object, info: "ValidationInfo") -> Secret:
    if isinstance(value, Secret):
        return value
    kind, _, name = value.partition(":") if isinstance(value, str) else ("", "", "")
    if kind == "file" and name and "\0" not in name:
        return Secret(_base_dir(info) / name, None)
    if kind == "env" and name.isidentifier():
        return Secret(None, name)
    # The value is not shown: it may be the secret itself
    raise ValueError(
        "must be file:PATH or env:NAME, the source of the secret and not the secret itself"
    )


def _mapping_rules(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError(f"must be text, got {shown(value)}")
    PrincipalMapping(value)
    return value


def _is_host(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return _HOST_NAME.fullmatch(host) is not None
    return True


def _advertised_host(value: object) -> object:
    if not isinstance(value, str) or not _is_host(value):
        raise ValueError(f"must be a host name or an IP address, got {shown(value)}")
    if value in _WILDCARDS:
        raise ValueError(f"must be an address that clients can connect to, got {shown(value)}")
    return value


def text_that(holds: Callable[[str], object], must: str) -> Any:
    """Return a validator of texts for which `holds` returns a true value; `must` is the rule for
    its message, such as "be text"."""

    def check(value: object) -> object:
        if not isinstance(value, str) or not holds(value):
            raise ValueError(f"must {must}, got {shown(value)}")
        return value

    return BeforeValidator(check)


def whole_number(of: str) -> Callable[[object], object]:
    """Return a validator of whole numbers; `of` is the unit for its message, e.g. " of bytes"."""

    def check(value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, int):  # bool is an int to Python
            raise ValueError(f"must be a whole number{of}, got {shown(value)}")
        return value

    return check


def _principal_name_prefix(value: object) -> object:
    if not isinstance(value, str) or len(value) > _MAX_NAME_PREFIX or not value.isprintable():
        raise ValueError(
            f"must be text of at most {_MAX_NAME_PREFIX} printable characters, got {shown(value)}"
        )
    if value != value.lstrip():
        raise ValueError(f"must not begin with a blank, got {shown(value)}")
    return value


class Parsed:
    """Annotation of a type that `parse` makes of a YAML value, and `str` writes as text."""

    def __init__(self, parse: Callable[[object], object], **schema: str) -> None:
        """`schema` has the keys of the text's JSON Schema, in addition to its type."""
        self._parse = parse
        self._schema = {"type": "string", **schema}

    def __get_pydantic_core_schema__(self, source: Any, _handler: object) -> Any:
        from pydantic_core import core_schema

        types = get_args(source) or source

        def validate(value: object) -> object:
            return value if isinstance(value, types) else self._parse(value)

        written = core_schema.plain_serializer_function_ser_schema(str)
        return core_schema.no_info_plain_validator_function(validate, serialization=written)

    def __get_pydantic_json_schema__(self, _core: object, _handler: object) -> dict[str, str]:
        return self._schema


class _OneOrList:
    """Annotation of a list that may also be a single value, or text with commas, as in Kafka."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(self._listed, handler(source))

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> Any:
        listed = handler(core)
        return {"anyOf": [listed["items"], {"type": "array", "items": listed["items"]}]}

    @staticmethod
    def _listed(value: object) -> object:
        if isinstance(value, str):
            return [part.strip() for part in value.split(",")]
        return value if isinstance(value, list | tuple) else [value]


T = TypeVar("T")
OneOrMore = Annotated[tuple[T, ...], _OneOrList()]


def _path(value: object, info: "ValidationInfo") -> Path:
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise ValueError(f"must be the path of a file or directory, got {shown(value)}")
    return _base_dir(info) / value


def _base_dir(info: "ValidationInfo") -> Path:
    context: dict[str, Any] = info.context or {}
    base_dir = context.get("base_dir", Path())
    assert isinstance(base_dir, Path)
    return base_dir


def _store_url(value: object, info: "ValidationInfo") -> str:
    scheme, _, path = value.partition(":") if isinstance(value, str) else ("", "", "")
    if scheme == "zookeeper":
        raise ValueError(
            "the ZooKeeper store was removed: write sqlite:PATH, with the file that store.copy.file"
            " named (state.db by default), or broker:PATH (docs/store.md)"
        )
    known = scheme in ("sqlite", "broker")
    if not known or not path or path.startswith("//") or "\0" in path:
        raise ValueError(f"must be sqlite:PATH or broker:PATH, got {shown(value)}")
    return f"{scheme}:{_base_dir(info) / path}"


def _parts_of_url(value: object, problem: str) -> SplitResult:
    # The value is not shown: it may contain a password that cannot be recognized
    if not isinstance(value, str):
        raise ValueError(problem)
    try:
        parts = urlsplit(value)
        _ = parts.port
    except ValueError:
        raise ValueError(problem) from None
    if parts.username is not None:
        raise ValueError("must not contain a user name or password")
    return parts


def _endpoint_url(value: object, info: "ValidationInfo") -> str:
    problem = "must be a file:, http: or https: URL"
    parts = _parts_of_url(value, problem)
    path = unquote(parts.path)
    if parts.scheme == "file" and not parts.hostname and path and "\0" not in path:
        return (_base_dir(info) / path).absolute().as_uri()
    if parts.scheme in ("http", "https") and parts.hostname:
        return str(value)
    raise ValueError(problem)


def source_of(url: str | None) -> Path | str | None:
    """Return the source that an `EndpointUrl` means: a file, or an http(s) URL."""
    parts = urlsplit(url or "")
    return Path(unquote(parts.path)) if parts.scheme == "file" else url


def _web_url(value: object) -> str:
    problem = "must be an http: or https: URL"
    parts = _parts_of_url(value, problem)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(problem)
    return str(value)


def _ldap_url(value: object) -> str:
    problem = "must be an ldap: or ldaps: URL of a host, such as ldaps://ldap.example.com"
    parts = _parts_of_url(value, problem)
    more = parts.path.strip("/") or parts.query or parts.fragment
    if parts.scheme not in ("ldap", "ldaps") or not _is_host(parts.hostname or "") or more:
        raise ValueError(problem)
    return str(value)


# The bounds must precede the validator, or they would be missing in the JSON Schema.
Milliseconds = Annotated[
    int, Field(ge=0, le=_MAX_INT64), Unit("ms"), BeforeValidator(whole_number(" of milliseconds"))
]
PositiveMilliseconds = Annotated[
    int, Field(ge=1, le=_MAX_INT64), Unit("ms"), BeforeValidator(whole_number(" of milliseconds"))
]
KeepaliveIdle = Annotated[  # the kernel counts in seconds, to 32767 (tcp(7))
    int,
    Field(ge=1_000, le=32_767_000),
    Unit("ms"),
    BeforeValidator(whole_number(" of milliseconds")),
]
Seconds = Annotated[
    int, Field(ge=0, le=MAX_INT32), Unit("s"), BeforeValidator(whole_number(" of seconds"))
]
Bytes = Annotated[
    int, Field(ge=1, le=_MAX_INT64), Unit("bytes"), BeforeValidator(whole_number(" of bytes"))
]
FrameBytes = Annotated[
    int, Field(ge=1, le=MAX_INT32), Unit("bytes"), BeforeValidator(whole_number(" of bytes"))
]
Count = Annotated[int, Field(ge=1, le=MAX_INT32), BeforeValidator(whole_number(""))]
WorkerCount = Annotated[int, Field(ge=1, le=1_024), BeforeValidator(whole_number(""))]
Text = Annotated[str, text_that(str.strip, "be text")]
Principal = Annotated[str, text_that(_PRINCIPAL.fullmatch, "be a principal such as User:alice")]
PrincipalNamePrefix = Annotated[str, BeforeValidator(_principal_name_prefix)]
PrincipalPrefix = Annotated[
    str, text_that(lambda text: ":" in text[1:], "begin like a principal, such as User:batch-")
]
HostName = Annotated[str, BeforeValidator(_advertised_host)]


def _broker_address(value: object) -> Address:
    address = Address.parse(value)
    if address.port == 0 or address.host in _WILDCARDS:
        raise ValueError(f"must be an address that can be connected to, got {shown(value)}")
    return address


AddressValue = Annotated[Address, Parsed(Address.parse, title="HOST:PORT")]
BrokerAddress = Annotated[Address, Parsed(_broker_address, title="HOST:PORT")]
BrokerPortsValue = Annotated[
    PortRange | PortMap,
    Parsed(lambda given: (PortMap if isinstance(given, dict) else PortRange).parse(given)),
    PlainSerializer(lambda ports: dict(ports.ports) if isinstance(ports, PortMap) else str(ports)),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": "^[0-9]{1,5}-[0-9]{1,5}$"},
                {
                    "type": "object",
                    "title": "ID: PORT",
                    "minProperties": 1,
                    "additionalProperties": {"type": "integer", "minimum": 1, "maximum": _MAX_PORT},
                },
            ]
        }
    ),
]
BrokerHostsValue = Annotated[
    BrokerHosts, Parsed(BrokerHosts.parse, pattern=r"\$\(id\)", title="HOST")
]
NetworkValue = Annotated[
    ipaddress.IPv4Network | ipaddress.IPv6Network, Parsed(_network, title="NETWORK")
]
DestinationsValue = Annotated[Destinations, Parsed(Destinations.parse, title="NETWORK:PORTS")]
SecretSource = Annotated[
    Secret,
    PlainValidator(_secret),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "pattern": "^(file|env):"}),
]
MappingRules = Annotated[str, BeforeValidator(_mapping_rules)]
CipherSuite = Annotated[
    str,
    text_that(
        _CIPHER_SUITE.fullmatch,
        "be a suite of TLS 1.2 such as TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    ),
]
PathValue = Annotated[Path, PlainValidator(_path), WithJsonSchema({"type": "string"})]
StoreUrl = Annotated[
    str,
    PlainValidator(_store_url),
    WithJsonSchema({"type": "string", "pattern": "^(sqlite|broker):"}),
]
WebUrl = Annotated[
    str, PlainValidator(_web_url), WithJsonSchema({"type": "string", "format": "uri"})
]
LdapUrl = Annotated[
    str, PlainValidator(_ldap_url), WithJsonSchema({"type": "string", "format": "uri"})
]
LdapUserDn = Annotated[
    str,
    text_that(
        re.compile(r"[A-Za-z][A-Za-z0-9-]*=\$\(user\),.+").fullmatch,
        "begin with an attribute and $(user), such as uid=$(user),ou=people,dc=example,dc=com",
    ),
]
EndpointUrl = Annotated[
    str, PlainValidator(_endpoint_url), WithJsonSchema({"type": "string", "format": "uri"})
]
