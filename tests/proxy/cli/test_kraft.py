"""`users import --from-kraft`: what is new is written, and nobody is removed who is not meant."""

import json
from pathlib import Path
from typing import Any

from proxy.acl.model import Acl, Operation, PatternType, Permission, ResourceType
from proxy.store import open_store
from sasl.credentials import ScramCredential, ScramMechanism
from tests.support.kraft_records import acl_record, checkpoint, quota_record, scram_record
from tests.support.proxy_process import run

SHA_256 = ScramMechanism.SCRAM_SHA_256
VERIFIER = ScramCredential.from_password(SHA_256, "pw", b"salt", 4096)
OTHER = ScramCredential.from_password(SHA_256, "other", b"salt", 4096)
ACL = Acl(
    ResourceType.GROUP, PatternType.LITERAL, "g", "User:a", "*", Operation.ALL, Permission.ALLOW
)


def snapshot(directory: Path, *records: bytes) -> Path:
    file = directory / "00000000000000000005-0000000001.checkpoint"
    file.write_bytes(checkpoint(*records))
    return file


def summary(*arguments: object) -> dict[str, dict[str, Any]]:
    done = run("users", "import", *arguments, "--output", "json")
    assert done.exit_code == 0, done.output
    return {row.pop("kind"): row for row in json.loads(done.stdout)}


def row(*, new: int = 0, changed: int = 0, same: int = 0, gone: int = 0) -> dict[str, int]:
    return {"new": new, "changed": changed, "same": same, "gone": gone}


def test_users_are_imported_and_imported_again(config: Path, tmp_path: Path) -> None:
    store = open_store(f"sqlite:{tmp_path / 'state.db'}")
    store.alter_credentials(upsert={("alice", SHA_256): OTHER, ("mine", SHA_256): OTHER})
    file = snapshot(tmp_path, scram_record("alice", VERIFIER), scram_record("bob", VERIFIER))
    options = ("--from-kraft", file, "--config", config)
    assert summary(*options) == {"verifiers": row(new=1, changed=1, gone=1)}
    assert store.credential_snapshot().credentials == {
        ("alice", SHA_256): VERIFIER,
        ("bob", SHA_256): VERIFIER,
        ("mine", SHA_256): OTHER,
    }
    version = store.version()
    assert summary(*options) == {"verifiers": row(same=2, gone=1)}
    assert store.version() == version, "nothing was written"
    assert summary(*options, "--remove") == {"verifiers": row(same=2, gone=1)}
    assert summary(*options) == {"verifiers": row(same=2)}
    store.close()


def test_acls_and_quotas_are_imported_if_wanted(config: Path, tmp_path: Path) -> None:
    file = snapshot(
        tmp_path,
        scram_record("alice", VERIFIER),
        acl_record(bytes(16), ACL),
        quota_record([("user", "alice")], "producer_byte_rate", 5.0),
    )
    options = ("--from-kraft", file, "--config", config)
    assert summary(*options).keys() == {"verifiers"}
    everything = summary(*options, "--acls", "--quotas")
    assert everything == {"verifiers": row(same=1), "ACLs": row(new=1), "quotas": row(new=1)}
    again = summary(*options, "--acls", "--quotas")
    assert again == {"verifiers": row(same=1), "ACLs": row(same=1), "quotas": row(same=1)}
    snapshot(tmp_path, scram_record("alice", VERIFIER))
    gone = summary(*options, "--acls", "--quotas", "--remove")
    assert gone == {"verifiers": row(same=1), "ACLs": row(gone=1), "quotas": row(gone=1)}
    again = summary(*options, "--acls", "--quotas")
    assert again == {"verifiers": row(same=1), "ACLs": row(), "quotas": row()}


def test_a_file_of_users_takes_them(tmp_path: Path) -> None:
    file = snapshot(tmp_path, scram_record("alice", VERIFIER), scram_record("x", VERIFIER, code=7))
    users = tmp_path / "users.json"
    done = run("users", "import", "--from-kraft", file, "--users-file", users)
    assert done.exit_code == 0, done.output
    assert "1 users, ACLs and quotas of the cluster are invalid or unknown" in done.output
    assert "ONLY IN THE STORE, KEPT" in done.output
    assert "alice" in users.read_text()
    assert run("users", "import", "--from-kraft", file, "--users-file", users).exit_code == 0
    refused = run("users", "import", "--from-kraft", file, "--users-file", users, "--acls")
    assert refused.exit_code == 2


def test_what_cannot_be_read_changes_nothing(config: Path, tmp_path: Path) -> None:
    file = snapshot(tmp_path, scram_record("alice", VERIFIER, version=1))
    done = run("users", "import", "--from-kraft", file, "--config", config)
    assert done.exit_code == 1
    assert "UserScramCredentialRecord of version 1 is unknown to this program" in done.output
    assert len(done.output.splitlines()) == 1
    assert not (tmp_path / "state.db").exists()
