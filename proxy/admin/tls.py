"""TLS context from a Kafka client's properties (`ssl.*`, KIP-651).

PEM in files or in the properties themselves, and PKCS12. As with all properties, no message
repeats a value, what is not known is passed over, and paths are relative to the working directory.
"""

import re
import ssl
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from proxy.admin.files import read_file
from proxy.config.tls import UpstreamTls
from proxy.errors import ConfigError
from proxy.tls.contexts import upstream_context
from proxy.tls.material import MAX_BYTES, Material, certificates, check_material
from proxy.tls.pkcs12 import Pkcs12, read_pkcs12

_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
_JAVA_KEYSTORES: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
"""First bytes of files of the types JKS and JCEKS; Java reads them whatever type is configured."""
_DER: Final = b"\x30"
"""First byte of PKCS #12, as of every sequence in DER."""
_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----([^-:]*)-----END \1-----")
"""Pattern of a PEM block without headers, also without line breaks, as a property contains it."""

Store = Literal["keystore", "truststore"]


def client_context(properties: Mapping[str, str]) -> ssl.SSLContext:
    """Read and judge what they name. Raises ConfigError."""
    chain, key, key_setting = _own(properties)
    trusted, trust_setting = _trusted(properties)
    material = Material(
        chain=chain,
        key=key,
        password=properties.get("ssl.key.password"),
        trusted=trusted,
        algorithm="",
        expires_at=None,  # the broker's clock counts, and it says so
    )
    check_material(material, key_setting, trust_setting)
    return upstream_context(_settings(properties), material)


def _settings(properties: Mapping[str, str]) -> UpstreamTls:
    versions = _value(properties, "ssl.enabled.protocols") or ",".join(_VERSIONS)
    enabled = [version.strip() for version in versions.split(",")]
    if not set(enabled) <= set(_VERSIONS):
        raise ConfigError("ssl.enabled.protocols", f"must be of {', '.join(_VERSIONS)}")
    key = "ssl.endpoint.identification.algorithm"
    algorithm = properties.get(key, "https").strip().lower()
    if algorithm not in ("https", ""):
        raise ConfigError(key, "must be https or empty")
    return UpstreamTls.model_validate(
        {"security.protocol": "SSL", "ssl.enabled.protocols": enabled, key: algorithm}
    )


def _own(properties: Mapping[str, str]) -> tuple[bytes, bytes, str]:
    """Return our certificates, their private key unless it is with them, and whence it came."""
    inline = ("ssl.keystore.key", "ssl.keystore.certificate.chain")
    given = [name for name in inline if _value(properties, name)]
    if given:
        _check_alone(properties, "keystore", given[0])
        if len(given) < len(inline):
            raise ConfigError(given[0], f"needs {' and '.join(inline)}, both")
        key, chain = (_unfolded(properties[name]) for name in inline)
        certificates(inline[1], chain)
        return chain, key, inline[0]
    location = "ssl.keystore.location"
    found = _file(properties, "keystore")
    if found is None:
        return b"", b"", location
    if isinstance(found, bytes):
        certificates(location, found)
        return found, b"", location
    if not found.key or not found.chain:
        raise ConfigError(location, "holds no private key with a certificate")
    return found.chain, found.key, location


def _trusted(properties: Mapping[str, str]) -> tuple[bytes, str]:
    """Return whom we trust, empty for those that the system does, and whence it came."""
    inline, location = "ssl.truststore.certificates", "ssl.truststore.location"
    if _value(properties, inline):
        _check_alone(properties, "truststore", inline)
        pem, whence = _unfolded(properties[inline]), inline
    else:
        whence = location
        found = _file(properties, "truststore")
        if found is None:
            return b"", location
        if isinstance(found, Pkcs12):
            # which of the others Java would not trust, is not known
            if found.key:
                raise ConfigError(location, "holds a private key, too")
            found = found.certificates
        pem = found
    certificates(whence, pem)
    return pem, whence


def _check_alone(properties: Mapping[str, str], store: Store, inline: str) -> None:
    """Refuse what Kafka refuses beside PEM in the properties."""
    if _value(properties, f"ssl.{store}.location"):
        raise ConfigError(inline, f"there is ssl.{store}.location, too")
    if _type(properties, store) != "PEM":
        raise ConfigError(f"ssl.{store}.type", f"must be PEM with {inline}")


def _file(properties: Mapping[str, str], store: Store) -> bytes | Pkcs12 | None:
    """Return what a store's file holds: PEM, or PKCS12 that was opened."""
    key = f"ssl.{store}.location"
    location = _value(properties, key)
    if not location:
        return None
    data = read_file(key, Path(location), MAX_BYTES)
    if data.startswith(_JAVA_KEYSTORES):
        raise ConfigError(
            key,
            "is a JKS keystore; PEM and PKCS12 are read: keytool -importkeystore"
            " -srckeystore FILE -destkeystore NEW -deststoretype PKCS12",
        )
    declared, found = _type(properties, store), "PKCS12" if data.startswith(_DER) else "PEM"
    # to Java JKS and PKCS12 are one type, whose files it distinguishes
    if found != declared and (declared, found) != ("JKS", "PKCS12"):
        raise ConfigError(f"ssl.{store}.type", f"is {declared}, but the file is {found}")
    return data if found == "PEM" else _opened(properties, store, data)


def _opened(properties: Mapping[str, str], store: Store, data: bytes) -> Pkcs12:
    secret = f"ssl.{store}.password"
    try:
        return read_pkcs12(data, properties.get(secret, ""))
    except ValueError:
        problem = f"is no PKCS12 file, or {secret} is not its password"
        raise ConfigError(f"ssl.{store}.location", problem) from None


def _type(properties: Mapping[str, str], store: Store) -> str:
    """Return the type of a store; Kafka's default is JKS."""
    key = f"ssl.{store}.type"
    found = (_value(properties, key) or "JKS").upper()
    if found not in ("PEM", "PKCS12", "JKS"):
        raise ConfigError(key, "must be PEM or PKCS12")
    return found


def _value(properties: Mapping[str, str], key: str) -> str:
    return properties.get(key, "").strip()


def _unfolded(pem: str) -> bytes:
    """Put back the line ends that a value over several lines has lost."""

    def block(match: re.Match[str]) -> str:
        body = "\n".join(textwrap.wrap("".join(match[2].split()), 64))
        return f"\n-----BEGIN {match[1]}-----\n{body}\n-----END {match[1]}-----\n"

    return _BLOCK.sub(block, pem).encode()
