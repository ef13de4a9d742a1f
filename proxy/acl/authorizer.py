"""Authorizer of one worker: the permissions of each client, and reports of denials.

Rules: a decision is cached until the ACLs change. Checks that only filter a list (`report=False`)
are neither counted nor reported, as in Kafka's own log. Only one thread may use the authorizer,
except that any thread may replace `index`; the next check uses the new one.

For each kind of denial (principal, operation, resource, would-be or not) `Denials` returns at most
one notice per interval, with the number of denials since the last one; all denials are counted. The
number of kinds is bounded per principal and in total: further denials are reported together,
without the resource. A client that invents names can therefore fill neither the memory nor the log.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import compress
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from proxy.acl.decision import AllowedTopics, Used, code_of, note
from proxy.acl.index import DENIED_BY_DEFAULT, AclIndex, Decision
from proxy.acl.model import CLUSTER_NAME, WILDCARD, Acl, AuthorizerMode, Operation, ResourceType

_MAX_DECISIONS: Final = 4096
"""Maximum number of cached decisions per client; when it is reached, all are dropped."""
_MAX_RESULT_BYTES: Final = 16 << 20
"""Maximum size of all cached responses of a worker together, in bytes."""
_MAX_CACHED_NAME: Final = 256
"""Maximum length in characters of a name whose decision is cached: topics have at most 249, other
names up to 32,767."""

SUPPORTED_OPERATIONS: Final[Mapping[ResourceType, tuple[Operation, ...]]] = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DESCRIBE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DESCRIBE,
        Operation.DELETE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
        Operation.ALTER,
        Operation.DESCRIBE,
    ),
    ResourceType.TRANSACTIONAL_ID: (
        Operation.DESCRIBE,
        Operation.WRITE,
        Operation.TWO_PHASE_COMMIT,
    ),
    ResourceType.DELEGATION_TOKEN: (Operation.DESCRIBE,),
    ResourceType.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}
"""Operations that an authorized-operations bit field may contain, by resource type (Kafka 4.1,
`AclEntry`)."""


class Denial(NamedTuple):
    """Report that an operation was, or would have been, denied."""

    principal: str
    """Principal with its type, such as `User:alice`."""
    host: str
    """Address of the client, as text."""
    operation: Operation
    resource_type: ResourceType
    name: str
    """Name of the resource; `*` if access to any resource of the type would have sufficed,
    `orders-*` if access to all resources with this prefix was required. For a request that is not
    `judged`, its API and version."""
    rule: Acl | None
    """ACL that denied the operation; None if no ACL allowed it."""
    would_be: bool
    """True if the operation was allowed only because of audit mode."""
    on_behalf_of: object = None
    """Value of `Authorizer.on_behalf_of` at the time of the denial."""

    @property
    def judged(self) -> bool:
        """Return whether the request could be judged. If not, no ACL can allow it."""
        return self.resource_type is not ResourceType.UNKNOWN


class DecisionCounts:
    """Counts of checks by result; one number per operation code."""

    __slots__ = ("allowed", "cache_hits", "denied", "would_be_denied")

    def __init__(self) -> None:
        self.allowed = [0] * len(Operation)
        self.denied = [0] * len(Operation)
        self.would_be_denied = [0] * len(Operation)
        """Numbers of denials that were only counted, in audit mode."""
        self.cache_hits = 0
        """Number of checks of any kind that were answered without a look-up in the ACLs."""


Report = Callable[[Denial], None]
"""Callback for every counted denial. It may be called for every check, so its cost must be
bounded."""


class Authorizer:
    """Authorizer that returns the `Authority` of every client."""

    def __init__(self, index: AclIndex, *, mode: AuthorizerMode, report: Report) -> None:
        self.index = index
        """ACLs in force. Replaced by assignment, on any thread."""
        self.mode = mode
        """Mode of the authorizer (`authorizer.mode`)."""
        self.report = report
        """Callback for denials."""
        self.on_behalf_of: object = None
        """Connection for which the next checks are made, or None. The caller sets it; denials carry
        it."""
        self.counts = DecisionCounts()
        self.results = _Results()
        """Filtered responses, shared by clients with the same permissions."""
        self._authorities: WeakValueDictionary[tuple[tuple[str, ...], str], IndexAuthority] = (
            WeakValueDictionary()
        )

    def authority(self, principals: tuple[str, ...], host: str) -> "IndexAuthority":
        """Return the authority of a client at this address: one object for all connections of the
        same principals.

        The first of `principals` is the client's own, for example `User:alice`; the others are its
        groups. `host` is the peer's address as text.
        """
        key = principals, host
        found = self._authorities.get(key)
        if found is None:
            found = self._authorities[key] = IndexAuthority(self, principals, host)
        return found


class _Results:
    """Responses filtered with the ACLs of one index, least recently used first."""

    def __init__(self) -> None:
        self._index: AclIndex | None = None
        self._results: OrderedDict[Hashable, tuple[bytes, bytes]] = OrderedDict()
        self._size = 0

    def get(
        self, index: AclIndex, key: Hashable, content: bytes, cut: Callable[[], bytes]
    ) -> bytes:
        """Return the result of `cut`, or the cached one for the same key and content."""
        if index is not self._index:
            self._index, self._size = index, 0
            self._results.clear()
        digest = sha256(content).digest()
        before = self._results.get(key)
        if before is not None and before[0] == digest:
            self._results.move_to_end(key)
            return before[1]
        result = cut()
        if index is self._index and len(result) <= _MAX_RESULT_BYTES // 4:
            if (replaced := self._results.pop(key, None)) is not None:
                self._size -= len(replaced[1])
            self._results[key] = digest, result
            self._size += len(result)
            while self._size > _MAX_RESULT_BYTES:
                self._size -= len(self._results.popitem(last=False)[1][1])
        return result


class IndexAuthority:
    """Authority of one client at one address: a `proxy.acl.decision.ClientAuthority`."""

    __slots__ = (
        "__weakref__",
        "_allowed_topics",
        "_authorizer",
        "_decisions",
        "_index",
        "host",
        "principals",
        "used",
    )

    def __init__(self, authorizer: Authorizer, principals: tuple[str, ...], host: str) -> None:
        self.principals = principals
        self.host = host
        self._authorizer = authorizer
        self._index = authorizer.index
        self._decisions: dict[Used, Decision] = {}
        self._allowed_topics = AllowedTopics()
        self.used: dict[Used, None] | None = None
        """Uses of the request that is being judged; None if they are not counted."""

    @property
    def allowed_topics(self) -> AllowedTopics:
        """Topics that the ACLs in force allow, as far as connections have checked them."""
        self._current_index()
        return self._allowed_topics

    @property
    def version(self) -> int:
        """Version of the ACLs in force. Cached results are invalid once it changes."""
        return self._authorizer.index.version

    @property
    def auditing(self) -> bool:
        """True if denials are only counted: results must then not be cached."""
        return self._authorizer.mode is AuthorizerMode.AUDIT

    def may(
        self, operation: Operation, resource_type: ResourceType, name: str, *, report: bool = True
    ) -> bool:
        """Return whether the operation is allowed. `report` counts the result, and reports a
        denial."""
        mode = self._authorizer.mode
        if mode is AuthorizerMode.OFF:
            return True
        use = code_of(resource_type, operation), name
        decision = self._decide(operation, resource_type, use)
        if report:
            self._count(decision, operation, resource_type, use, would_be=self.auditing)
        return decision.allowed or mode is AuthorizerMode.AUDIT

    def permits(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Return whether the ACLs allow the operation, also in audit mode; not reported."""
        if self._authorizer.mode is AuthorizerMode.OFF:
            return True
        use = code_of(resource_type, operation), name
        allowed = self._decide(operation, resource_type, use).allowed
        if allowed and self.used is not None:
            note(self.used, use)
        return allowed

    def may_each(
        self, operation: Operation, resource_type: ResourceType, names: Sequence[str]
    ) -> list[bool]:
        """Return whether the operation is allowed on each of these resources; denials are not
        reported."""
        if self._authorizer.mode is not AuthorizerMode.ENFORCE:
            return [True] * len(names)
        index = self._authorizer.index
        return index.decide_each(self.principals, self.host, operation, resource_type, names)

    def operations_each(self, resource_type: ResourceType, names: Sequence[str]) -> list[int]:
        """Return the authorized-operations bit field for each of these resources."""
        supported = SUPPORTED_OPERATIONS[resource_type]
        bits = [1 << operation for operation in supported]
        allowed = (self.may_each(operation, resource_type, names) for operation in supported)
        return [sum(compress(bits, each)) for each in zip(*allowed, strict=True)]

    def reused(self, key: Hashable, content: bytes, cut: Callable[[], bytes]) -> bytes:
        """Return the result of `cut`, or the cached one for the same content and a client with the
        same permissions."""
        if self._authorizer.mode is not AuthorizerMode.ENFORCE:
            return cut()
        index = self._authorizer.index
        rights = index.rights_of(self.principals, self.host)
        return self._authorizer.results.get(index, (rights, key), content, cut)

    def may_any(self, operation: Operation, resource_type: ResourceType) -> bool:
        """Return whether the operation is allowed on any resource of the type
        (`authorizeByResourceType`)."""
        authorizer = self._authorizer
        if authorizer.mode is AuthorizerMode.OFF:
            return True
        decision = authorizer.index.decide_any(self.principals, self.host, operation, resource_type)
        use = code_of(resource_type, operation), WILDCARD
        self._count(decision, operation, resource_type, use, would_be=self.auditing)
        return decision.allowed or authorizer.mode is AuthorizerMode.AUDIT

    def may_every(
        self,
        operation: Operation,
        resource_type: ResourceType,
        name_prefix: str,
        *,
        report: bool = True,
    ) -> bool:
        """Return whether the operation is certainly allowed on every resource whose name has this
        prefix."""
        authorizer = self._authorizer
        if authorizer.mode is AuthorizerMode.OFF:
            return True
        decision = authorizer.index.decide_every(
            self.principals, self.host, operation, resource_type, name_prefix
        )
        if report:
            use = code_of(resource_type, operation), name_prefix + WILDCARD
            self._count(decision, operation, resource_type, use, would_be=self.auditing)
        return decision.allowed or self.auditing

    def may_administer(self, operation: Operation) -> bool:
        """Return whether the operation on ACLs, quotas and users is allowed. Also enforced in audit
        mode."""
        use = code_of(ResourceType.CLUSTER, operation), CLUSTER_NAME
        decision = self._decide(operation, ResourceType.CLUSTER, use)
        self._count(decision, operation, ResourceType.CLUSTER, use, would_be=False)
        return decision.allowed

    def passes_unjudged(self, api: str) -> None:
        """Count and report a request that cannot be judged and is forwarded only because of audit
        mode. `api` is its API and version, such as `Produce v2`."""
        operation, resource_type = Operation.UNKNOWN, ResourceType.UNKNOWN
        use = code_of(resource_type, operation), api
        self._count(DENIED_BY_DEFAULT, operation, resource_type, use, would_be=True)

    def operations(self, resource_type: ResourceType, name: str) -> int:
        """Return the authorized-operations bit field: bit N is the operation with code N."""
        return sum(
            1 << operation
            for operation in SUPPORTED_OPERATIONS[resource_type]
            if self.may(operation, resource_type, name, report=False)
        )

    def _decide(self, operation: Operation, resource_type: ResourceType, use: Used) -> Decision:
        authorizer, index = self._authorizer, self._current_index()
        decision = self._decisions.get(use)
        if decision is not None:
            authorizer.counts.cache_hits += 1
            return decision
        name = use[1]
        decision = index.decide(self.principals, self.host, operation, resource_type, name)
        if len(name) <= _MAX_CACHED_NAME:
            if len(self._decisions) >= _MAX_DECISIONS:
                self._decisions = {}
            self._decisions[use] = decision
        return decision

    def _current_index(self) -> AclIndex:
        """Return the ACLs in force; if they are new, drop the cached results."""
        index = self._authorizer.index
        if index is not self._index:
            self._index = index
            self._decisions = {}
            self._allowed_topics = AllowedTopics()
        return index

    def _count(
        self,
        decision: Decision,
        operation: Operation,
        resource_type: ResourceType,
        use: Used,
        *,
        would_be: bool,
    ) -> None:
        authorizer = self._authorizer
        if self.used is not None and (decision.allowed or would_be):
            note(self.used, use)
        if decision.allowed:
            authorizer.counts.allowed[operation] += 1
            return
        counts = authorizer.counts
        (counts.would_be_denied if would_be else counts.denied)[operation] += 1
        authorizer.report(
            Denial(
                principal=self.principals[0],
                host=self.host,
                operation=operation,
                resource_type=resource_type,
                name=use[1],
                rule=decision.rule,
                would_be=would_be,
                on_behalf_of=authorizer.on_behalf_of,
            )
        )


INTERVAL: Final = 60.0
"""Minimum time in seconds between two notices of one kind."""
MAX_KINDS_OF_PRINCIPAL: Final = 50
"""Maximum number of kinds per principal that are reported separately within an interval."""
MAX_KINDS: Final = 5_000
"""Maximum number of kinds that are reported separately within an interval."""

_Kind = tuple[str, Operation | None, ResourceType | None, str | None, bool]
"""Principal, operation, resource type and name of the resource (None for denials beyond the
bounds), and whether the denial was only counted."""
_ANY_PRINCIPAL: Final = ""
"""Principal of the kind that collects denials of any principal beyond `MAX_KINDS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenialNotice:
    """Notice of denials, for the log."""

    denial: Denial
    """Last of the denials."""
    count: int
    """Number of denials since the last notice of this kind, including this one."""
    others: bool = False
    """True if the notice is about denials of any resource beyond the bounds; `denial` is an
    example."""


class _Entry:
    __slots__ = ("count", "last", "noticed_at", "others")

    def __init__(self, denial: Denial, now: float, *, others: bool) -> None:
        self.count = 0
        self.last = denial
        self.others = others
        self.noticed_at = now

    def notice(self, now: float) -> DenialNotice:
        count, self.count, self.noticed_at = self.count, 0, now
        return DenialNotice(denial=self.last, count=count, others=self.others)


class Denials:
    """Recent denials. `now` is monotonic seconds."""

    def __init__(
        self,
        *,
        interval: float = INTERVAL,
        max_kinds_of_principal: int = MAX_KINDS_OF_PRINCIPAL,
        max_kinds: int = MAX_KINDS,
    ) -> None:
        self._interval = interval
        self._max_kinds_of_principal = max_kinds_of_principal
        self._max_kinds = max_kinds
        self._entries: OrderedDict[_Kind, _Entry] = OrderedDict()
        """Entries by kind, in the order of their last notice."""
        self._of_principal: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._entries)

    def note(self, denial: Denial, now: float) -> DenialNotice | None:
        """Count a denial; return a notice if one is due."""
        kind: _Kind = (
            denial.principal,
            denial.operation,
            denial.resource_type,
            denial.name,
            denial.would_be,
        )
        entry = self._entries.get(kind)
        if entry is None:
            kind = self._reported_kind(kind)
            entry = self._entries.get(kind)
        if entry is None:
            entry = _Entry(denial, now - self._interval, others=kind[3] is None)
            self._entries[kind] = entry
            self._of_principal[kind[0]] += 1
        entry.count += 1
        entry.last = denial
        if now - entry.noticed_at < self._interval:
            return None
        self._entries.move_to_end(kind)
        return entry.notice(now)

    def sweep(self, now: float) -> list[DenialNotice]:
        """Return the notices that are due, and remove kinds without denials for an interval.

        Called about once a second. The cost is proportional to the number of entries that are due.
        """
        due: list[DenialNotice] = []
        while self._entries:
            kind, entry = next(iter(self._entries.items()))
            if now - entry.noticed_at < self._interval:
                break
            if entry.count:
                due.append(entry.notice(now))
                self._entries.move_to_end(kind)
            else:
                self._forget(kind)
        return due

    def rest(self, now: float) -> list[DenialNotice]:
        """Return all pending notices, due or not, before the worker exits."""
        return [entry.notice(now) for entry in self._entries.values() if entry.count]

    def _reported_kind(self, kind: _Kind) -> _Kind:
        """Return the kind under which a new kind is reported: itself, or one for all further
        denials."""
        principal, would_be = kind[0], kind[4]
        if len(self._entries) < self._max_kinds:
            if self._of_principal[principal] < self._max_kinds_of_principal:
                return kind
            return principal, None, None, None, would_be
        own: _Kind = (principal, None, None, None, would_be)
        return own if own in self._entries else (_ANY_PRINCIPAL, None, None, None, would_be)

    def _forget(self, kind: _Kind) -> None:
        del self._entries[kind]
        self._of_principal[kind[0]] -= 1
        if not self._of_principal[kind[0]]:
            del self._of_principal[kind[0]]
