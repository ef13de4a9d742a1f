"""TLS context from a Kafka client's properties (`ssl.*`, KIP-651).

PEM in files or in the properties themselves, and PKCS12. As with all properties, no error message
repeats a value, unknown properties are ignored, and paths are relative to the working directory.
"""

import re
import ssl
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from proxy.admin.properties import read_file
from proxy.config.security import UpstreamTls
from proxy.errors import ConfigError
from proxy.net.tls_contexts import upstream_context
from proxy.net.tls_material import (
    MAX_BYTES,
    Material,
    Pkcs12,
    certificates,
    check_material,
    read_pkcs12,
)

_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
_JAVA_KEYSTORES: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
"""First bytes of files of the types JKS and JCEKS; Java reads them whatever type is configured."""
_DER: Final = b"\x30"
"""First byte of PKCS #12, as of every sequence in DER."""
_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----([^-:]*)-----END \1-----")
"""Pattern of a PEM block without headers, also without line breaks, as a property contains it."""

Store = Literal["keystore", "truststore"]


def client_context(properties: Mapping[str, str]) -> ssl.SSLContext:
    """Return the context, with the certificates that the properties name. Raises ConfigError."""
    return upstream_context(tls_settings(properties), client_material(properties))


def client_material(properties: Mapping[str, str]) -> Material:
    """Return the certificates that the properties name. Raises ConfigError."""
    chain, key, key_setting = _own(properties)
    trusted, trust_setting = _trusted(properties)
    material = Material(
        chain=chain,
        key=key,
        password=properties.get("ssl.key.password"),
        trusted=trusted,
        algorithm="",
        expires_at=None,  # the broker decides by its own clock, and reports it
    )
    check_material(material, key_setting, trust_setting)
    return material


def tls_settings(properties: Mapping[str, str]) -> UpstreamTls:
    """Return the settings of TLS, without the certificates. Raises ConfigError."""
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
    """Return the client's certificates, their private key, and the property that names the key.

    All is empty without a certificate; the key is empty if it is with the certificates.
    """
    inline = ("ssl.keystore.key", "ssl.keystore.certificate.chain")
    given = [name for name in inline if _value(properties, name)]
    if given:
        _check_alone(properties, "keystore", given[0])
        if len(given) < len(inline):
            raise ConfigError(given[0], f"give both {' and '.join(inline)}")
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
        raise ConfigError(location, "must contain a private key with its certificate")
    return found.chain, found.key, location


def _trusted(properties: Mapping[str, str]) -> tuple[bytes, str]:
    """Return the trusted certificates, and the property that names them.

    They are empty for those that the system trusts.
    """
    inline, location = "ssl.truststore.certificates", "ssl.truststore.location"
    if _value(properties, inline):
        _check_alone(properties, "truststore", inline)
        pem, name = _unfolded(properties[inline]), inline
    else:
        name = location
        found = _file(properties, "truststore")
        if found is None:
            return b"", location
        if isinstance(found, Pkcs12):
            # Java does not trust the chain of a private key, but it is not known which of the
            # certificates are in it
            if found.key:
                raise ConfigError(location, "must contain no private key")
            found = found.certificates
        pem = found
    certificates(name, pem)
    return pem, name


def _check_alone(properties: Mapping[str, str], store: Store, inline: str) -> None:
    """Refuse the properties that Kafka refuses together with PEM in a property."""
    if _value(properties, f"ssl.{store}.location"):
        raise ConfigError(inline, f"give either this or ssl.{store}.location")
    if _type(properties, store) != "PEM":
        raise ConfigError(f"ssl.{store}.type", f"must be PEM with {inline}")


def _file(properties: Mapping[str, str], store: Store) -> bytes | Pkcs12 | None:
    """Return the content of a store's file, PEM or decrypted PKCS12; None if not set."""
    key = f"ssl.{store}.location"
    location = _value(properties, key)
    if not location:
        return None
    data = read_file(key, Path(location), MAX_BYTES)
    if data.startswith(_JAVA_KEYSTORES):
        raise ConfigError(
            key,
            "is a JKS keystore, which is not supported: convert it with keytool -importkeystore"
            " -srckeystore FILE -destkeystore NEW -deststoretype PKCS12",
        )
    declared, found = _type(properties, store), "PKCS12" if data.startswith(_DER) else "PEM"
    # Java reads a PKCS12 file as JKS, too
    if found != declared and (declared, found) != ("JKS", "PKCS12"):
        raise ConfigError(f"ssl.{store}.type", f"is {declared}, but the file is {found}")
    return data if found == "PEM" else _opened(properties, store, data)


def _opened(properties: Mapping[str, str], store: Store, data: bytes) -> Pkcs12:
    secret = f"ssl.{store}.password"
    try:
        return read_pkcs12(data, properties.get(secret, ""))
    except ValueError:
        problem = f"is not a PKCS12 file, or {secret} is not its password"
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
    """Restore the line breaks of PEM that properties have lost."""

    def block(match: re.Match[str]) -> str:
        body = "\n".join(textwrap.wrap("".join(match[2].split()), 64))
        return f"\n-----BEGIN {match[1]}-----\n{body}\n-----END {match[1]}-----\n"

    return _BLOCK.sub(block, pem).encode()
