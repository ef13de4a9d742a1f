"""What applies, and why; and ACLs and quotas as files declare them."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import Result

from proxy.config import Routing
from proxy.config.document import parse
from proxy.config.first_file import first_file
from tests.support.metrics import to_json_line
from tests.support.proxy_process import refusal, rows, run
from tests.support.readiness import login, use
from tests.support.sasl import document, ed_key
from tests.support.settings import TOKENS
from tests.support.tables import table


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return configured(tmp_path, "enforce")


def configured(directory: Path, mode: str) -> Path:
    file = directory / f"{mode}.yaml"
    settings = parse(first_file(Routing.SIDECAR).encode())
    settings["authorizer"] = {"mode": mode, "super.users": ["User:admin"]}
    settings["quotas"] = {"mode": mode}
    file.write_text(yaml.safe_dump(settings))
    return file


def add(config: Path, *options: str) -> Result:
    return run("acls", "add", "--topic", "orders", *options, "--config", config)


def explain(config: Path, who: str, *options: str) -> Result:
    asked = ("--principal", who, "--operation", "read", "--topic", "orders")
    return run("acls", "explain", *asked, *options, "--config", config)


def test_the_acl_that_decides_is_named(config: Path) -> None:
    add(config, "--allow-principal", "alice", "--operation", "Read")
    add(config, "--deny-principal", "alice", "--operation", "Read", "--deny-host", "10.0.0.0/8")
    allowed = explain(config, "alice")
    assert (allowed.exit_code, allowed.stderr) == (0, "")
    assert allowed.stdout == (
        "User:alice may Read TOPIC orders: the ACL TOPIC LITERAL orders User:alice * READ ALLOW\n"
    )
    denied = explain(config, "alice", "--host", "10.1.2.3", "-o", "json")
    assert denied.exit_code == 1
    told = json.loads(denied.stdout)
    assert (told["allowed"], told["mode"]) == (False, "enforce")
    assert told["acl"] == "TOPIC LITERAL orders User:alice 10.0.0.0/8 READ DENY"
    assert "no ACL allows it" in explain(config, "bob").stdout
    assert "a super user" in explain(config, "admin").stdout


def test_a_group_that_decides_is_named(config: Path) -> None:
    add(config, "--allow-principal", "Group:analysts", "--operation", "Read")
    add(config, "--deny-principal", "Group:interns", "--operation", "Read")
    member = explain(config, "alice", "--member-of", "analysts")
    assert member.exit_code == 0
    assert member.stdout == (
        "User:alice may Read TOPIC orders:"
        " the ACL TOPIC LITERAL orders Group:analysts * READ ALLOW\n"
        "  User:alice alone may not: no ACL allows it\n"
        "  Group:analysts alone may:"
        " the ACL TOPIC LITERAL orders Group:analysts * READ ALLOW\n"
    )
    of_both = ("--member-of", "analysts", "--member-of", "Group:interns")
    denied = explain(config, "alice", *of_both, "-o", "json")
    assert denied.exit_code == 1
    told = json.loads(denied.stdout)
    assert told["groups"] == ["Group:analysts", "Group:interns"]
    assert told["acl"] == "TOPIC LITERAL orders Group:interns * READ DENY"
    alone = {one: decided["allowed"] for one, decided in told["alone"].items()}
    assert alone == {"User:alice": False, "Group:analysts": True, "Group:interns": False}
    assert "no ACL allows it" in explain(config, "analysts").stdout


@pytest.fixture
def with_tokens(config: Path) -> Path:
    """A listener whose tokens have groups, and sessions in their names."""
    settings = yaml.safe_load(config.read_text())
    (config.parent / "jwks.json").write_bytes(document(ed_key().jwk()))
    settings["listeners"][0] |= {
        **TOKENS,
        "sasl.oauthbearer.groups.claim.name": "realm.roles",
        "sasl.oauthbearer.principal.mapping.rules": "RULE:^(.*)-[0-9]+$/$1/",
    }
    config.write_text(yaml.safe_dump(settings))
    return config


def explaining(config: Path, claims: object) -> tuple[object, ...]:
    file = config.parent / "claims.json"
    file.write_text(json.dumps(claims))
    asked = ("--claims", file, "--operation", "read", "--topic", "orders")
    return ("acls", "explain", *asked, "--config", config)


def test_claims_are_read_as_the_listener_reads_them(with_tokens: Path) -> None:
    add(with_tokens, "--allow-principal", "Group:analysts", "--operation", "Read")
    done = run(*explaining(with_tokens, {"sub": "app-1", "realm": {"roles": ["analysts"]}}))
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("User:app may Read TOPIC orders: the ACL")


@pytest.mark.parametrize(
    ("claims", "problem"),
    [
        ([], "must be a JSON object"),
        ({"sub": "app"}, "sub gives no principal"),
        ({"sub": 7}, "sub gives no principal"),
        ({"sub": "app-1", "realm": {"roles": [7]}}, "must be text or a list of texts"),
        ({"sub": "app-1", "realm": []}, "crosses a value that is not an object"),
    ],
)
def test_claims_that_would_be_refused_are(with_tokens: Path, claims: object, problem: str) -> None:
    assert problem in refusal(*explaining(with_tokens, claims))


def with_group_quotas(config: Path, *limits: tuple[str, str]) -> Path:
    """A configuration with the callback of groups, and quotas of users and groups."""
    settings = yaml.safe_load(config.read_text())
    settings["quotas"]["client.quota.callback.class"] = "proxy.quota.group_quotas:GroupQuotas"
    config.write_text(yaml.safe_dump(settings))
    for user, limit in limits:
        run("quotas", "set", "--user", user, f"producer_byte_rate={limit}", "--config", config)
    return config


def test_the_quota_of_a_group_is_explained_with_those_of_the_others(config: Path) -> None:
    with_group_quotas(config, ("Group:analysts", "20"), ("Group:interns", "10"))
    groups = ("--member-of", "analysts", "--member-of", "Group:interns", "--member-of", "ops")
    asked = ("quotas", "explain", "--user", "alice", *groups, "--config", config)
    assert run(*asked).stdout.splitlines()[:6] == [
        "producer_byte_rate: 10, shared by all members of Group:interns",
        "  2. /config/users/alice/clients/<default>: not set",
        "  3. /config/users/alice: not set",
        "  group. /config/users/Group%3Ainterns: applies",
        "  group. /config/users/Group%3Aanalysts: would be 20",
        "  group. /config/users/Group%3Aops: not set",
    ]
    found = json.loads(run(*asked, "-o", "json").stdout)[0]
    assert (found["limit"], found["tags"]) == (10.0, {"group": "interns"})


def test_quotas_of_a_token_are_explained_by_its_claims(with_tokens: Path) -> None:
    with_group_quotas(with_tokens, ("Group:analysts", "20"))
    file = with_tokens.parent / "claims.json"
    file.write_text(json.dumps({"sub": "app-1", "realm": {"roles": ["analysts"]}}))
    done = run("quotas", "explain", "--claims", file, "--config", with_tokens)
    assert done.stdout.startswith("producer_byte_rate: 20, shared by all members of Group:analysts")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ((), "give either --user"),
        (("--user", "alice", "--claims", "x"), "give either --user"),
        (("--user", "alice", "--member-of", "*"), "no group can have that name"),
        (("--user", "alice", "--member-of", "a"), "groups have quotas by"),
    ],
)
def test_whose_quotas_are_asked_for(config: Path, options: tuple[str, ...], problem: str) -> None:
    assert problem in refusal("quotas", "explain", *options, "--config", config)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("", "give either --principal"),
        ("--claims x --principal alice", "give either --principal"),
        ("--principal alice --member-of *", "no group can have that name"),
        ("--principal alice --host example", "must be an IP address"),
        ("--principal alice --group g", "give one resource"),
        ("--principal alice --resource-pattern-type prefixed", "give one resource"),
    ],
)
def test_a_question_must_be_one(config: Path, options: str, problem: str) -> None:
    asked = ("--operation", "read", "--topic", "orders", "--config", config)
    assert problem in refusal("acls", "explain", *options.split(), *asked)


@pytest.mark.parametrize("mode", ["off", "audit", "enforce"])
def test_changes_without_effect_say_so(tmp_path: Path, mode: str) -> None:
    config = configured(tmp_path, mode)
    file = tmp_path / "declared.yaml"
    assert add(config, "--allow-principal", "alice", "-o", "json").exit_code == 0
    file.write_text(run("acls", "export", "--config", config).stdout)
    said = [
        add(config, "--allow-principal", "alice"),
        explain(config, "alice"),
        run("acls", "apply", "-f", file, "--config", config),
    ]
    for one in said:
        assert ("authorizer.mode is" in one.stderr) is (mode != "enforce"), one.stderr
    said = [
        run("quotas", "set", "--user", "alice", "producer_byte_rate=5", "--config", config),
        run("quotas", "explain", "--user", "alice", "--config", config),
    ]
    for one in said:
        assert (f"quotas.mode is {mode}" in one.stderr) is (mode != "enforce"), one.stderr


def test_acls_are_exported_and_applied(config: Path, tmp_path: Path) -> None:
    add(config, "--allow-principal", "alice", "--operation", "Read")
    add(config, "--allow-principal", "on", "--operation", "Write")
    file = tmp_path / "acls.yaml"
    file.write_text(run("acls", "export", "--config", config).stdout)
    apply = ("acls", "apply", "-f", file, "--config", config)
    same = run(*apply, "--prune")
    assert (same.exit_code, same.stderr) == (0, "reauth-proxy: no changes found\n")

    declared = yaml.safe_load(file.read_text())
    assert [one["principal"] for one in declared] == ["User:alice", "User:on"]
    declared[0]["operation"] = "DESCRIBE"
    file.write_text(json.dumps(declared))
    planned = rows(run(*apply, "--prune", "--dry-run", "-o", "json"))
    assert [(one["operation"], one["status"]) for one in planned] == [
        ("DESCRIBE", "would be added"),
        ("READ", "would be removed"),
    ]
    operations = ("acls", "list", "--config", config, "-o", "json")
    assert [one["operation"] for one in rows(run(*operations))] == ["READ", "WRITE"]
    assert run(*apply).exit_code == 0
    assert [one["operation"] for one in rows(run(*operations))] == ["READ", "DESCRIBE", "WRITE"]
    done = rows(run(*apply, "--prune", "--force", "-o", "json"))
    assert [(one["operation"], one["status"]) for one in done] == [("READ", "removed")]


def test_a_change_is_compared_with_the_recorded_use(config: Path, tmp_path: Path) -> None:
    """Alice loses a topic; Bob's group, Carol's prefix and her idempotent writes still allow all
    that they use; Dave was not allowed before, and the name of an operation is unknown."""
    for who in ("User:alice", "Group:bobs"):
        add(config, "--allow-principal", who, "--operation", "Read")
    add(config, "--allow-principal", "carol", "--operation", "Write")
    run("acls", "add", "--cluster", "--allow-principal", "carol", "--operation",
        "IdempotentWrite", "--config", config)  # fmt: skip
    uses = [
        use("READ", "TOPIC", "orders"),
        use("READ", "TOPIC", "orders", principal="User:bob"),
        use("WRITE", "TOPIC", "orders-1", principal="User:carol"),
        use("WRITE", "TOPIC", "*", principal="User:carol"),
        use("IDEMPOTENT_WRITE", "CLUSTER", "kafka-cluster", principal="User:carol"),
        use("WRITE", "TOPIC", "orders", principal="User:carol"),
        use("READ", "TOPIC", "orders", principal="User:dave"),
        use("FLY", "TOPIC", "orders"),
    ]
    lines = [login(principal="User:bob", groups=("Group:bobs",)), *uses]
    log = tmp_path / "events-p-0-1.jsonl"
    log.write_text("".join(f"{to_json_line(one)}\n" for one in lines))
    acls = yaml.safe_load(run("acls", "export", "--config", config).stdout)
    kept = [one for one in acls if one["principal"] == "Group:bobs"]
    prefix = {"pattern_type": "PREFIXED", "name": "ord"}
    kept += [one | prefix for one in acls if one["operation"] == "WRITE"]
    file = tmp_path / "acls.yaml"
    file.write_text(json.dumps(kept))
    apply = ("acls", "apply", "-f", file, "--config", config, "--against", log)
    done = run(*apply, "--prune", "--dry-run", "-o", "json")
    assert done.exit_code == 1
    assert "1 uses of 1 clients would be denied" in done.stderr
    (denied,) = json.loads(done.stdout)
    assert (denied["principal"], denied["operation"], denied["name"], denied["count"]) == (
        "User:alice",
        "READ",
        "orders",
        10,
    )
    assert run(*apply, "--dry-run").exit_code == 0
    assert "--against is for --dry-run" in run(*apply).stderr
    assert len(yaml.safe_load(run("acls", "export", "--config", config).stdout)) == len(acls)


@pytest.mark.parametrize(
    ("answer", "status", "left"),
    [("y\n", 0, ["User:bob"]), ("n\n", 1, ["User:alice"]), ("", 1, ["User:alice"])],
)
def test_prune_asks_before_it_changes_anything(
    config: Path, tmp_path: Path, answer: str, status: int, left: list[str]
) -> None:
    add(config, "--allow-principal", "alice", "--operation", "Read")
    file = tmp_path / "acls.yaml"
    file.write_text(run("acls", "export", "--config", config).stdout.replace("alice", "bob"))
    done = run("acls", "apply", "-f", file, "--prune", "--config", config, stdin=answer)
    assert done.exit_code == status
    assert "TOPIC LITERAL orders User:alice * READ ALLOW\nRemove 1 ACLs?" in done.stderr
    exported = yaml.safe_load(run("acls", "export", "--config", config).stdout)
    assert [one["principal"] for one in exported] == left


def test_prune_of_stdin_needs_force(config: Path) -> None:
    add(config, "--allow-principal", "alice", "--operation", "Read")
    other = run("acls", "export", "--config", config).stdout.replace("alice", "bob")
    command = ("acls", "apply", "-f", "-", "--prune", "--config", config)
    refused = run(*command, stdin=other)
    assert refused.exit_code == 2
    assert "give --force" in refused.stderr
    assert run(*command, "--force", stdin=other).exit_code == 0
    (left,) = yaml.safe_load(run("acls", "export", "--config", config).stdout)
    assert left["principal"] == "User:bob"


def test_nothing_is_removed_if_something_is_refused(config: Path, tmp_path: Path) -> None:
    add(config, "--allow-principal", "alice", "--operation", "Read")
    (known,) = yaml.safe_load(run("acls", "export", "--config", config).stdout)
    file = tmp_path / "acls.yaml"
    file.write_text(yaml.safe_dump([{**known, "name": ""}]))
    done = run("acls", "apply", "-f", file, "--prune", "--force", "--config", config, "-o", "json")
    assert done.exit_code == 1
    assert [one["status"] == "not removed" for one in json.loads(done.stdout)] == [False, True]
    assert len(yaml.safe_load(run("acls", "export", "--config", config).stdout)) == 1


ACL = """\
- resource_type: TOPIC
  pattern_type: LITERAL
  name: t
  principal: User:alice
  host: '*'
  operation: READ
  permission: ALLOW
"""


@pytest.mark.parametrize(("text", "problem"), table(__file__, "other_acl_files_to_apply"))
def test_a_file_of_acls_that_says_something_else(config: Path, text: str, problem: str) -> None:
    assert problem in refusal("acls", "apply", "-f", "-", "--config", config, stdin=text)


def test_quotas_are_exported_and_applied(config: Path, tmp_path: Path) -> None:
    for options in (
        ("--user", "alice", "producer_byte_rate=5", "consumer_byte_rate=6"),
        ("--user-defaults", "producer_byte_rate=7"),
    ):
        run("quotas", "set", *options, "--config", config)
    file = tmp_path / "quotas.yaml"
    file.write_text(run("quotas", "export", "--config", config).stdout)
    apply = ("quotas", "apply", "-f", file, "--config", config)
    assert run(*apply, "--prune").stderr == "reauth-proxy: no changes found\n"

    file.write_text(
        "- entity: {user: null}\n  quotas: {producer_byte_rate: 8}\n"
        "- entity: {user: bob, client-id: c}\n  quotas: {request_percentage: 50.5}\n"
    )
    planned = rows(run(*apply, "--prune", "--dry-run", "-o", "json"))
    assert [(one["entity"], one["key"], one["limit"], one["status"]) for one in planned] == [
        ({"user": None}, "producer_byte_rate", 8.0, "would be set"),
        ({"user": "alice"}, "producer_byte_rate", None, "would be removed"),
        ({"user": "alice"}, "consumer_byte_rate", None, "would be removed"),
        ({"user": "bob", "client-id": "c"}, "request_percentage", 50.5, "would be set"),
    ]
    refused = run(*apply, "--prune", stdin="n\n")
    assert refused.exit_code == 1
    removed = "consumer_byte_rate of user alice\nproducer_byte_rate of user alice\n"
    assert refused.stderr.startswith(f"{removed}Remove 2 quotas?")
    assert rows(run(*apply, "--prune", "--dry-run", "-o", "json")) == planned
    assert run("quotas", "apply", "-f", "-", "--prune", stdin="[]").exit_code == 2
    assert run(*apply, "--prune", stdin="y\n").exit_code == 0
    assert yaml.safe_load(run("quotas", "export", "--config", config).stdout) == [
        {"entity": {"user": None}, "quotas": {"producer_byte_rate": 8.0}},
        {"entity": {"user": "bob", "client-id": "c"}, "quotas": {"request_percentage": 50.5}},
    ]


@pytest.mark.parametrize(("item", "problem"), table(__file__, "other_quota_files_to_apply"))
def test_a_file_of_quotas_that_says_something_else(config: Path, item: str, problem: str) -> None:
    words = ("quotas", "apply", "-f", "-", "--config", config)
    assert problem in refusal(*words, stdin=f"- {item}\n")
