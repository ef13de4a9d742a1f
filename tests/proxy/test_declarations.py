"""Sections in processes that validate settings, and in those that only hold them."""

import pickle
import subprocess
import sys
from pathlib import Path

from proxy.config import load

HELD = """
import pickle, sys
from proxy import declarations
declarations.hold_only()
pickled = sys.stdin.buffer.read()
config = pickle.loads(pickled)
assert not {"pydantic", "pydantic_core", "yaml"} & {name.partition(".")[0] for name in sys.modules}
assert config == pickle.loads(pickled) != config.listeners[0]
(listener,) = config.listeners
print(listener.address, listener.reauth_enforcement, listener.enforcement_policy() is not None)
print(config.admin_socket().name, listener.tls, config.address_limits())
print(config.upstream.asserts(), config.upstream.token_file())
"""

FILE = """
upstream:
  bootstrap.servers: "127.0.0.1:9"
  security.protocol: SASL_PLAINTEXT
  sasl.mechanism: OAUTHBEARER
  sasl.oauthbearer.token.endpoint.url: https://idp.example.com/token
  sasl.oauthbearer.assertion.file: assertion
listeners:
  - {name: clients, address: "127.0.0.1:1", routing: sidecar,
     sasl.enabled.mechanisms: [SCRAM-SHA-256], reauth.enforcement: probe}
max.connections.per.ip.overrides: "127.0.0.1:5"
"""


def test_a_process_without_pydantic_holds_what_another_validated(tmp_path: Path) -> None:
    file = tmp_path / "proxy.yaml"
    file.write_text(FILE)
    done = subprocess.run(
        [sys.executable, "-c", HELD],
        input=pickle.dumps(load(file)),
        capture_output=True,
        timeout=60,
    )
    assert done.stdout.decode().splitlines() == [
        "127.0.0.1:1 probe True",
        "state.db.sock False {'127.0.0.1': 5}",
        "True None",
    ], done.stderr.decode()
