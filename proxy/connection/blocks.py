"""Block list: which sessions end, and which logins are refused, by an operator's order.

    {"version": 8, "entries": 2}
    {"id": "7.1", "principal": "User:alice", "issued_before": 1764320400, "reason": "laptop lost"}
    {"id": "8.1", "address": "10.1.2.0/24", "ends_at": 1764406800, "margin_s": 30}

The file has a line for the list, and one for each entry, as JSON objects. Rules:

- A list counts as a whole or not at all: an incomplete file could lack an entry.
- An entry blocks whatever meets all of its criteria. A criterion that is unknown for a client does
  not match; but a login that only the broker could read matches every criterion of identity, or a
  blocked client could hide its name from the proxy.
- `issued_before` lets newer credentials pass. For a token it is compared with `iat`; a token
  without `iat` is never newer. A password has no time of issue: a session is older if it was last
  authenticated before the proxy had the entry, whatever the clocks say.
- `margin_s` keeps open sessions for a while after the proxy has the entry. Logins are refused at
  once.

Time is an argument: `now` is monotonic seconds, `wall_now` Unix time.
"""

import ipaddress
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import product
from math import inf
from typing import Any, Final, NamedTuple, Self

from proxy.errors import ProxyError
from proxy.quota.model import canonical_ip
from proxy.wire.request import MAX_CHARACTERS_KEPT
from sasl.identity import GROUP_TYPE, Identity, LoginFacts, kept
from sasl.mechanism import FailureReason
from sasl.untrusted import read_object

MAX_ENTRIES: Final = 20_000
"""Maximum number of entries: they take about 20 MiB in each worker."""
MAX_BYTES: Final = 16 * 1024 * 1024
"""Maximum size of the file in bytes."""
MAX_CHARACTERS: Final = 4_096
"""Maximum length of a text of an entry."""
PROVEN: Final = ("principal", "group", "jti", "issuer", "subject")
"""Criteria that the login proves."""
CLAIMED: Final = ("client_id", "software_name", "software_version")
"""Criteria that the client claims, and may change at any time."""
CRITERIA: Final = (*PROVEN, *CLAIMED)
TEXTS: Final = (*CRITERIA, "address", "id", "reason", "author")
NUMBERS: Final = ("issued_before", "created_at", "starts_at", "ends_at", "margin_s")
MAX_SECONDS: Final = 253_402_300_799
"""Largest number: the end of the year 9999 in Unix time."""

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_Shape = tuple[tuple[str, ...], int, int]
"""Criteria of entries, the IP version of their networks, and by how many bits an address is shifted
before it is compared; both 0 without networks."""
_Key = tuple[str | int | None, ...]
"""Values of the criteria, and the shifted address."""


class BadBlocks(ProxyError, ValueError):
    """The block list or an entry is invalid; the text has the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Entry of a block list; a criterion of None matches every client."""

    id: str = "new"
    """Set when the entry is added to a file."""
    principal: str | None = None
    """Principal with its type, such as `User:alice`."""
    group: str | None = None
    """Group as a principal, such as `Group:analysts`."""
    jti: str | None = None
    issuer: str | None = None
    subject: str | None = None
    issued_before: float | None = None
    """Unix time; credentials that were issued then or later are not blocked."""
    client_id: str | None = None
    software_name: str | None = None
    software_version: str | None = None
    address: str | None = None
    """Address or network of clients (CIDR)."""
    reason: str = ""
    author: str = ""
    created_at: float | None = None
    """Unix time, for people only."""
    starts_at: float | None = None
    """Unix time from which the entry applies; None for at once."""
    ends_at: float | None = None
    """Unix time from which the entry does not apply; None for never."""
    margin_s: float = 0.0
    """Seconds for which open sessions are kept."""

    def __post_init__(self) -> None:
        """Raise BadBlocks if a value is invalid, no client can match, or every client would."""
        for name in NUMBERS:
            value = getattr(self, name)
            if value is not None and not (type(value) in (int, float) and 0 <= value < MAX_SECONDS):
                raise BadBlocks(f"{name}: must be a number of seconds, from 0 to {MAX_SECONDS}")
        for name in TEXTS:
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and len(value) <= MAX_CHARACTERS):
                raise BadBlocks(f"{name}: must be a text of at most {MAX_CHARACTERS} characters")
        given = [getattr(self, name) for name in (*CRITERIA, "address")]
        if not any(given) or "" in given:
            raise BadBlocks("needs at least one criterion, and no empty one")
        if self.principal is not None and ":" not in self.principal:
            raise BadBlocks("principal: must have a type, such as User:alice")
        if self.group is not None and not self.group.startswith(GROUP_TYPE):
            raise BadBlocks("group: must begin with Group:")
        if self.address is not None:
            network_of(self.address)

    @classmethod
    def parse(cls, line: bytes) -> Self:
        """Return the entry of a line. Raises BadBlocks."""
        members = read_object(line)
        if members is None:
            raise BadBlocks("is not a JSON object")
        for name, value in members.items():
            if name not in TEXTS + NUMBERS:
                raise BadBlocks(f"{name!a:.80}: is unknown; use {', '.join(TEXTS + NUMBERS)}")
            if value is None:
                raise BadBlocks(f"{name}: must not be null")
        if not members.get("id"):
            raise BadBlocks("id: is required")
        return cls(**members)

    def document(self) -> dict[str, Any]:
        """Return the entry as its line has it."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "", 0)}

    def line(self) -> str:
        """Return the entry's line in the file."""
        return json.dumps(self.document())

    def __str__(self) -> str:
        given = [(name, getattr(self, name)) for name in (*CRITERIA, "address")]
        parts = [f"{name} {value!a}" for name, value in given if value is not None]
        if self.issued_before is not None:
            parts.append(f"issued before {moment(self.issued_before)}")
        return " and ".join(parts)


def moment(unix_time: float) -> str:
    """Return a Unix time in UTC."""
    return datetime.fromtimestamp(unix_time, UTC).isoformat(timespec="seconds")


def network_of(text: str) -> _Network:
    """Return an address or network, with IPv4-mapped ones as IPv4. Raises BadBlocks."""
    try:
        network = ipaddress.ip_network(text)
    except ValueError as error:
        raise BadBlocks(f"address: must be an address or a network (CIDR): {error}") from None
    if isinstance(network, ipaddress.IPv6Network) and network.prefixlen >= 96:
        mapped = network.network_address.ipv4_mapped
        if mapped is not None:
            return ipaddress.IPv4Network((mapped, network.prefixlen - 96))
    return network


class Login(NamedTuple):
    """Client that logs in, or has a session."""

    identity: Identity
    facts: LoginFacts
    peer_host: str
    claimed: tuple[str | None, str | None, str | None]
    """Values of `CLAIMED`."""
    authenticated_at: float | None = None
    """Time of a session's last authentication; None for a login."""

    def values(self) -> Mapping[str, tuple[str | None, ...]]:
        """Return the values of each criterion; None equals no entry's."""
        facts = self.facts
        single = (facts.token_id, facts.issuer, facts.subject, *self.claimed)
        all_values = ((self.identity.principal,), self.identity.groups, *((one,) for one in single))
        return dict(zip(CRITERIA, all_values, strict=True))


class Blocks:
    """Block list; immutable. A lookup costs the same for one entry and for thousands."""

    def __init__(
        self,
        version: int = 0,
        entries: Iterable[Block] = (),
        seen: Mapping[str, float] | None = None,
    ) -> None:
        """`seen` has the times at which the proxy first had the entries, by id."""
        self.version: Final = version
        self.entries: Final = {one.id: one for one in entries}
        self.seen: Final = seen or {}
        self._tables: dict[_Shape, dict[_Key, list[Block]]] = {}
        for block in self.entries.values():
            self._add(block)
        self._has_networks = any(version for _, version, _ in self._tables)
        self.may_change: Final = any(map(_may_change, self.entries.values()))
        """True if an open session may come to be blocked without a change of the list."""

    @classmethod
    def parse(cls, document: bytes, seen: Mapping[str, float], now: float) -> Self:
        """Return the list in a file. Raises BadBlocks.

        `seen` has the times of the previous list's entries; others are new `now`.
        """
        if len(document) > MAX_BYTES:
            raise BadBlocks(f"is larger than {MAX_BYTES} bytes")
        first, *lines = document.removesuffix(b"\n").split(b"\n")
        match read_object(first):
            case {"version": int(version), "entries": int(count), **rest} if not rest:
                pass
            case _:
                raise BadBlocks('must begin with a line {"version": NUMBER, "entries": NUMBER}')
        if count > MAX_ENTRIES:
            raise BadBlocks(f"has {count} entries; {MAX_ENTRIES} are the most")
        if len(lines) != count or not document.endswith(b"\n"):
            raise BadBlocks(f"is incomplete: it has {len(lines)} of {count} entries")
        entries = []
        for number, line in enumerate(lines, 2):
            try:
                entries.append(Block.parse(line))
            except BadBlocks as bad:
                raise BadBlocks(f"line {number}: {bad}") from None
        blocks = cls(version, entries, {one.id: seen.get(one.id, now) for one in entries})
        if len(blocks.entries) < count:
            raise BadBlocks("has an id twice")
        return blocks

    def _add(self, block: Block) -> None:
        given = {name: text for name in CRITERIA if (text := getattr(block, name)) is not None}
        names = tuple(given)
        key: _Key = tuple(_as_kept(*each) for each in given.items())
        version = shift = 0
        if block.address is not None:
            network = network_of(block.address)
            version, shift = network.version, network.max_prefixlen - network.prefixlen
            key = (*key, int(network.network_address) >> shift)
        table = self._tables.setdefault((names, version, shift), {})
        table.setdefault(key, []).append(block)

    def __str__(self) -> str:
        return f"version {self.version} with {len(self.entries)} entries"

    def find(self, login: Login, now: float, wall_now: float) -> Block | None:
        """Return an entry in force that blocks a client; None if no entry does."""
        values = login.values()
        peer = canonical_ip(login.peer_host) if self._has_networks else None
        address = None if peer is None else ipaddress.ip_address(peer)
        for (names, version, shift), table in self._tables.items():
            keys: Iterable[_Key] = table
            if login.facts.is_readable or set(PROVEN).isdisjoint(names):
                options: list[_Key] = [values[name] for name in names]
                if version:
                    options.append(
                        (int(address) >> shift,) if address and address.version == version else ()
                    )
                keys = product(*options)
            for block in (one for key in keys for one in table.get(key, ())):
                if self._applies(block, login, now, wall_now):
                    return block
        return None

    def _applies(self, block: Block, login: Login, now: float, wall_now: float) -> bool:
        if block.starts_at is not None and wall_now < block.starts_at:
            return False
        if block.ends_at is not None and wall_now >= block.ends_at:
            return False
        seen, began = self.seen.get(block.id, now), login.authenticated_at
        if began is not None and now < seen + block.margin_s:
            return False
        if block.issued_before is None:
            return True
        if login.facts.is_token or not login.facts.is_readable:
            issued_at = login.facts.issued_at
            return issued_at is None or issued_at < block.issued_before
        return began is not None and began < seen


def _as_kept(name: str, text: str) -> str:
    """Return the text of a criterion as connections keep it."""
    if name in CLAIMED:
        return text[:MAX_CHARACTERS_KEPT]
    return kept(text) or "" if name in ("jti", "issuer", "subject") else text


def _may_change(block: Block) -> bool:
    """Return whether a session may meet an entry later: by time, by a name that the client
    changes, or because its groups follow a file."""
    names = ("starts_at", "margin_s", "group", *CLAIMED)
    return any(getattr(block, name) for name in names)


class BlockList:
    """Block list in force; one for all connections of a worker."""

    def __init__(self) -> None:
        self.blocks = Blocks()
        """Last list that could be read; replaced as a whole."""
        self.wall_offset = 0.0
        """Difference of Unix time and monotonic time, in seconds."""
        self.refuses_after = inf
        """Time in monotonic seconds from which all logins are refused, because the list could not
        be read for too long; infinite if they are not."""

    def refusal(self, login: Login, now: float) -> FailureReason | None:
        """Return why a login is refused; None if it is not."""
        if now >= self.refuses_after:
            return FailureReason.BLOCKS_UNKNOWN
        found = self.blocks.find(login, now, now + self.wall_offset)
        return None if found is None else FailureReason.BLOCKED

    def ends(self, login: Login, now: float) -> bool:
        """Return whether an open session ends."""
        return self.blocks.find(login, now, now + self.wall_offset) is not None
