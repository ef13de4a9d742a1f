"""Clients with groups, against Kafka's own StandardAuthorizer.

It knows clients of one principal. It is asked for each of a client's, and the answers are combined
by the rule of docs/acls.md: denied if any is denied by an ACL, else allowed if any is allowed.
"""

from dataclasses import dataclass
from itertools import islice
from random import Random

import pytest

from proxy.acl.index import AclIndex
from proxy.acl.model import Acl, Operation, PatternType, Permission, ResourceType
from tests.support.kafka.java import is_since, run_program

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.usefixtures("require_kafka"),
    pytest.mark.skipif(not is_since("4.1"), reason="StandardAuthorizer is started so since 4.1"),
]

SETS = 20_000
MAX_ACLS = 10
TYPES = (ResourceType.TOPIC, ResourceType.GROUP)
NAMES = ("a", "ab", "abc", "abd", "b", "hard")
PATTERNS = (PatternType.LITERAL, PatternType.LITERAL, PatternType.PREFIXED)
PERMISSIONS = (Permission.ALLOW, Permission.ALLOW, Permission.DENY)
GROUPS = tuple(f"Group:{name}" for name in "abcde")
PRINCIPALS = ("User:a", "User:b", "User:*", "Group:*", "User:Group:a", *GROUPS)
ACL_HOSTS = ("*", "*", "10.0.0.1", "192.0.2.1")
HOSTS = ("10.0.0.1", "10.0.0.2")
CROWD = tuple(f"Group:crowd{number}" for number in range(12))
OF_CROWD = tuple(
    Acl(kind, PatternType.LITERAL, "other", one, "*", Operation.ALL, Permission.ALLOW)
    for one in CROWD
    for kind in TYPES
)
"""Groups without a rule for any of `NAMES`; with them a client has so many that the rules of all
groups are searched at once."""
OPERATIONS = tuple(one for one in Operation if Operation.ALL < one <= Operation.IDEMPOTENT_WRITE)


@dataclass(frozen=True, slots=True)
class Case:
    """ACLs, and one question of one client."""

    acls: tuple[Acl, ...]
    everyone: bool
    principals: tuple[str, ...]
    host: str
    operation: Operation
    resource_type: ResourceType
    name: str

    def lines(self) -> list[str]:
        """For `Decisions`: what each principal may do, and what none of its ACLs denies it."""
        asked = f"{self.host} {self.operation.value} {self.resource_type.value} {self.name}"
        allows_all = Acl(
            self.resource_type,
            PatternType.LITERAL,
            self.name,
            "User:*",
            "*",
            Operation.ALL,
            Permission.ALLOW,
        )
        lines = []
        for acls in (self.acls, {*self.acls, allows_all}):
            lines.append(f"set {str(self.everyone).lower()}")
            lines += [_line(one) for one in acls]
            lines += [f"ask {principal} {asked}" for principal in self.principals]
        return lines


def _line(acl: Acl) -> str:
    return (
        f"acl {acl.resource_type.value} {acl.pattern_type.value} {acl.name} {acl.principal}"
        f" {acl.host} {acl.operation.value} {acl.permission.value}"
    )


def drawn(random: Random) -> Case:
    def acl() -> Acl:
        return Acl(
            random.choice(TYPES),
            pattern := random.choice(PATTERNS),
            random.choice(NAMES if pattern is PatternType.PREFIXED else (*NAMES, "*")),
            random.choice(PRINCIPALS),
            random.choice(ACL_HOSTS),
            random.choice((Operation.ALL, *OPERATIONS)),
            random.choice(PERMISSIONS),
        )

    groups = random.sample(GROUPS, random.randint(0, len(GROUPS)))
    return Case(
        tuple({acl() for _ in range(random.randint(1, MAX_ACLS))}),
        random.random() < 0.3,
        (random.choice(("User:a", "User:b")), *groups),
        random.choice(HOSTS),
        random.choice(OPERATIONS),
        random.choice(TYPES),
        random.choice(NAMES),
    )


def test_any_groups_are_judged_as_kafka_judges_each() -> None:
    random = Random(1)  # noqa: S311 - the same ones each time
    cases = [drawn(random) for _ in range(SETS)]
    stdin = "".join(f"{line}\n" for case in cases for line in case.lines())
    done = run_program("Decisions", [], stdin=stdin)
    assert done.exit_status == 0, done.stderr
    answers = iter(done.stdout.split())
    results = [0, 0]
    for case in cases:
        may, undenied = (
            [one == "ALLOWED" for one in islice(answers, len(case.principals))] for _ in range(2)
        )
        expected = all(undenied) and any(may)
        for crowd, of_crowd in (((), ()), (CROWD, OF_CROWD)):
            index = AclIndex(
                (*case.acls, *of_crowd), allow_everyone_if_no_acl_found=case.everyone, version=1
            )
            decision = index.decide(
                (*case.principals, *crowd),
                case.host,
                case.operation,
                case.resource_type,
                case.name,
            )
            assert decision.allowed is expected, (case, may, undenied, crowd)
        results[expected] += 1
    assert next(answers, None) is None
    assert min(results) > SETS / 10, "one answer is as good as the other"
