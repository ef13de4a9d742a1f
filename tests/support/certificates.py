"""Certificates of every kind, their authorities and subjects."""

import datetime
import ipaddress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# Authorities and their certificates

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
        """Certificate and key in one PEM text, as for Kafka's `ssl.keystore.location`."""
        return self.key + self.certificate

    def encrypted(self, password: str) -> bytes:
        """Certificate and encrypted key in one PEM text."""
        key = serialization.load_pem_private_key(self.key, None)
        secret = serialization.BestAvailableEncryption(password.encode())
        return _pem(key, secret) + self.certificate  # type: ignore[arg-type]  # of our own kinds


def _pem(key: PrivateKey, encryption: serialization.KeySerializationEncryption) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    )


_SIGNS_CERTIFICATES: Final = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


@dataclass
class Authority:
    """A certificate authority."""

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
        """Issue a certificate; `begins` and `ends` are relative to now."""
        key = _key(algorithm)
        whom = subject or _name(name)
        certificate = self._sign(whom, key.public_key(), hosts, NOW + begins, NOW + ends)
        return Issued(
            certificate=certificate.public_bytes(serialization.Encoding.PEM),
            key=_pem(key, serialization.NoEncryption()),
            serial=certificate.serial_number,
        )

    def write(self, directory: Path, name: str = "ca.pem") -> Path:
        """Write `ca.pem`, the authority's certificate."""
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
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            # Required since Python 3.13, which enables OpenSSL's strict checks of RFC 5280
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        if is_authority:
            builder = builder.add_extension(_SIGNS_CERTIFICATES, critical=True)
        if hosts:
            names = x509.SubjectAlternativeName([_host(host) for host in hosts])
            usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            builder = builder.add_extension(names, critical=False).add_extension(
                x509.ExtendedKeyUsage(usages), critical=False
            )
        return builder.sign(self._key, hashes.SHA256())


# Subjects of certificates, and rules that map them to principals.
#
# `tests/kafka/test_java_classes.py` compares them with Java and Kafka

UTF8, PRINTABLE, T61, IA5, VISIBLE, GENERAL, UNIVERSAL, BMP = (
    *(0x0C, 0x13, 0x14, 0x16),
    *(0x1A, 0x1B, 0x1C, 0x1E),
)
_OIDS: Final = {
    "CN": "2.5.4.3",
    "SN": "2.5.4.4",
    "SERIALNUMBER": "2.5.4.5",
    "C": "2.5.4.6",
    "L": "2.5.4.7",
    "ST": "2.5.4.8",
    "STREET": "2.5.4.9",
    "O": "2.5.4.10",
    "OU": "2.5.4.11",
    "T": "2.5.4.12",
    "UID": "0.9.2342.19200300.100.1.1",
    "DC": "0.9.2342.19200300.100.1.25",
    "EMAIL": "1.2.840.113549.1.9.1",
}


def der(tag: int, *contents: bytes) -> bytes:
    """A DER value."""
    content = b"".join(contents)
    size = len(content)
    if size < 0x80:
        return bytes([tag, size]) + content
    width = (size.bit_length() + 7) // 8
    return bytes([tag, 0x80 | width]) + size.to_bytes(width) + content


def _oid(dotted: str) -> bytes:
    first, second, *rest = map(int, dotted.split("."))
    encoded = b""
    for number in (40 * first + second, *rest):
        groups = [number & 0x7F]
        while number := number >> 7:
            groups.append(0x80 | number & 0x7F)
        encoded += bytes(reversed(groups))
    return der(0x06, encoded)


def attribute(kind: str, value: str | bytes, tag: int = UTF8) -> bytes:
    """An attribute type and value."""
    data = value.encode() if isinstance(value, str) else value
    return der(0x30, _oid(_OIDS.get(kind, kind)), der(tag, data))


def name(*relative: bytes | list[bytes]) -> bytes:
    """A distinguished name, outermost first; a list is a multi-valued relative name."""
    return der(0x30, *(der(0x31, *([one] if isinstance(one, bytes) else one)) for one in relative))


def cn(value: str | bytes, tag: int = UTF8) -> bytes:
    """A name with only a common name."""
    return name(attribute("CN", value, tag))


@cache
def _parts() -> tuple[bytes, bytes, bytes]:
    """Bytes of a certificate before and after its subject, and after the signed part."""
    placeholder = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "placeholder")])
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "issuer")])
    key = ec.derive_private_key(7, ec.SECP256R1())
    begins = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(placeholder)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(begins)
        .not_valid_after(begins + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    whole = certificate.public_bytes(serialization.Encoding.DER)
    signed = certificate.tbs_certificate_bytes
    before, behind = signed.split(placeholder.public_bytes())
    head = 3 if signed[1] == 0x81 else 4
    return before[head:], behind, whole[whole.index(signed) + len(signed) :]


def certificate(subject: bytes) -> bytes:
    """A certificate (DER) with this subject and an invalid signature."""
    before, behind, rest = _parts()
    return der(0x30, der(0x30, before, subject, behind), rest)


ALICE: Final = name(
    attribute("C", "DE", PRINTABLE),
    attribute("O", "Acme"),
    attribute("OU", "dev"),
    attribute("CN", "alice"),
)

NAMES: Final[dict[str, tuple[bytes, str]]] = {
    "the outermost is the last": (ALICE, "CN=alice,OU=dev,O=Acme,C=DE"),
    "every keyword of RFC 2253": (
        name(
            *(
                attribute(kind, "x")
                for kind in ("DC", "C", "ST", "L", "STREET", "O", "OU", "UID", "CN")
            )
        ),
        "CN=x,UID=x,OU=x,O=x,STREET=x,L=x,ST=x,C=x,DC=x",
    ),
    "what must be escaped": (
        cn('a,b+c"d\\e<f>g;h=i#j'),
        'CN=a\\,b\\+c\\"d\\\\e\\<f\\>g\\;h\\=i\\#j',
    ),
    "a leading number sign": (cn("#x"), "CN=\\#x"),
    "spaces outside": (cn("  in  between  "), "CN=\\ \\ in  between\\ \\ "),
    "nothing but spaces": (cn("   "), "CN=\\ \\ \\ "),
    "a comma between spaces": (cn(" , "), "CN=\\ \\,\\ "),
    "unicode is left as it is": (cn("ünï€😀"), "CN=ünï€😀"),
    "an empty value": (cn(""), "CN="),
    "a NUL": (cn("admin\0.evil"), "CN=admin\\00.evil"),
    "several attributes, as they stand": (
        name([attribute("OU", "x"), attribute("CN", "b")], attribute("O", "o")),
        "O=o,OU=x+CN=b",
    ),
    "a type twice": (name([attribute("CN", "a"), attribute("CN", "b")]), "CN=a+CN=b"),
    "an address has no keyword": (
        name(attribute("CN", "x"), attribute("EMAIL", "a@b.c", IA5)),
        "1.2.840.113549.1.9.1=#16056140622e63,CN=x",
    ),
    "nor have these": (
        name(
            attribute("SN", "Smith"),
            attribute("T", "Dr"),
            attribute("SERIALNUMBER", "12", PRINTABLE),
        ),
        "2.5.4.5=#13023132,2.5.4.12=#0c024472,2.5.4.4=#0c05536d697468",
    ),
    "large numbers": (name(attribute("2.999.3", "x")), "2.999.3=#0c0178"),
    "a long value of such": (
        name(attribute("1.2.3.4.99999999999", "y" * 130)),
        "1.2.3.4.99999999999=#0c8182" + "79" * 130,
    ),
    "PrintableString": (cn("x", PRINTABLE), "CN=x"),
    "IA5String": (cn("x", IA5), "CN=x"),
    "T61String of ASCII": (cn("x", T61), "CN=x"),
    "GeneralString": (cn("x", GENERAL), "CN=x"),
    "VisibleString": (cn("vis", VISIBLE), "CN=#1a03766973"),
    "UniversalString": (cn("u".encode("utf-32-be"), UNIVERSAL), "CN=#1c0400000075"),
    "an integer": (cn(b"\x05", 0x02), "CN=#020105"),
    "512 characters": (cn("x" * 509), "CN=" + "x" * 509),
}
"""Names (DER) and their text in Java."""

OTHERWISE: Final[dict[str, tuple[bytes, str]]] = {
    "BMPString": (cn("bmp ü".encode("utf-16-be"), BMP), "CN=bmp ü")
}
"""Names that Java 17 misreads because it takes UTF-16 for UTF-8."""

NOBODY: Final[dict[str, tuple[bytes, str]]] = {
    "no subject": (name(), "its subject is empty"),
    "a line of its own": (cn("x\nWARNING all is lost"), "its subject has control characters"),
    "a carriage return": (cn("\rx"), "its subject has control characters"),
    "an escape sequence": (cn("\x1b[2J"), "its subject has control characters"),
    "a line as Unicode has it": (cn("x\u2028y"), "its subject has control characters"),
    "C1": (cn("x\u0085y"), "its subject has control characters"),
    "513 characters": (cn("x" * 510), "its subject has more than 512 characters"),
    "60 KB": (cn("x" * 60_000), "its subject has more than 512 characters"),
    "a type of 60 KB": (
        name(der(0x30, der(0x06, b"\x81" * 60_000 + b"\1"), der(UTF8, b"x"))),
        "its subject has more than 512 characters",
    ),
    "what is not UTF-8": (cn(b"a\xffb"), "its subject cannot be read"),
    "T61String beyond ASCII": (cn(b"caf\xe9", T61), "its subject cannot be read"),
    "half a character": (cn(b"\xd8\x00", BMP), "its subject cannot be read"),
    "no type": (name(der(0x30, der(UTF8, b"x"))), "its subject cannot be read"),
    "an attribute too many parts": (
        name(der(0x30, _oid("2.5.4.3"), der(UTF8, b"x"), der(UTF8, b"y"))),
        "its subject cannot be read",
    ),
    "half an object identifier": (
        name(der(0x30, der(0x06, b"\x55\x84"), der(UTF8, b"x"))),
        "its subject cannot be read",
    ),
    "an empty object identifier": (
        name(der(0x30, der(0x06), der(UTF8, b"x"))),
        "its subject cannot be read",
    ),
    "a list for a set": (der(0x30, der(0x30, attribute("CN", "x"))), "its subject cannot be read"),
    "a length longer than need be": (b"\x30\x81\x02\x31\x00", "its subject cannot be read"),
    "no length": (b"\x30\x80", "its subject cannot be read"),
}
"""Rejected names (DER) and the errors."""

DUKE: Final = "CN=Duke,OU=ServiceUsers,O=Org,C=US"
_RULES: Final = yaml.safe_load(Path(__file__).with_name("certificate_rules.yaml").read_text())
RULES: Final[list[tuple[str, str, str | None]]] = [tuple(one) for one in _RULES["rules"]]
"""Rules, a subject, and Kafka's principal; None if no rule matches."""
REFUSED: Final[list[tuple[str, str]]] = [tuple(one) for one in _RULES["refused"]]
"""Rules that Kafka also rejects, and the errors."""
REFUSED_HERE: Final[list[tuple[str, str]]] = [tuple(one) for one in _RULES["refused_here"]]
"""Rules that only the proxy rejects, and the errors."""
EMPTIED: Final[list[tuple[str, str]]] = [tuple(one) for one in _RULES["emptied"]]
"""Rules that map a subject to nothing; Kafka's principal is `User:`."""
