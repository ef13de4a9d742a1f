"""Import of a KRaft cluster's users with their passwords."""

import asyncio
import json
from pathlib import Path

import pytest

from proxy.admin import AdminClient, AuthenticationFailed, KafkaError, Scram
from proxy.quota.model import QuotaEntity
from proxy.store.kraft import LOG_DIRECTORY, read_metadata
from tests.support.kafka import java
from tests.support.kafka.acl_differential.profiles import creation
from tests.support.kafka.acl_differential.side import AUTHORIZER_PROPERTIES
from tests.support.kafka.cluster import KafkaCluster, StartCluster, wait_until
from tests.support.kafka.scram_client import salted_password
from tests.support.kafka.wire_client import Address
from tests.support.proxy_process import ProxyProcess, sidecar_config

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

USERS = 20
SNAPSHOTS = {
    "metadata.log.max.record.bytes.between.snapshots": "1000",
    "metadata.log.max.snapshot.interval.ms": "2000",
}
"""Small enough that snapshots are taken while users are added."""
_CREATE_ACLS, _ALTER_SCRAM = 30, 51
PASSWORD_OF_TOOL = "s3cret"


def add_users(cluster: KafkaCluster, first: int, last: int, prefix: str = "pw") -> None:
    """Like kafka-configs, but with many users per request."""
    cluster.ask(
        _ALTER_SCRAM,
        0,
        deletions=[],
        upsertions=[
            {
                "name": f"user-{number}",
                "mechanism": 1,
                "iterations": 4_096,
                "salt": (salt := f"salt-of-{number}".encode()),
                "salted_password": salted_password(
                    "SCRAM-SHA-256", f"{prefix}-{number}", salt, 4_096
                ),
            }
            for number in range(first, last)
        ],
    )


async def who_logs_in(address: Address, passwords: dict[str, str]) -> set[str]:
    """Users whose password is accepted."""

    async def may(name: str, password: str) -> bool:
        try:
            login = Scram(username=name, password=password)
            async with AdminClient(str(address), login=login) as admin:
                await admin.describe_acls()
        except AuthenticationFailed:
            return False
        except KafkaError:  # logged in; the cluster has no authorizer
            return True
        return True

    found = await asyncio.gather(*(may(*one) for one in passwords.items()))
    return {name for name, has in zip(passwords, found, strict=True) if has}


def test_users_keep_their_passwords(
    start_cluster: StartCluster, jwks: Path, tmp_path: Path
) -> None:
    """Read from the disk of a follower while the cluster runs."""
    cluster = start_cluster(
        nodes=2, controllers=1, properties={**SNAPSHOTS, **AUTHORIZER_PROPERTIES}
    )
    add_users(cluster, 0, USERS // 2)
    add_users(cluster, 0, 2, prefix="newer")
    added = f"SCRAM-SHA-256=[iterations=4096,password={PASSWORD_OF_TOOL}]"
    done = java.run_tool(
        "kafka-configs",
        [
            *("--bootstrap-server", cluster.bootstrap(), "--alter", "--add-config", added),
            *("--entity-type", "users", "--entity-name", "by the tool"),
        ],
    )
    assert done.exit_status == 0, done.stdout + done.stderr
    places = [cluster._nodes[number].directory / "data" for number in cluster.node_ids]

    def has_snapshot(place: Path) -> bool:
        found = (place / LOG_DIRECTORY).glob("*.checkpoint")
        return any(b"by the tool" in one.read_bytes() for one in found)

    wait_until(lambda: all(map(has_snapshot, places)), what="no snapshots")
    add_users(cluster, USERS // 2, USERS)
    (created,) = cluster.ask(
        _CREATE_ACLS, 3, creations=[creation("+topic:t:READ", "a", str)]
    ).results
    assert created.error_code == 0

    async def limit() -> None:
        async with AdminClient(cluster.bootstrap()) as admin:
            changes = {QuotaEntity(user="user-1"): {"producer_byte_rate": 1_024.0}}
            (await admin.alter_client_quotas(changes)).all()

    asyncio.run(limit())
    for place in places:
        wait_until(
            lambda p=place: len(read_metadata(p).quotas()) == 1,  # type: ignore[misc]
            what=f"{place} is behind",
        )

    config = sidecar_config(cluster.bootstrap().split(",")[0], jwks, listeners={"LONG": 3_600_000})
    proxy = ProxyProcess(config, tmp_path)
    options = ("--from-kraft", str(places[-1]), "--acls", "--quotas", "--output", "json")
    told = {one["kind"]: one for one in json.loads(proxy.command("users", "import", *options))}
    assert told["verifiers"]["new"] == USERS + 1
    assert told["ACLs"]["new"] == told["quotas"]["new"] == 1
    told = {one["kind"]: one for one in json.loads(proxy.command("users", "import", *options))}
    assert told["verifiers"] == {
        "kind": "verifiers",
        "new": 0,
        "changed": 0,
        "same": USERS + 1,
        "gone": 0,
    }
    passwords = {f"user-{number}": f"pw-{number}" for number in range(USERS)}
    passwords |= {f"user-{number}": f"newer-{number}" for number in range(2)}
    passwords["by the tool"] = PASSWORD_OF_TOOL
    with proxy:
        address = proxy.addresses()["LONG"]
        assert asyncio.run(who_logs_in(address, passwords)) == passwords.keys()
        wrong = {"user-0": "pw-0", "user-5": "pw-6", "nobody": "pw-0"}
        assert not asyncio.run(who_logs_in(address, wrong))
