"""An authority of its own for each test, and certificates of every kind of goodness."""

import datetime
import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
NOW = datetime.datetime.now(datetime.UTC)
HOUR = datetime.timedelta(hours=1)
HOSTS = ("localhost", "127.0.0.1", "::1")


def _key(algorithm: str) -> PrivateKey:
    if algorithm == "rsa":
        return rsa.generate_private_key(65_537, 2_048)
    return ec.generate_private_key(ec.SECP256R1())


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


@dataclass(frozen=True)
class Issued:
    """A certificate and its key, as PEM."""

    certificate: bytes
    key: bytes
    serial: int

    @property
    def pem(self) -> bytes:
        """Both in one, as Kafka's `ssl.keystore.location` has it."""
        return self.key + self.certificate

    def encrypted(self, password: str) -> bytes:
        """Both in one, the key encrypted."""
        key = serialization.load_pem_private_key(self.key, None)
        secret = serialization.BestAvailableEncryption(password.encode())
        return _pem(key, secret) + self.certificate  # type: ignore[arg-type]  # of our own kinds


def _pem(key: PrivateKey, encryption: serialization.KeySerializationEncryption) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    )


@dataclass
class Authority:
    """Signs what it is asked to sign."""

    name: str = "authority"
    _key: PrivateKey = field(default_factory=lambda: _key("ec"))
    certificate: bytes = b""

    def __post_init__(self) -> None:
        self._own = self._sign(
            _name(self.name), self._key.public_key(), (), NOW - HOUR, NOW + 24 * HOUR
        )
        self.certificate = self._own.public_bytes(serialization.Encoding.PEM)

    def issue(
        self,
        name: str = "proxy",
        hosts: tuple[str, ...] = HOSTS,
        *,
        begins: datetime.timedelta = -HOUR,
        ends: datetime.timedelta = 24 * HOUR,
        algorithm: str = "ec",
        subject: x509.Name | None = None,
    ) -> Issued:
        """A certificate; `begins` and `ends` are seen from now; `subject` says more than `name`."""
        key = _key(algorithm)
        whom = subject or _name(name)
        certificate = self._sign(whom, key.public_key(), hosts, NOW + begins, NOW + ends)
        return Issued(
            certificate=certificate.public_bytes(serialization.Encoding.PEM),
            key=_pem(key, serialization.NoEncryption()),
            serial=certificate.serial_number,
        )

    def write(self, directory: Path, name: str = "ca.pem") -> Path:
        """Its own certificate, to be trusted."""
        path = directory / name
        path.write_bytes(self.certificate)
        return path

    def _sign(
        self,
        name: x509.Name,
        public_key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey,
        hosts: tuple[str, ...],
        begins: datetime.datetime,
        ends: datetime.datetime,
    ) -> x509.Certificate:
        is_authority = name == _name(self.name)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(_name(self.name))
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begins)
            .not_valid_after(ends)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        if hosts:
            names = x509.SubjectAlternativeName([_host(host) for host in hosts])
            usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            builder = builder.add_extension(names, critical=False).add_extension(
                x509.ExtendedKeyUsage(usages), critical=False
            )
        return builder.sign(self._key, hashes.SHA256())
