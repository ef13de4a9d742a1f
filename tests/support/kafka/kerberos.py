"""A Kerberos realm on this machine: a KDC on a port of the loopback interface, for one test run.

All its files are in one directory; nothing of the machine's own configuration is read.
"""

import os
import shutil
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.support.deploy import missing
from tests.support.kafka.cluster import END_WITH_PARENT, wait_until
from tests.support.processes import free_ports

REALM = "REAUTH.TEST"
SERVICE = "kafka"
HOST = "localhost"
"""Reverse-resolved name of 127.0.0.1, which clients use in ticket requests."""

_INSTALL_HINT = "apt-get install krb5-kdc krb5-admin-server"
_RUN_SECONDS = 120.0

_CLIENTS = """\
[libdefaults]
  default_realm = {realm}
  dns_lookup_kdc = false
  dns_lookup_realm = false
  udp_preference_limit = 1
[realms]
  {realm} = {{
    kdc = 127.0.0.1:{port}
  }}
[domain_realm]
  {host} = {realm}
  127.0.0.1 = {realm}
"""

_KDC = """\
[kdcdefaults]
  kdc_listen = ""
  kdc_tcp_listen = 127.0.0.1:{port}
[realms]
  {realm} = {{
    database_name = {directory}/principal
    key_stash_file = {directory}/stash
    acl_file = {directory}/kadm5.acl
    supported_enctypes = aes256-cts-hmac-sha1-96:normal
  }}
[logging]
  kdc = FILE:{directory}/kdc.log
"""


class Realm:
    """`REALM` with principals and keytabs of the brokers and of each user."""

    def __init__(self, directory: Path, users: tuple[str, ...]) -> None:
        self._directory = directory
        self._users = users
        self._kdc: subprocess.Popen[bytes] | None = None
        self.port = free_ports(1)[0]

    def __enter__(self) -> Self:
        texts = {"krb5.conf": _CLIENTS, "kdc.conf": _KDC}
        for name, text in texts.items():
            values = {"realm": REALM, "host": HOST, "port": self.port, "directory": self._directory}
            (self._directory / name).write_text(text.format(**values))
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master-secret")
        for name in (f"{SERVICE}/{HOST}", *self._users):
            self._administer(f"addprinc -randkey {name}")
            self._administer(f"ktadd -k {self.keytab(name)} {name}")
        self._kdc = subprocess.Popen(
            [*END_WITH_PARENT, find_program("krb5kdc"), "-n"],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(self._listens, what="no KDC", details=self.log)
        return self

    def __exit__(self, *_: object) -> None:
        if self._kdc is not None:
            self._kdc.kill()
            self._kdc.wait()

    @property
    def config(self) -> Path:
        """`krb5.conf` of clients and brokers."""
        return self._directory / "krb5.conf"

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment for programs of MIT Kerberos."""
        return {
            **os.environ,
            "KRB5_CONFIG": str(self.config),
            "KRB5_KDC_PROFILE": str(self._directory / "kdc.conf"),
            "KRB5CCNAME": f"FILE:{self._directory / 'tickets'}",
        }

    @property
    def jvm_options(self) -> tuple[str, ...]:
        """Options for a JVM."""
        return (f"-Djava.security.krb5.conf={self.config}",)

    def keytab(self, name: str) -> Path:
        """Keytab of a principal."""
        return self._directory / f"{name.replace('/', '-')}.keytab"

    def jaas(self, name: str) -> str:
        """`sasl.jaas.config` of a principal."""
        return (
            "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true"
            f' keyTab="{self.keytab(name)}" principal="{name}@{REALM}";'
        )

    def broker_jaas(self) -> str:
        """`sasl.jaas.config` of the brokers."""
        return self.jaas(f"{SERVICE}/{HOST}")

    def log(self) -> str:
        """The KDC's log."""
        file = self._directory / "kdc.log"
        return file.read_text() if file.exists() else ""

    def _administer(self, query: str) -> None:
        self._run("kadmin.local", "-r", REALM, "-q", query)

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [find_program(program), *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_RUN_SECONDS,
        )
        assert done.returncode == 0, f"{program} {arguments}\n{done.stdout}{done.stderr}"

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


def find_program(program: str) -> str:
    """Path of a Debian program; skip without it, but fail in CI."""
    path = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    return path or missing(f"no {program} here: {_INSTALL_HINT}")
