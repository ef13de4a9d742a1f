"""Targets of the load generator, one for each row of the tables.

A target is a context manager that yields the address, the measured process tree, and the login. A
new row is one more entry in `ROWS`.
"""

import importlib.util
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any, Literal

import yaml

from benchmarks.programs import Address, MeasurementFailed, Unavailable, free_address, running
from proxy.acl.model import CLUSTER_NAME, Acl, Operation, PatternType, Permission, ResourceType
from proxy.quota.model import QuotaEntity, QuotaKey
from proxy.store import open_store

PROJECT = Path(__file__).parents[1]
USER = "bench"
SCRAM = "SCRAM-SHA-256"
OAUTHBEARER = "OAUTHBEARER"


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Credentials of `USER`, and how the proxy verifies its token."""

    password_file: Path
    token_file: Path
    jwks_file: Path
    issuer: str
    audience: str

    def login(self, mechanism: str | None) -> tuple[str, ...]:
        """Return the load generator's options for a mechanism; None: no authentication."""
        if mechanism is None:
            return ()
        secret = (
            ("--token-file", str(self.token_file))
            if mechanism == OAUTHBEARER
            else ("--password-file", str(self.password_file))
        )
        return ("--mechanism", mechanism, "--user", USER, *secret)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """Resources that all targets of a run share."""

    directory: Path
    """The directory of all files of the run."""
    broker: Address
    """The address of the fake broker."""
    credentials: Credentials
    certificate: Path
    """The certificate and key of targets that speak TLS (PEM)."""
    ca: Path
    """The certificate of its authority (PEM)."""
    cpus: set[int] | None
    """The CPUs that measured programs run on; None: any."""
    group: Path | None = None
    """The file `cgroup.procs` of a control group for proxies; None: they are in this program's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Running program that accepts connections."""

    address: Address
    pid: int | None
    """The first process of the measured tree; None: the generator connects to the broker."""
    mechanism: str | None = None
    """The mechanism of the login; None: the load generator does not authenticate."""
    ca: Path | None = None
    """The authority that the load generator trusts; None: it connects without TLS."""
    compiled: bool | None = None
    """Whether the proxy's data path is compiled, as its metrics have it; None: it is no proxy."""


Start = Callable[[Lab], AbstractContextManager[Target]]
Prepare = Callable[[Path], None]
"""Function that is called with the proxy's configuration file before the proxy starts."""


@contextmanager
def direct(lab: Lab) -> Iterator[Target]:
    """Yield the fake broker itself, which shows what the instruments can do."""
    yield Target(address=lab.broker, pid=None)


_HAPROXY = """\
global
    nbthread 1
    maxconn 6000
defaults
    mode tcp
    timeout connect 5s
    timeout client 1h
    timeout server 1h
frontend clients
    bind {address}{tls}
    default_backend brokers
backend brokers
    server broker {broker}
"""


def haproxy(name: str = "haproxy", *, tls: bool = False) -> Start:
    """Return how to start HAProxy as a relay with one thread and default settings.

    `tls`: it terminates its clients' TLS, and connects to the broker without.
    """

    @contextmanager
    def start(lab: Lab) -> Iterator[Target]:
        program = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
        if program is None:
            raise Unavailable("no haproxy (Debian: apt install haproxy)")
        address = free_address()
        directory = lab.directory / name
        directory.mkdir(exist_ok=True)
        config, ca = directory / "haproxy.cfg", lab.ca if tls else None
        options = f" ssl crt {lab.certificate}" if tls else ""
        config.write_text(_HAPROXY.format(address=address, broker=lab.broker, tls=options))
        command, log = [program, "-db", "-f", str(config)], directory / "haproxy.log"
        with running(command, log=log, address=address, cpus=lab.cpus, ca=ca) as process:
            yield Target(address=address, pid=process.pid, ca=ca)

    return start


def proxy(
    name: str,
    *,
    mechanism: str = SCRAM,
    listener: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    prepare: Prepare | None = None,
    tls: bool = False,
    compiled: bool = False,
    relays_logins: bool = False,
) -> Start:
    """Return how to start this project's proxy with more settings of its listener, and others.

    `tls`: it terminates its clients' TLS, and connects to the broker without. `compiled`: its data
    path is compiled, as in the image. `relays_logins`: the broker authenticates the clients.
    """

    @contextmanager
    def start(lab: Lab) -> Iterator[Target]:
        if importlib.util.find_spec("proxy.__main__") is None:
            raise Unavailable("no command line to start the proxy with (proxy/__main__.py)")
        project = _compiled(lab) if compiled else PROJECT
        directory = lab.directory / name
        directory.mkdir(exist_ok=True)
        address = free_address()
        config = directory / "proxy.yaml"
        ca = lab.ca if tls else None
        overrides = {**(listener or {}), **(sasl_ssl(lab) if tls else {})}
        document = proxy_config(lab, address, overrides) | dict(settings or {})
        if relays_logins:
            document = _relaying(document)
        config.write_text(yaml.safe_dump(document))
        if not relays_logins and not (directory / "state.db").exists():
            _add_user(lab, config)
        if prepare is not None:
            prepare(config)
        command = [sys.executable, "-m", "proxy", "serve", "--config", str(config)]
        http = Address.parse(document["http"]["address"])
        log = directory / "proxy.log"
        with running(
            command,
            log=log,
            address=address,
            cpus=lab.cpus,
            ca=ca,
            directory=project,
            group=lab.group,
        ) as process:
            if _is_compiled(http) is not compiled:
                raise MeasurementFailed(
                    f"should{'' if compiled else ' not'} run compiled, {project}"
                )
            yield Target(
                address=address, pid=process.pid, mechanism=mechanism, ca=ca, compiled=compiled
            )

    return start


def _compiled(lab: Lab) -> Path:
    """Return a compiled copy of the project, made at first use; an incomplete copy is not used."""
    from tests.support.compiled import compiled_copy, lacking

    copy, unfinished = lab.directory / "compiled-project", lab.directory / "compiling"
    if copy.exists():
        return copy
    if unfinished.exists():
        raise MeasurementFailed("it does not compile, see above")
    if (missing := lacking()) is not None:
        raise Unavailable(missing)
    unfinished.mkdir()
    try:
        return compiled_copy(unfinished).rename(copy)
    except RuntimeError as failure:
        raise MeasurementFailed(f"it does not compile: {str(failure)[-1_500:]}") from None


def _is_compiled(http: Address) -> bool:
    """Return whether a proxy's data path is compiled, as its metrics have it."""
    with urllib.request.urlopen(f"http://{http}/metrics", timeout=10) as answer:
        metrics = answer.read().decode()
    found = re.search(r'_build_info\{.*?compiled="(\w+)"', metrics)
    if found is None:
        raise MeasurementFailed(f"{http} does not say whether it is compiled")
    return found[1] == "true"


def sasl_ssl(lab: Lab) -> dict[str, str]:
    """Return a listener's settings for TLS."""
    return {"security.protocol": "SASL_SSL", "ssl.keystore.location": str(lab.certificate)}


def proxy_config(lab: Lab, address: Address, listener: Mapping[str, Any]) -> dict[str, Any]:
    """Return the usual configuration; `listener` overrides settings of its listener."""
    clients = {
        "name": "clients",
        "address": str(address),
        "routing": "sidecar",
        "sasl.enabled.mechanisms": [SCRAM, OAUTHBEARER],
        "connections.max.reauth.ms": 3_600_000,
        "reauth.enforcement": "enforce",
        "sasl.oauthbearer.jwks.endpoint.url": lab.credentials.jwks_file.as_uri(),
        "sasl.oauthbearer.expected.audience": [lab.credentials.audience],
        "sasl.oauthbearer.expected.issuer": lab.credentials.issuer,
    }
    return {
        "upstream": {"bootstrap.servers": str(lab.broker)},
        "listeners": [clients | dict(listener)],
        "store": {"url": "sqlite:state.db"},
        "events": {"directory": "events"},
        "http": {"address": str(free_address())},
        "shutdown.drain.ms": 1_000,
        "workers": 1,
    }


def _relaying(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration whose broker authenticates the clients."""
    [listener] = document["listeners"]
    kept = {
        key: value
        for key, value in listener.items()
        if not key.startswith("sasl.oauthbearer.") and key != "sasl.enabled.mechanisms"
    }
    upstream = document["upstream"] | {"security.protocol": "SASL_PLAINTEXT"}
    listeners = [kept | {"sasl.termination": "broker"}]
    return {**document, "upstream": upstream, "listeners": listeners}


def _add_user(lab: Lab, config: Path) -> None:
    command = [sys.executable, "-m", "proxy", "users", "add", USER, "--mechanism", SCRAM]
    files = ["--password-file", str(lab.credentials.password_file), "--config", str(config)]
    done = subprocess.run(
        [*command, *files],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=PROJECT,
    )
    if done.returncode != 0:
        raise MeasurementFailed(f"users add: {done.stdout}{done.stderr}")


def featured(
    name: str,
    *,
    acls: int | None = None,
    quotas: bool = False,
    records_uses: bool = False,
    tls: bool = False,
    compiled: bool = True,
) -> Start:
    """Return how to start the proxy with an authorizer, with quotas, or with both.

    `acls` is the number of ACLs; None: without an authorizer. `quotas`: of bytes produced, bytes
    fetched and request time, which are never exceeded. `records_uses`: in the event log.
    """

    def fill(config: Path) -> None:
        store = open_store(f"sqlite:{config.parent / 'state.db'}")
        if acls is not None:
            store.create_acls(list(islice(_acls(), acls)))
        if quotas:
            limits = {
                QuotaKey.PRODUCER_BYTE_RATE: 1e15,
                QuotaKey.CONSUMER_BYTE_RATE: 1e15,
                QuotaKey.REQUEST_PERCENTAGE: 1e9,
            }
            store.alter_quotas({QuotaEntity(user=USER): limits})
        store.close()

    settings = {
        "authorizer": {"mode": "off" if acls is None else "enforce"},
        "quotas": {"mode": "enforce" if quotas else "off"},
        "events": {"directory": "events", "usage": records_uses},
    }
    return proxy(name, settings=settings, prepare=fill, tls=tls, compiled=compiled)


def _acls() -> Iterator[Acl]:
    """Yield the ACLs that the load generator needs, then any number of others."""
    user = f"User:{USER}"
    for operation in (Operation.ALTER, Operation.DESCRIBE):  # to administer ACLs
        yield _acl(ResourceType.CLUSTER, CLUSTER_NAME, operation, user)
    for operation in (Operation.WRITE, Operation.READ):
        yield _acl(ResourceType.TOPIC, "bench", operation, user, PatternType.PREFIXED)
    yield _acl(ResourceType.GROUP, "bench", Operation.READ, user)
    for number in count():
        yield _acl(ResourceType.TOPIC, f"bench-{number}", Operation.WRITE, user)
        yield _acl(ResourceType.TOPIC, "bench", Operation.WRITE, f"{user}-{number}")


def _acl(
    resource_type: ResourceType,
    name: str,
    operation: Operation,
    principal: str,
    pattern_type: PatternType = PatternType.LITERAL,
) -> Acl:
    return Acl(
        resource_type=resource_type,
        pattern_type=pattern_type,
        name=name,
        principal=principal,
        host="*",
        operation=operation,
        permission=Permission.ALLOW,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Row of the tables."""

    name: str
    start: Start
    baseline: str | None = None
    """The row that its CPU per request is compared with, within each round; None: none."""
    limit: Literal["sessions", "features", "tls", "audit"] = "sessions"
    """The kind of a shape's limits that applies to it."""

    @property
    def tls(self) -> bool:
        """True if its clients speak TLS."""
        return self.limit == "tls"


def _featured_row(name: str, *, acls: int | None = None, quotas: bool = False) -> Row:
    start = featured(name, acls=acls, quotas=quotas)
    return Row(name=name, start=start, baseline="haproxy", limit="features")


ROWS: Sequence[Row] = (
    Row(name="direct", start=direct),
    Row(name="haproxy", start=haproxy()),
    Row(name="haproxy-tls", start=haproxy("haproxy-tls", tls=True), limit="tls"),
    Row(name="session-check", start=proxy("session-check"), baseline="haproxy"),
    Row(name="tls", start=proxy("tls", tls=True), baseline="haproxy-tls", limit="tls"),
    Row(name="compiled", start=proxy("compiled", compiled=True), baseline="haproxy"),
    Row(
        name="compiled-tls",
        start=proxy("compiled-tls", tls=True, compiled=True),
        baseline="haproxy-tls",
        limit="tls",
    ),
    Row(
        name="broker-sasl",
        start=proxy("broker-sasl", mechanism=OAUTHBEARER, compiled=True, relays_logins=True),
        baseline="haproxy",
    ),
    _featured_row("acls-10", acls=10),
    Row(
        name="audit",
        start=featured("audit", acls=10, records_uses=True),
        baseline="acls-10",
        limit="audit",
    ),
    _featured_row("acls-100000", acls=100_000),
    _featured_row("quotas", quotas=True),
    _featured_row("all", acls=100_000, quotas=True),
)
