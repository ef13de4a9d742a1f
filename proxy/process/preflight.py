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
from typing import Final

from proxy.brokers.token_source import read_secret
from proxy.config import Config, Events, Listener, Store, Upstream
from proxy.config.values import Secret, source_of
from proxy.errors import ConfigError
from proxy.net.ports import refuse_overlaps
from proxy.net.tls_contexts import open_listener_tls, open_upstream_tls
from proxy.net.tls_material import certificates, hosts_of, is_for_host
from proxy.process.start import check_callback
from proxy.store.block_file import BlockFile
from proxy.store.users_file import Users
from proxy.worker.identity_services import lists_of
from sasl.jwks import MAX_DOCUMENT_BYTES, KeyCache
from sasl.login import LoginError
from sasl.states import Enforcement
from sasl.token_cache import MAX_ANSWER_BYTES, read_token

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
        yield from lists_of(listener, f"listeners[{number}]")
        yield from _checks_of_directory(listener, f"listeners[{number}].sasl.plain.ldap")
        for key, source in listener.jwks_sources():
            if isinstance(source, Path):
                yield partial(_check_keys, f"listeners[{number}].{key}", source)
        for key, path in listener.jwks_authorizations():
            yield partial(_check_token_file, f"listeners[{number}].{key}", path)
        if paths := listener.upstream_identity_signing_key_files:
            from proxy.brokers.signed_tokens import read_jwks

            key = f"listeners[{number}].upstream.identity.signing.key.files"
            yield partial(_check_login, key, partial(read_jwks, paths))
    yield partial(open_upstream_tls, config.upstream, wall_now)
    yield from _checks_of_login(config.upstream, wall_now)
    yield partial(_check_store, config.store)
    yield BlockFile(config).read
    keys = source_of(config.block.signals.jwks_endpoint_url)
    if isinstance(keys, Path):
        yield partial(_check_keys, "block.signals.jwks.endpoint.url", keys)
    if (token := config.block.signals.token_file) is not None:
        yield partial(_check_token_file, "block.signals.token.file", token)
    yield partial(_check_events, config.events)
    yield partial(check_callback, config.quotas)


def _checks_of_directory(listener: Listener, place: str) -> Iterator[Callable[[], object]]:
    if (secret := listener.sasl_plain_ldap_bind_password) is not None:
        yield partial(_check_secret, f"{place}.bind.password", secret)
    if (trusted := listener.sasl_plain_ldap_ssl_truststore_location) is not None:
        key = f"{place}.ssl.truststore.location"
        yield lambda: certificates(key, _content(trusted, MAX_DOCUMENT_BYTES, key))


def warnings_of_named(config: Config) -> Iterator[str]:
    """Yield warnings about a missing event log, and about certificates that clients will not
    accept, unless they are configured not to verify host names. `config` has no
    `problems_of_named`.
    """
    if config.events.directory is None:
        for listener in config.listeners:
            if listener.sasl and listener.reauth_enforcement is not Enforcement.ENFORCE:
                yield (
                    f"listener {listener.name}: reauth.enforcement is"
                    f" {listener.reauth_enforcement}, but no report can be made, because"
                    " events.directory is not set"
                )
    for listener in config.listeners:
        host, keystore = listener.advertised_host, listener.ssl_keystore_location
        if host is None or keystore is None:
            continue
        files = [keystore, *(one.ssl_keystore_location for one in listener.ssl_keystores)]
        pems = [file.read_bytes() for file in files]
        certified = [hosts_of(certificates("ssl.keystore.location", pem)[0]) for pem in pems]
        name = host.lower().rstrip(".")
        with suppress(ValueError):
            name = str(ip_address(name))
        wanted = {f"advertised.host, {host}": name}
        if (brokers := listener.broker_hosts) is not None:
            named = (one for hosts in certified for one in hosts if brokers.id_of(one) is not None)
            wanted[f"broker.hosts, {brokers}"] = next(named, brokers.host_of(0))
        for what, one in wanted.items():
            if not any(is_for_host(hosts, one) for hosts in certified):
                yield f"listener {listener.name}: no certificate is for {what}"


def _check_keys(key: str, path: Path) -> None:
    keys = KeyCache()
    if not keys.loaded(_content(path, MAX_DOCUMENT_BYTES + 1, key), now=0.0):
        raise ConfigError(key, f"{path}: {keys.last_error}")


def _checks_of_login(upstream: Upstream, wall_now: float) -> Iterator[Callable[[], object]]:
    if (password := upstream.sasl_password) is not None:
        yield partial(_check_secret, "upstream.sasl.password", password)
    if (secret := upstream.sasl_oauthbearer_client_credentials_client_secret) is not None:
        key = "upstream.sasl.oauthbearer.client.credentials.client.secret"
        yield partial(_check_secret, key, secret)
    if (token := upstream.token_file()) is not None:
        key = "upstream.sasl.oauthbearer.token.endpoint.url"
        yield partial(_check_token_file, key, token)
    if upstream.asserts():
        from proxy.brokers.signed_tokens import new_assertion

        made = upstream.sasl_oauthbearer_assertion_file is None
        key = "upstream.sasl.oauthbearer.assertion." + ("private.key.file" if made else "file")
        yield partial(_check_login, key, partial(new_assertion, upstream, wall_now))


def _check_secret(key: str, secret: Secret) -> None:
    _check_login(key, partial(read_secret, secret, "secret"))


def _check_login(key: str, step: Callable[[], object]) -> None:
    """Do what a login does, and turn its error into that of a setting."""
    try:
        step()
    except LoginError as error:
        raise ConfigError(key, error.reason) from None


def _check_token_file(key: str, path: Path) -> None:
    if read_token(_content(path, MAX_ANSWER_BYTES, key)) is None:
        raise ConfigError(key, f"{path}: holds no bearer token")


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
