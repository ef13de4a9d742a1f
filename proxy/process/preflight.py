"""Check of the things that a configuration names: files, secrets, directories, a callback class.

It is part of `reauth-proxy config check`. It changes nothing, and contacts no other server
(`proxy.process.connectivity` does).
"""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final

from proxy.config import Config, Events, QuotasMode, Store, Upstream
from proxy.config.values import Secret
from proxy.errors import ConfigError
from proxy.net.ports import refuse_overlaps
from proxy.net.tls_contexts import open_listener_tls, open_upstream_tls
from proxy.net.tls_material import certificates
from proxy.process.start import ShortLived
from proxy.quota.callback import try_callback
from proxy.store.users_file import Users
from proxy.worker.identity_services import read_memberships
from sasl.jwks import MAX_DOCUMENT_BYTES, KeyCache
from sasl.login import LoginError
from sasl.token_cache import MAX_ANSWER_BYTES, read_token

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

_MAGIC: Final = b"SQLite format 3\0"


def problems_of_named(config: Config, wall_now: float) -> Iterator[ConfigError]:
    """Yield each problem that a start, or the first login, would fail with.

    `wall_now` is Unix time, for certificates.
    """
    for check in _checks(config, wall_now):
        try:
            check()
        except ConfigError as error:
            yield error


def _checks(config: Config, wall_now: float) -> Iterator[Callable[[], object]]:
    yield partial(refuse_overlaps, config)
    for number, listener in enumerate(config.listeners):
        if listener.tls:
            yield partial(open_listener_tls, number, listener, wall_now)
        if listener.groups_file is not None:
            place = f"listeners[{number}].groups.file"
            yield partial(read_memberships, listener.groups_file, place)
        for key, source in listener.jwks_sources():
            if isinstance(source, Path):
                yield partial(_check_keys, f"listeners[{number}].{key}", source)
        for key, path in listener.jwks_authorizations():
            yield partial(_check_token_file, f"listeners[{number}].{key}", path)
    yield partial(open_upstream_tls, config.upstream, wall_now)
    for key, secret in _secrets(config.upstream):
        yield partial(_check_secret, key, secret)
    if (token := config.upstream.token_file()) is not None:
        key = "upstream.sasl.oauthbearer.token.endpoint.url"
        yield partial(_check_token_file, key, token)
    yield partial(_check_signing_keys, config)
    yield partial(_check_store, config.store)
    yield partial(_check_events, config.events)
    quotas = config.quotas
    name = quotas.client_quota_callback_class
    if quotas.mode is not QuotasMode.OFF and name is not None:
        trial = partial(try_callback, name, quotas.client_quota_callback_configs)
        yield lambda: ShortLived(trial).result()


def certificate_warnings(config: Config) -> Iterator[str]:
    """Yield warnings about certificates that clients will not accept.

    These are not errors, as clients may be configured not to verify host names. `config` has
    no `problems_of_named`.
    """
    for listener in config.listeners:
        host, keystore = listener.advertised_host, listener.ssl_keystore_location
        if host is None or keystore is None:
            continue
        own = certificates("ssl.keystore.location", keystore.read_bytes())[0]
        if not _names_host(own, host):
            yield (
                f"listener {listener.name}: the certificate of ssl.keystore.location is not for"
                f" advertised.host, {host}"
            )


def _names_host(certificate: "Certificate", host: str) -> bool:
    """Return whether clients that verify the host name accept it (RFC 9525 section 6)."""
    name = host.lower().rstrip(".")
    with suppress(ValueError):
        name = str(ip_address(name))
    names = _host_names(certificate)
    return name in names or f"*.{name.partition('.')[2]}" in names


def _host_names(certificate: "Certificate") -> set[str]:
    from cryptography import x509

    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:  # Kafka's clients then use the common name
        subject = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        return {str(one.value).lower() for one in subject}
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        return set()  # a client cannot parse it either
    hosts = {one.lower() for one in extension.value.get_values_for_type(x509.DNSName)}
    return hosts | {str(one) for one in extension.value.get_values_for_type(x509.IPAddress)}


def _check_keys(key: str, path: Path) -> None:
    keys = KeyCache()
    if not keys.loaded(_content(path, MAX_DOCUMENT_BYTES + 1, key), now=0.0):
        raise ConfigError(key, f"{path}: {keys.last_error}")


def _check_signing_keys(config: Config) -> None:
    for number, listener in enumerate(config.listeners):
        if not (paths := listener.upstream_identity_signing_key_files):
            continue
        from proxy.brokers.minted_tokens import read_jwks

        try:
            read_jwks(paths)
        except LoginError as error:
            key = f"listeners[{number}].upstream.identity.signing.key.files"
            raise ConfigError(key, error.reason) from None


def _check_secret(key: str, secret: Secret) -> None:
    try:
        text = secret.read()
    except OSError as error:
        raise ConfigError(key, f"{secret}: cannot be read: {error.strerror}") from None
    except UnicodeError:  # its text would show a byte of the secret
        raise ConfigError(key, f"{secret} is not text") from None
    except ValueError as error:
        raise ConfigError(key, str(error)) from None
    if not text:
        raise ConfigError(key, f"{secret} is empty")


def _check_token_file(key: str, path: Path) -> None:
    if read_token(_content(path, MAX_ANSWER_BYTES, key)) is None:
        raise ConfigError(key, f"{path}: holds no bearer token")


def _secrets(upstream: Upstream) -> Iterator[tuple[str, Secret]]:
    if upstream.sasl_password is not None:
        yield "upstream.sasl.password", upstream.sasl_password
    secret = upstream.sasl_oauthbearer_client_credentials_client_secret
    if secret is not None:
        yield "upstream.sasl.oauthbearer.client.credentials.client.secret", secret


def _check_store(settings: Store) -> None:
    if settings.users_file is not None:
        Users.checked(settings.users_file)
    path = settings.path()
    # Not opened as a database: files that SQLite leaves beside it would belong to this user.
    if path.exists() and _content(path, len(_MAGIC), "store.url") not in (b"", _MAGIC):
        raise ConfigError("store.url", f"{path}: is not a SQLite database")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError("store.url", f"{path}: cannot be written to")


def _check_events(settings: Events) -> None:
    directory = settings.directory
    if directory is None:
        return
    existing = next(one for one in (directory, *directory.parents) if one.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
        raise ConfigError("events.directory", f"{directory}: cannot be written to")


def _content(path: Path, max_bytes: int, key: str) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(max_bytes)
    except OSError as error:
        raise ConfigError(key, f"{path}: cannot be read: {error.strerror}") from None
