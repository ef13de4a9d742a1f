"""Checks of PLAIN's passwords at an LDAP directory: simple binds (RFC 4511), always over TLS.

Why no library does this: docs/decisions.md. Rules:

- A password is sent only over TLS, and only if the server's certificate has the host of the URL.
  Data that arrived before StartTLS is discarded (RFC 4513 section 3.1.1).
- Names are values, never text of a filter; in a DN, every special byte is escaped.
- A check begins with a bind, so that it never has the rights of the check before it.
- Directories ignore case, blanks and forms of letters; principals do not. A name must therefore be
  that of the user's entry character by character, or one user could be several principals.
- References to other servers are not followed.
- A directory that is away, slow or wrong refuses logins.
"""

import asyncio
import re
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from time import monotonic
from typing import Final, TypeVar
from urllib.parse import urlsplit

from proxy import config
from proxy.brokers.token_source import read_secret
from proxy.net.dialler import Dialler
from proxy.net.handshake_errors import handshake_error
from sasl.identity import MAX_GROUPS, BadGroups, groups_of
from sasl.login import LoginError
from sasl.mechanism import Failure, FailureReason
from sasl.untrusted import fit_for_log

MAX_BINDS: Final = 8
"""Largest number of checks of a worker at once, and of its connections to the directory."""
TIMEOUT: Final = 5.0
"""Longest time of a check in seconds, with connecting."""
MAX_IDLE_SECONDS: Final = 30.0
"""Time for which an idle connection is used again, shorter than those of firewalls."""
MAX_MESSAGE_BYTES: Final = 262_144
"""Largest message of a directory in bytes: an entry has one attribute of a user or group."""

_SEQUENCE: Final = 0x30
_INTEGER, _TEXT, _ENUMERATED = 0x02, 0x04, 0x0A
_FALSE: Final = b"\x01\x01\x00"
_BIND, _BOUND = 0x60, 0x61
_SEARCH, _ENTRY, _REFERENCE, _SEARCHED = 0x63, 0x64, 0x73, 0x65
_EXTENDED, _EXTENDED_ANSWER = 0x77, 0x78
_OR, _EQUAL = 0xA1, 0xA3
_SIMPLE: Final = 0x80
_START_TLS: Final = b"1.3.6.1.4.1.1466.20037"
"""Name of StartTLS (RFC 4511 section 4.14.1)."""
_SUCCESS: Final = 0
_REFUSALS: Final = {19, 32, 34, 49, 50, 53}
"""Result codes of a bind that are about the account: constraintViolation, noSuchObject,
invalidDNSyntax, invalidCredentials, insufficientAccessRights and unwillingToPerform (RFC 4511
appendix A), with which directories also report locked accounts."""
_BASE, _CHILDREN, _SUBTREE = 0, 1, 2

T = TypeVar("T")


def element(tag: int, *contents: bytes) -> bytes:
    """Return an element of BER (X.690) with the longest form of length, which LDAP allows."""
    content = b"".join(contents)
    return b"%c\x84%b%b" % (tag, len(content).to_bytes(4), content)


def _integer(value: int, tag: int = _INTEGER) -> bytes:
    return element(tag, value.to_bytes(value.bit_length() // 8 + 1))


def _text(value: str) -> bytes:
    return element(_TEXT, value.encode())


def elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and content of each element. Raises ValueError if one is incomplete."""
    at = 0
    while at < len(data):
        tag, size, start = data[at], *data[at + 1 : at + 2], at + 2
        if size >= 0x80:
            start += size - 0x80
            size = int.from_bytes(data[at + 2 : start])
        at = start + size
        if at > len(data):
            raise ValueError("an element is incomplete")
        yield tag, data[start:at]


def escaped(user: str) -> str:
    """Return a name as a value in a DN: any byte may be written in hex (RFC 4514 section 2.4)."""
    return re.sub(rb"[^A-Za-z0-9]", lambda one: b"\\%02x" % one[0][0], user.encode()).decode()


class _Connection:
    """Connection to the directory, for one operation at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.used_at = monotonic()
        self._reader: asyncio.StreamReader
        self._last_id = 0

    def protocol(self) -> asyncio.StreamReaderProtocol:
        """Return the protocol of a transport, after which nothing else is read."""
        self._reader = asyncio.StreamReader()
        return asyncio.StreamReaderProtocol(self._reader)

    @property
    def is_usable(self) -> bool:
        """True unless the connection was idle for long, or the directory has closed it."""
        return not self._reader.at_eof() and monotonic() - self.used_at < MAX_IDLE_SECONDS

    async def start_tls(self, context: ssl.SSLContext, host: str) -> None:
        """Begin TLS. Raises LoginError if the directory refuses."""
        name = element(_SIMPLE, _START_TLS)
        _, code, text = await self._operate(element(_EXTENDED, name), _EXTENDED_ANSWER)
        if code != _SUCCESS:
            raise LoginError(f"refuses StartTLS: {text}")
        protocol = self.protocol()
        transport = await asyncio.get_running_loop().start_tls(
            self.transport, protocol, context, server_hostname=host
        )
        if transport is None:
            raise EOFError
        self.transport = transport
        protocol.connection_made(transport)

    async def bind(self, name: str, password: bytes) -> str | None:
        """Return why a name and password are refused; None if they are right.

        With an empty one, a bind would succeed without a check (RFC 4513 section 5.1).
        """
        if not name or not password:
            return "the name or the password is empty"
        request = element(_BIND, _integer(3), _text(name), element(_SIMPLE, password))
        _, code, text = await self._operate(request, _BOUND, password.decode())
        if code not in {_SUCCESS, *_REFUSALS}:
            raise LoginError(f"cannot check passwords: {text}")
        return None if code == _SUCCESS else text

    async def search(
        self, base: str, scope: int, wanted: bytes, attribute: str
    ) -> tuple[dict[str, list[str]], bool]:
        """Return the values of an attribute for each entry that matches a filter, by DN, and
        whether the directory has referred to other servers."""
        request = element(
            _SEARCH,
            _text(base),
            _integer(scope, _ENUMERATED),
            _integer(0, _ENUMERATED),  # aliases are not followed
            _integer(MAX_GROUPS + 1),
            _integer(int(TIMEOUT)),
            _FALSE,
            wanted,
            element(_SEQUENCE, _text(attribute)),
        )
        answers, code, text = await self._operate(request, _SEARCHED)
        if code != _SUCCESS:
            raise LoginError(f"cannot search {base}: {text}")
        entries = dict(_entry(one, attribute) for tag, one in answers if tag == _ENTRY)
        return entries, any(tag == _REFERENCE for tag, _ in answers)

    async def _operate(
        self, operation: bytes, last: int, *secrets: str
    ) -> tuple[list[tuple[int, bytes]], int, str]:
        """Send an operation, and return the answers, with the result code and text of the last.

        The text repeats none of `secrets`."""
        self._last_id += 1
        self.transport.write(element(_SEQUENCE, _integer(self._last_id), operation))
        answers: list[tuple[int, bytes]] = []
        while True:
            (_, number), (tag, content), *_ = elements(await self._message())
            if int.from_bytes(number) != self._last_id or len(answers) > 2 * MAX_GROUPS:
                raise ValueError("not an answer")
            if tag == last:
                (_, code), _, (_, text), *_ = elements(content)
                result, said = int.from_bytes(code), fit_for_log(text.decode(), secrets)
                return answers, result, f"result code {result}, '{said}'"
            if last != _SEARCHED or tag not in (_ENTRY, _REFERENCE):
                raise ValueError("not an answer")
            answers.append((tag, content))

    async def _message(self) -> bytes:
        tag, size = await self._reader.readexactly(2)
        if size >= 0x80:
            size = int.from_bytes(await self._reader.readexactly(size - 0x80))
        if tag != _SEQUENCE or size > MAX_MESSAGE_BYTES:
            raise ValueError("no message, or a long one")
        return await self._reader.readexactly(size)


def _entry(content: bytes, attribute: str) -> tuple[str, list[str]]:
    (_, name), (_, attributes) = elements(content)
    values = list[str]()
    for _, one in elements(attributes):
        (_, kind), (_, content) = elements(one)
        if kind.decode().lower() == attribute.lower():
            values += [value.decode() for _, value in elements(content)]
    return name.decode(), values


def _equal(attribute: str, value: str) -> bytes:
    return element(_EQUAL, _text(attribute), _text(value))


class Directory:
    """An LDAP directory that checks the passwords of one listener's users in a worker."""

    def __init__(self, settings: config.Listener, warn: Callable[[str], None]) -> None:
        """`settings` have `sasl.plain.ldap.url`. `warn` is called with each problem, which clients
        can cause at any rate."""
        assert settings.sasl_plain_ldap_url is not None
        assert settings.sasl_plain_ldap_user_dn is not None
        self._url = urlsplit(settings.sasl_plain_ldap_url)
        self._authorities = settings.sasl_plain_ldap_ssl_truststore_location
        name, self._base = settings.sasl_plain_ldap_user_dn.split(",", 1)
        self._attribute = name.partition("=")[0]
        self._bind_dn = settings.sasl_plain_ldap_bind_dn
        self._bind_password = settings.sasl_plain_ldap_bind_password
        self._groups_dn = settings.sasl_plain_ldap_groups_dn
        self._warn = warn
        self._dialler = Dialler()
        self._idle: list[_Connection] = []

    async def verify(self, user: str, password: bytes) -> tuple[str, ...] | Failure:
        """Return the groups of a user whose password is right, or why the login fails."""
        try:
            return await self._checked(lambda one: self._check(one, user, password))
        except BadGroups as bad:
            reason, detail = FailureReason.BAD_GROUPS, f"the cn of a group {bad}"
        except LoginError as error:
            reason, detail = FailureReason.DIRECTORY_UNAVAILABLE, error.reason
            self._warn(f"{self._url.geturl()} {detail}")
        return Failure(reason=reason, claimed=user, detail=detail)

    async def reach(self) -> None:
        """Connect, and log in as `sasl.plain.ldap.bind.dn` if it is set. Raises LoginError."""
        try:
            await self._checked(self._bind_service)
        finally:
            self.close()

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().transport.abort()

    async def _checked(self, check: Callable[[_Connection], Awaitable[T]]) -> T:
        """Return the result of a check, on an idle connection if there is one. Raises LoginError,
        and what the check raises."""
        try:
            async with asyncio.timeout(TIMEOUT):
                while self._idle:
                    connection = self._idle.pop()
                    if connection.is_usable:
                        with suppress(EOFError, ConnectionError):  # closed in the meantime
                            return await self._use(connection, check)
                    connection.transport.abort()
                return await self._use(await self._open(), check)
        except TimeoutError:
            raise LoginError(f"has not answered within {TIMEOUT:g} s") from None
        except OSError as error:
            raise LoginError(f"cannot be reached: {handshake_error(error)}") from None
        except (EOFError, ValueError):
            raise LoginError("ended the connection, or sent an invalid message") from None

    async def _use(
        self, connection: _Connection, check: Callable[[_Connection], Awaitable[T]]
    ) -> T:
        try:
            found = await check(connection)
        except BaseException:
            connection.transport.abort()
            raise
        connection.used_at = monotonic()
        self._idle.append(connection)
        return found

    async def _open(self) -> _Connection:
        host, is_tls = self._url.hostname or "", self._url.scheme == "ldaps"
        # In a thread, because there may be many authorities; each time, because they change
        context = await asyncio.to_thread(ssl.create_default_context, cafile=self._authorities)
        port = self._url.port or (636 if is_tls else 389)
        connection = _Connection()
        connection.transport = await self._dialler.open(
            connection.protocol, host, port, context if is_tls else None
        )
        try:
            if not is_tls:
                await connection.start_tls(context, host)
        except BaseException:
            connection.transport.abort()
            raise
        return connection

    async def _check(
        self, connection: _Connection, user: str, password: bytes
    ) -> tuple[str, ...] | Failure:
        """Bind as the user, and read the user's groups; with a service account, search before."""
        dn = f"{self._attribute}={escaped(user)},{self._base}"
        base, scope, refusal = dn, _BASE, None
        if self._bind_dn is None:
            refusal = await connection.bind(dn, password)
        else:
            base, scope = self._base, _SUBTREE
            await self._bind_service(connection)
        if refusal is None:
            wanted = _equal(self._attribute, user)
            found, _ = await connection.search(base, scope, wanted, self._attribute)
            names = [name for name, values in found.items() if name and user in values]
            is_known = len(found) == len(names) == 1
            dn = names[0] if is_known else dn
            groups = await self._groups(connection, dn)
            if self._bind_dn is not None:
                refusal = await connection.bind(dn, password)
            if not is_known:
                refusal = f"{len(names)} of {len(found)} entries have exactly this name"
        if refusal is None:
            return groups
        return Failure(reason=FailureReason.BAD_CREDENTIALS, claimed=user, detail=refusal)

    async def _bind_service(self, connection: _Connection) -> None:
        if self._bind_dn is None or self._bind_password is None:
            return
        password = await asyncio.to_thread(read_secret, self._bind_password, "password")
        if (refusal := await connection.bind(self._bind_dn, password.encode())) is not None:
            raise LoginError(f"refuses {self._bind_dn}: {refusal}")

    async def _groups(self, connection: _Connection, dn: str) -> tuple[str, ...]:
        """Return the groups that have a DN as member, as principals. Raises BadGroups."""
        if self._groups_dn is None:
            return ()
        wanted = element(_OR, _equal("member", dn), _equal("uniqueMember", dn))
        found, are_elsewhere = await connection.search(self._groups_dn, _CHILDREN, wanted, "cn")
        if are_elsewhere:
            raise LoginError("refers to another server for groups")
        if any(len(names) != 1 for names in found.values()):
            raise BadGroups("is not one name")
        return tuple(groups_of({"cn": [name for (name,) in found.values()]}, "cn"))
