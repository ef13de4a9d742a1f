"""Administration of SCRAM users: through the APIs, in a shared file, and compared with Kafka."""

from pathlib import Path
from typing import Any

import pytest

from proxy.wire.schema import Message, replace
from tests.support.kafka.clients import JavaClient, User, confluent_admin, password_of, user
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.java import Finished
from tests.support.kafka.sasl_differential.transcript import logs_in
from tests.support.kafka.wire_client import Address, ask
from tests.support.proxy_process import SUPER_USER, ProxyProcess
from tests.support.sasl import Issuer
from tests.support.store import SEEN, Change, request_of, upsert

pytestmark = pytest.mark.kafka

DEADLINE = 120.0
NAME = "dave"
MECHANISM = "SCRAM-SHA-256"


def test_users_are_administered_by_a_super_user(
    gateway: ProxyProcess, issuer: Issuer, tmp_path: Path
) -> None:
    """Users are added and deleted on every worker; `test_python_administers_users` has the rest."""
    admin = user(issuer, MECHANISM, SUPER_USER).java(tmp_path)
    address = gateway.addresses()["LONG"]

    first = "SCRAM-SHA-512=[iterations=8192,password=first]"
    done = _configs(admin, address, "--alter", "--add-config", first)
    assert "Completed updating config" in done.stdout, done
    assert (NAME, "SCRAM-SHA-512") in gateway.users()
    _known(gateway, issuer, "SCRAM-SHA-512", "first", is_let_in=True)

    gone = ("--alter", "--delete-config", "SCRAM-SHA-512")
    assert _configs(admin, address, *gone).exit_status == 0
    assert NAME not in {name for name, _ in gateway.users()}
    _known(gateway, issuer, "SCRAM-SHA-512", "first", is_let_in=False)


def test_python_administers_users(gateway: ProxyProcess, issuer: Issuer) -> None:
    """librdkafka encodes the same messages and creates its own salts."""
    admin = confluent_admin.AdminClient(
        user(issuer, MECHANISM, SUPER_USER).confluent(str(gateway.addresses()["LONG"]))
    )
    mechanism = confluent_admin.ScramMechanism.SCRAM_SHA_256
    info = confluent_admin.ScramCredentialInfo(mechanism, 4096)
    upsertion = confluent_admin.UserScramCredentialUpsertion("erin", info, b"erin-secret")
    for future in admin.alter_user_scram_credentials([upsertion]).values():
        future.result(DEADLINE)
    described = admin.describe_user_scram_credentials(["erin"])["erin"].result(DEADLINE)
    assert [one.iterations for one in described.scram_credential_infos] == [4096]
    erin = User(name="erin", mechanism=MECHANISM, issuer=issuer)
    assert erin.name in {name for name, _ in gateway.users()}
    _known(gateway, issuer, MECHANISM, password_of("erin"), is_let_in=True, name="erin")
    deletion = confluent_admin.UserScramCredentialDeletion("erin", mechanism)
    for future in admin.alter_user_scram_credentials([deletion]).values():
        future.result(DEADLINE)
    assert "erin" not in {name for name, _ in gateway.users()}


def _configs(client: JavaClient, address: Address, *arguments: str) -> Finished:
    who = ("--entity-type", "users", "--entity-name", NAME)
    return client.run_tool("kafka-configs", str(address), *who, *arguments)


def _known(
    proxy: ProxyProcess,
    issuer: Issuer,
    mechanism: str,
    password: str,
    *,
    is_let_in: bool,
    name: str = NAME,
) -> None:
    proxy.until_known()
    address = proxy.addresses()["LONG"]
    for _ in range(4):  # on either worker
        assert logs_in(address, issuer, mechanism, name, password) is is_let_in


# --- Kafka's answers in tests/support/store.py

_ALTER, _DESCRIBE = 51, 50


def test_the_expected_answers_are_kafkas(kafka: KafkaCluster) -> None:
    """Each case has its own users."""
    for number, (changes, answer) in enumerate(SEEN):
        _alter(kafka, (_renamed(upsert("old"), number),))
        expected = {_name(user, number): outcome for user, outcome in answer.items()}
        assert _alter(kafka, [_renamed(one, number) for one in changes]) == expected, changes

    described = ask(kafka.address(), _DESCRIBE, 0, {"users": [{"name": "x"}, {"name": "x"}]})
    assert [(one.user, one.error_code.name, one.error_message) for one in described.results] == [
        (
            "x",
            "duplicate_resource",
            "Cannot describe SCRAM credentials for the same user twice in a single request: x",
        )
    ]


def _alter(kafka: KafkaCluster, changes: Any) -> dict[str, tuple[str, str | None]]:
    response = ask(kafka.address(), _ALTER, 0, _plain(request_of(changes)))
    return {one.user: (one.error_code.name, one.error_message) for one in response.results}


def _renamed(change: Change, number: int) -> Change:
    return replace(change, name=_name(change.name, number))


def _plain(value: Any) -> Any:
    if isinstance(value, Message):
        return {one.name: _plain(getattr(value, one.name)) for one in value.FIELDS}
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


def _name(name: str, number: int) -> str:
    return f"{number}-{name}" if name else ""
