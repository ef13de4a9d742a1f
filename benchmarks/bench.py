"""Benchmark of the proxy's CPU time per request, latency and memory, beside HAProxy and Kafka.

Reproduce the tables of README.md here with

    make bench

which is `python -m benchmarks.bench`, about half an hour. Parts of it:

    python -m benchmarks.bench --quick                             # ten minutes, rougher
    python -m benchmarks.bench --figures relay --rows haproxy,all --shapes 'fetch*' --rounds 9
    python -m benchmarks.bench --figures relay,tls-handshakes --rows haproxy-tls,tls
    python -m benchmarks.bench --rows haproxy,session-check --rounds 15
    python -m benchmarks.bench --figures relayed-reauth --connections 10000
    python -m benchmarks.bench --json after.json                   # every round, for comparisons
    python -m benchmarks.bench --figures relay --markdown F.md    # the table of the README here

To compare two versions, run both with --json on the same quiet machine and compare ratios to
HAProxy, not microseconds. Needs a C compiler and OpenSSL's headers, and for their rows HAProxy and
Java 17 with Kafka's jars (Debian: gcc libc6-dev libssl-dev haproxy openjdk-17-jdk-headless maven).
Everything runs on loopback, and all programs that were started are ended.
"""

import argparse
import fnmatch
import json
import resource
import secrets
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import acl_administration, figures, logins, machine, report
from benchmarks.kafka_listener import kafka
from benchmarks.load import Generator
from benchmarks.programs import (
    MeasurementFailed,
    Unavailable,
    compile_all,
    free_address,
    on_cpus,
    running,
)
from benchmarks.targets import (
    OAUTHBEARER,
    ROWS,
    SCRAM,
    USER,
    Credentials,
    Lab,
    Row,
    Target,
    featured,
    haproxy,
    proxy,
)

_REAUTH_LIFETIME_SECONDS = 20
"""Lifetime of sessions in seconds, short enough to wait for: connections re-authenticate at 90 % of
it."""
_SPARE_DESCRIPTORS = 500
"""File descriptors of a worker that are not those of clients and their upstream connections."""
_METADATA_TOPICS, _METADATA_PARTITIONS = 1_000, 6
"""Number of topics in the Metadata response that is rewritten, and of partitions of each."""
_PROXY_ROWS = ("session-check", "compiled")
"""Rows whose logins are compared with Kafka's."""
_OF_THE_RELAY = ("commit", "cpu", "kernel", "python", "uvloop", "haproxy", "load before")
"""Parts of the machine's description that the relay's ratios depend on."""
_WITHOUT_TLS = {"haproxy-tls": "haproxy", "tls": "session-check", "compiled-tls": "compiled"}
"""Rows with TLS, and the rows that are the same without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Plan of a run: what is measured, and how much of it."""

    rows: Sequence[Row]
    shapes: Sequence[figures.Shape]
    figures: Sequence[str]
    rounds: int
    seconds: float
    """Seconds of one round of one row."""
    auth_warm_up_seconds: float
    """Seconds of logins before any count."""
    idle_connections: int
    """Number of connections in the figure `idle`."""
    reauth_connections: int
    """Number of connections in the figures `reauth` and `relayed-reauth`."""
    reauth_seconds: float
    """Seconds over which they log in."""


class Bench:
    """Run of the benchmark: its programs, and its results so far."""

    def __init__(self, plan: Plan, lab: Lab, programs: dict[str, Path], console: Console) -> None:
        self._plan = plan
        self._lab = lab
        self._programs = programs
        self._generator = Generator(program=programs["load"], credentials=lab.credentials)
        self._console = console
        self.results: dict[str, Any] = {}
        self.relayed: dict[str, dict[str, figures.Relayed]] = {}
        """The results of the relay by shape and row."""
        self._failures: list[str] = []

    def run(self) -> bool:
        """Measure what the plan has; return False if anything failed.

        A program that is not installed is no failure.
        """
        for name in self._plan.figures:
            try:
                FIGURES[name](self)
            except (MeasurementFailed, Unavailable) as problem:
                self._leave_out(name, problem)
        self.results["failures"] = self._failures
        return not self._failures

    def relay(self) -> None:
        with self._rows(self._plan.rows) as targets:
            baselines = {row.name: row.baseline for row in self._plan.rows if row.baseline}
            found = self.relayed
            for shape in self._plan.shapes:
                self._console.print(f"relay {shape.name} …", style="dim")
                found[shape.name] = figures.relay(
                    self._generator,
                    targets,
                    shape,
                    baselines=baselines,
                    rounds=self._plan.rounds,
                    seconds=self._plan.seconds,
                )
        self.results["relay"] = {
            shape: {row: asdict(each) | {"median": each.medians()} for row, each in rows.items()}
            for shape, rows in found.items()
        }
        self._console.print(report.relay(found, self._plan.shapes, self._plan.rows))

    def auth(self) -> None:
        with self._rows(self._login_rows()) as targets, self._relayed_logins(targets) as relayed:
            targets |= relayed
            found = {}
            for mechanism in (SCRAM, OAUTHBEARER):
                self._console.print(f"authentication by {mechanism} …", style="dim")
                found[mechanism] = logins.authentication(
                    self._generator,
                    targets,
                    mechanism,
                    rounds=self._plan.rounds,
                    seconds=self._plan.seconds,
                    warm_up_seconds=self._plan.auth_warm_up_seconds,
                )
        self.results["auth"] = {
            mechanism: {row: asdict(each) for row, each in rows.items()}
            for mechanism, rows in found.items()
        }
        self._console.print(report.auth(found))

    def first_auth(self) -> None:
        found = {}
        for mechanism in (SCRAM, OAUTHBEARER):
            self._console.print(f"first authentications by {mechanism} …", style="dim")
            with self._rows(self._login_rows()) as targets:
                found[mechanism] = logins.first_authentications(self._generator, targets, mechanism)
        self.results["first-auth"] = {
            mechanism: {row: [asdict(each) for each in windows] for row, windows in rows.items()}
            for mechanism, rows in found.items()
        }
        self._console.print(report.first_auth(found))

    def _login_rows(self) -> list[Row]:
        proxies = (row for row in self._plan.rows if row.name in _PROXY_ROWS)
        return [Row(name="kafka", start=kafka), *proxies]

    @contextmanager
    def _relayed_logins(self, targets: Mapping[str, Target]) -> Iterator[dict[str, Target]]:
        """Start the proxy in front of Kafka's listener, which authenticates the clients, and
        HAProxy, which shows what the connection to Kafka costs at least."""
        behind = targets.get("kafka")
        starts = {
            f"relayed-{name}": proxy(
                f"relayed-{name}", compiled=name == "compiled", relays_logins=True
            )
            for name in _PROXY_ROWS
            if behind is not None and name in targets
        }
        if starts:
            starts["relayed-haproxy"] = haproxy("relayed-haproxy")
        lab = self._lab if behind is None else replace(self._lab, broker=behind.address)
        with self._rows([Row(name=name, start=each) for name, each in starts.items()], lab) as rows:
            yield rows

    def tls_handshakes(self) -> None:
        self._console.print("TLS handshakes …", style="dim")
        wanted = {row.name for row in self._plan.rows if row.tls}
        wanted |= {_WITHOUT_TLS[name] for name in wanted}
        baselines = {row.name: row.baseline for row in self._plan.rows if row.baseline}
        with self._rows([row for row in ROWS if row.name in wanted]) as targets:
            found = figures.handshakes(
                self._generator,
                {name: one for name, one in targets.items() if one.ca is not None},
                {name: targets[bare] for name, bare in _WITHOUT_TLS.items() if bare in targets},
                baselines=baselines,
                rounds=self._plan.rounds,
                seconds=self._plan.seconds,
            )
        self.results["tls-handshakes"] = {row: asdict(each) for row, each in found.items()}
        self._console.print(report.handshakes(found, baselines))

    def idle(self) -> None:
        found = {}
        for row in self._plan.rows:
            self._console.print(f"memory of {row.name} …", style="dim")
            # A new process for each: memory that earlier figures left on its heap would be reused.
            with self._rows([row]) as targets:
                for target in targets.values():
                    if target.pid is not None:
                        found[row.name] = figures.idle_memory(
                            self._generator, target, connections=self._plan.idle_connections
                        )
        self.results["idle"] = {row: asdict(each) for row, each in found.items()}
        self._console.print(report.idle(found))

    def reauth(self) -> None:
        count = self._plan.reauth_connections
        self._console.print(f"re-authentication of {count} connections …", style="dim")
        lifetime = {"connections.max.reauth.ms": _REAUTH_LIFETIME_SECONDS * 1_000}
        found = {}
        for mechanism in (SCRAM, OAUTHBEARER):
            with proxy("reauth", mechanism=mechanism, listener=lifetime)(self._lab) as target:
                found[mechanism] = figures.reauthentication(
                    self._generator, target, connections=count, seconds=self._plan.reauth_seconds
                )
        self.results["reauth"] = {mechanism: asdict(each) for mechanism, each in found.items()}
        self._console.print(report.reauth(found))

    def relayed_reauth(self) -> None:
        """Brokers announce no lifetime, so that every re-authentication has a side connection.

        The fake broker shows what the proxy can do, and counts its connections; Kafka what it does
        in front of a broker that takes its time.
        """
        found: dict[str, figures.Reauthenticated] = {}
        for row in self._login_rows()[1:]:
            compiled = row.name == "compiled"
            with fake_broker(self._programs, self._lab) as lab:
                log = broker_log(lab)
                name = f"{OAUTHBEARER}, fake broker, {row.name}"
                found[name] = self._renewed_aside(name, lab, OAUTHBEARER, compiled=compiled)
            most = int(log.read_text().split()[-2]) - found[name].connections
            found[name] = replace(found[name], side_connections=most)
            with kafka(self._lab, max_reauth_ms=0) as behind:
                lab = replace(self._lab, broker=behind.address)
                for mechanism in (SCRAM, OAUTHBEARER):
                    name = f"{mechanism}, Kafka, {row.name}"
                    found[name] = self._renewed_aside(name, lab, mechanism, compiled=compiled)
        self.results["relayed-reauth"] = {key: asdict(each) for key, each in found.items()}
        self._console.print(report.reauth(found))

    def _renewed_aside(
        self, name: str, lab: Lab, mechanism: str, *, compiled: bool
    ) -> figures.Reauthenticated:
        count = self._plan.reauth_connections
        self._console.print(f"re-authentication of {count} connections, {name} …", style="dim")
        listener = {
            "connections.max.reauth.ms": _REAUTH_LIFETIME_SECONDS * 1_000,
            "max.connections": count + _SPARE_DESCRIPTORS,
        }
        _, descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)
        workers = 1 + (2 * count + _SPARE_DESCRIPTORS) // descriptors
        start = proxy(
            name.replace(", ", "-"),
            mechanism=mechanism,
            listener=listener,
            settings={"workers": workers},
            compiled=compiled,
            relays_logins=True,
        )
        with start(lab) as target:
            # A JVM compiles what it runs often.
            self._generator.measure(
                target,
                "auth",
                connections=8,
                seconds=self._plan.auth_warm_up_seconds,
                mechanism=mechanism,
            )
            return figures.reauthentication(
                self._generator,
                target,
                connections=count,
                seconds=self._plan.reauth_seconds,
                requests="fetch",  # Kafka closes on invalid records
            )

    def metadata(self) -> None:
        sizes = ["--topics", str(_METADATA_TOPICS), "--partitions", str(_METADATA_PARTITIONS)]
        with fake_broker(self._programs, self._lab, *sizes) as lab:
            found = figures.metadata_rewrite(lab.broker)
        self.results["metadata"] = asdict(found)
        self._console.print(report.metadata(found, _METADATA_TOPICS, _METADATA_PARTITIONS))

    def acls(self) -> None:
        self._console.print("administration of ACLs …", style="dim")
        start = featured("administration", acls=acl_administration.ACLS, compiled=False)
        with start(self._lab) as target:
            found = acl_administration.administration(
                self._generator, target, self._lab.credentials
            )
        self.results["acls"] = {work: asdict(each) for work, each in found.items()}
        self._console.print(report.acls(found))

    @contextmanager
    def _rows(self, rows: Sequence[Row], lab: Lab | None = None) -> Iterator[dict[str, Target]]:
        """Start these rows; one that cannot run here is left out, with a line about the reason.

        None as `lab`: the one of the bench."""
        targets = {}
        with ExitStack() as stack:
            for row in rows:
                try:
                    targets[row.name] = stack.enter_context(row.start(lab or self._lab))
                except (MeasurementFailed, Unavailable) as problem:
                    self._leave_out(row.name, problem)
            yield targets

    def _leave_out(self, name: str, problem: Exception) -> None:
        if isinstance(problem, MeasurementFailed):
            self._failures.append(f"{name}: {problem}")
        self._console.print(f"{name} left out: {problem}", style="red", markup=False)


FIGURES: dict[str, Callable[[Bench], None]] = {
    "relay": Bench.relay,
    "auth": Bench.auth,
    "first-auth": Bench.first_auth,
    "tls-handshakes": Bench.tls_handshakes,
    "idle": Bench.idle,
    "reauth": Bench.reauth,
    "relayed-reauth": Bench.relayed_reauth,
    "metadata": Bench.metadata,
    "acls": Bench.acls,
}


@contextmanager
def fake_broker(programs: dict[str, Path], lab: Lab, *options: str) -> Iterator[Lab]:
    """Start a fake broker; yield the lab with it as its broker."""
    address = free_address()
    command = [str(programs["fake_broker"]), "--port", str(address.port), *options]
    lab = replace(lab, broker=address)
    with running(command, log=broker_log(lab), address=address):
        yield lab


def broker_log(lab: Lab) -> Path:
    """Return the file with the output of a fake broker."""
    return lab.directory / f"fake-broker-{lab.broker.port}.log"


def make_credentials(directory: Path) -> Credentials:
    """Make a password, a signing key and a token for the run."""
    from tests.support.sasl import AUDIENCE, ISSUER, Issuer

    issuer = Issuer()
    password_file, token_file = directory / "password", directory / "token"
    password_file.write_text(secrets.token_hex(16) + "\n")
    token_file.write_text(issuer.mint(USER, lifetime=86_400) + "\n")
    return Credentials(
        password_file=password_file,
        token_file=token_file,
        jwks_file=issuer.write_jwks(directory / "jwks.json"),
        issuer=ISSUER,
        audience=AUDIENCE,
    )


def make_lab(directory: Path, cpus: set[int] | None = None) -> Lab:
    """Make what all targets share except the broker; the certificate has an ECDSA P-256 key."""
    from tests.support.certificates import Authority

    authority = Authority()
    certificate = directory / "server.pem"
    certificate.write_bytes(authority.issue("benchmark").pem)
    return Lab(
        directory=directory,
        broker=free_address(),
        credentials=make_credentials(directory),
        certificate=certificate,
        ca=authority.write(directory),
        cpus=cpus,
    )


def arg_parser() -> argparse.ArgumentParser:
    """Return the command's options."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    rows, shapes = [row.name for row in ROWS], [shape.name for shape in figures.SHAPES]
    for option, known in (("rows", rows), ("shapes", shapes), ("figures", list(FIGURES))):
        parser.add_argument(
            f"--{option}",
            type=_some_of(known),
            default=known,
            metavar="A,B",
            help=f"some of: {', '.join(known)}; * stands for anything (default: all)",
        )
    parser.add_argument("--rounds", type=int, help="of each row (default 7; with --quick 3)")
    parser.add_argument("--seconds", type=float, help="of a round (default 1; with --quick 0.5)")
    parser.add_argument(
        "--connections", type=int, help="that re-authenticate (default 5000; with --quick 500)"
    )
    parser.add_argument("--quick", action="store_true", help="shorter and rougher")
    parser.add_argument(
        "--pin", action="store_true", help="measured programs on a CPU of their own"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all values there")
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help="write the ratios of the relay there"
    )
    return parser


def _some_of(known: Sequence[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        patterns = text.split(",")
        unknown = [each for each in patterns if not fnmatch.filter(known, each)]
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: none of {', '.join(known)}")
        return [name for name in known if any(fnmatch.fnmatchcase(name, each) for each in patterns)]

    return parse


def make_plan(options: argparse.Namespace) -> Plan:
    """Return what the options ask for."""
    quick = options.quick
    return Plan(
        rows=[row for row in ROWS if row.name in options.rows],
        shapes=[shape for shape in figures.SHAPES if shape.name in options.shapes],
        figures=options.figures,
        rounds=options.rounds or (3 if quick else 7),
        seconds=options.seconds or (0.5 if quick else 1.0),
        auth_warm_up_seconds=4.0 if quick else 12.0,
        idle_connections=500 if quick else 2_000,
        reauth_connections=options.connections or (500 if quick else 5_000),
        reauth_seconds=1.0 if quick else 10.0,
    )


def _caption(description: Mapping[str, str], arguments: Sequence[str]) -> str:
    """Return a sentence about the machine and the command of the figures."""
    files = {"--json", "--markdown"}
    before = ["", *arguments]
    how = [each for last, each in zip(before, arguments, strict=False) if not {last, each} & files]
    what = ", ".join(f"{name} {description[name]}" for name in _OF_THE_RELAY)
    return f"`python -m benchmarks.bench {shlex.join(how)}`: {what}."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks; return 0, or 1 if one failed."""
    parser = arg_parser()
    options = parser.parse_args(arguments)
    if options.markdown and "relay" not in options.figures:
        parser.error("--markdown has the ratios of the relay: add relay to --figures")
    # A file or pipe has no width; narrow tables would lose their headings.
    console = Console() if sys.stdout.isatty() else Console(width=140)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # for the programs started here
    generators, measured = machine.split_cpus() if options.pin else (None, None)
    try:
        with tempfile.TemporaryDirectory(prefix="benchmarks-") as name, on_cpus(generators):
            directory = Path(name)
            programs = compile_all(directory)
            with fake_broker(programs, make_lab(directory, measured)) as lab:
                description = machine.describe(pinned=options.pin)
                console.print(report.machine(description))
                plan = make_plan(options)
                bench = Bench(plan, lab, programs, console)
                done = bench.run()
    except Unavailable as missing:
        console.print(f"{missing}", style="red", markup=False)
        return 1
    if options.json:
        options.json.write_text(json.dumps({"machine": description} | bench.results, indent=2))
    if options.markdown:
        caption = _caption(description, arguments or sys.argv[1:])
        table = report.relay_markdown(bench.relayed, plan.shapes, plan.rows, caption)
        options.markdown.write_text(table)
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
