"""OpenLDAP's slapd with some people and groups, which tests change while it runs."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from proxy.worker.directory import Directory, element
from tests.support.processes import PATIENCE_SECONDS, free_ports
from tests.support.relay import settings_of, ssl_listener

SUFFIX = "dc=example,dc=com"
ADMIN = f"cn=admin,{SUFFIX}"
PEOPLE = f"ou=people,{SUFFIX}"
ADMIN_PASSWORD = "of the admin"
SECRET = b"secret"
ALICE = f"uid=alice,{PEOPLE}"
READER = f"cn=reader,{SUFFIX}"

_PERSON = """
dn: {dn}
objectClass: inetOrgPerson
cn: {cn}
sn: {name}
uid: {name}
userPassword: {password}
"""


@dataclass
class Slapd:
    """A running slapd."""

    folder: Path
    port: int
    plain_port: int
    process: subprocess.Popen[bytes]

    def settings(self, *, scheme: str = "ldaps", **more: str) -> dict[str, Any]:
        port = self.port if scheme == "ldaps" else self.plain_port
        given: dict[str, Any] = ssl_listener(
            security_protocol="SASL_SSL",
            sasl_plain_ldap_url=f"{scheme}://localhost:{port}",
            sasl_plain_ldap_ssl_truststore_location="ca.pem",
            **({"sasl_plain_ldap_user_dn": f"uid=$(user),{PEOPLE}"} | more),
        )
        return given | {"sasl.enabled.mechanisms": ["PLAIN"]}

    def directory(self, **more: str) -> Directory:
        return Directory(settings_of(self.folder, self.settings(**more))[0], lambda _: None)

    async def change(self, operation: bytes, answer: int) -> None:
        """Carry out an operation as the administrator."""
        directory = self.directory(
            sasl_plain_ldap_bind_dn=ADMIN, sasl_plain_ldap_bind_password="file:admin"
        )
        connection = await directory._open()
        await directory._bind_service(connection)
        assert (await connection._operate(operation, answer))[1] == 0
        connection.transport.abort()

    async def replace(self, dn: str, attribute: str, *values: str) -> None:
        new = element(0x31, *(element(4, value.encode()) for value in values))
        change = element(10, b"\x02"), element(0x30, element(4, attribute.encode()), new)
        changes = element(0x30, element(0x30, *change))
        await self.change(element(0x66, element(4, dn.encode()), changes), 0x67)

    async def delete(self, dn: str) -> None:
        await self.change(element(0x4A, dn.encode()), 0x6B)


def person(dn: str, name: str, *, cn: str = "", password: str = SECRET.decode()) -> str:
    """Return an account; its common name is `name`, or `cn`."""
    return _PERSON.format(dn=dn, name=name, cn=cn or name, password=password)


@contextmanager
def running_slapd(folder: Path, certificate: bytes, *people: str) -> Iterator[Slapd]:
    """Run slapd with these accounts and its files in `folder`, where ca.pem is the authority of
    its `certificate`."""
    program = shutil.which("slapd", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        assert os.environ.get("CI") != "true", "CI needs slapd"
        pytest.skip("needs slapd (Debian: apt install slapd)")
    (folder / "data").mkdir()
    (folder / "admin").write_text(ADMIN_PASSWORD)
    (folder / "reader").write_text("of the reader")
    (folder / "server.pem").write_bytes(certificate)
    config, content = folder / "slapd.conf", folder / "content.ldif"
    ours = Path(__file__)
    config.write_text(ours.with_suffix(".conf").read_text().replace("FOLDER", str(folder)))
    content.write_text(ours.with_suffix(".ldif").read_text() + "".join(people))
    subprocess.run([program, "-T", "add", "-f", config, "-l", content], check=True)
    port, plain_port = free_ports(2)
    urls = f"ldaps://127.0.0.1:{port} ldap://127.0.0.1:{plain_port}"
    process = subprocess.Popen([program, "-d", "0", "-f", config, "-h", urls])
    try:
        _wait_for(port)
        yield Slapd(folder, port, plain_port, process)
    finally:
        process.kill()
        process.wait(PATIENCE_SECONDS)


def _wait_for(port: int) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            assert time.monotonic() < until
            time.sleep(0.02)
        else:
            return
