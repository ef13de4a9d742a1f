"""Bearer tokens that a program or a cloud's library provides (`sasl.login.provider`).

Rules:

- Foreign code runs outside the event loop: a command in a process, a class in a thread. An attempt
  has `FETCH_TIMEOUT` seconds; a process is killed then, with its children, and at most
  `MAX_CALLS` threads are left behind.
- Text of foreign code is logged as one short line of ASCII, without words that could be a token.
- Libraries are imported when the first token is requested, in the thread.
"""

import asyncio
import importlib
import json
import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC
from functools import cache
from typing import Final, Protocol, TypeVar
from urllib.parse import parse_qsl, urlsplit

from jwt.utils import base64url_decode, base64url_encode

from metrics import registry
from metrics.extras import missing
from metrics.snapshot import Snapshot
from proxy.brokers.token_source import RenewedTokens, TokenUnavailable
from proxy.config.security import MSK_IAM, UpstreamSasl
from sasl.login import ClientExchange
from sasl.token_cache import MAX_ANSWER_BYTES, read_token
from sasl.untrusted import fit_for_log

MAX_CALLS: Final = 3
"""Maximum number of calls of a provider that have not returned."""
MAX_ERROR_BYTES: Final = 4_096
"""Number of bytes of a command's standard error that are read at the end."""

ROLE_SESSION_NAME: Final = "reauth-proxy"
"""Default of AWS_ROLE_SESSION_NAME: the principal at brokers contains it, and must not change at a
re-authentication."""
MIN_CREDENTIALS_SECONDS: Final = 60.0
"""AWS credentials with less than this time left are not presented: brokers refuse them ("Session
too short"), or end the session at once."""
MESSAGE_SECONDS: Final = 60
"""Seconds for which logins of AWS_MSK_IAM share a signature."""
TOKEN_SECONDS: Final = 900
"""Lifetime of a signed URL; brokers accept no longer one."""
_EVENT_HUBS: Final = re.compile(r"[a-z0-9-]+\.servicebus\.[a-z.]+", re.IGNORECASE)
_MSK: Final = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com")

_COULD_BE_SECRET: Final = re.compile(r"[-_~+/.=%A-Za-z0-9]{16,}")

T = TypeVar("T")


class TokenProvider(Protocol):
    """Source of tokens; `sasl.login.provider: package.module:Class` names a class of your own.

    It is created without arguments. It may also have a method `who() -> str`, which names its
    principal for `config check --connect`.
    """

    def token(self) -> tuple[str, float | None]:
        """Return a token and its expiry in Unix time; None if it is in the token's `exp`, or
        unknown.

        Called in a thread; again, in another thread, if a call takes longer than ten seconds.
        """


class ProvidedTokens(RenewedTokens):
    """Tokens of a provider."""

    def __init__(self, name: str, create: Callable[[], TokenProvider]) -> None:
        """`create` is called in the thread, until it returns a provider."""
        super().__init__(name)
        self._create = create
        self._provider: TokenProvider | None = None
        self._calls = threading.Semaphore(MAX_CALLS)

    async def _load(self) -> tuple[object, float | None]:
        found: object = await self._call(lambda provider: provider.token())
        if not isinstance(found, tuple) or len(found) != 2:
            raise TokenUnavailable("token() must return a token and its expiry")
        return found

    async def who(self) -> str:
        """Return the principal's name. Raises TokenUnavailable."""
        token_names_it = await super().who()
        return await self._call(lambda one: getattr(one, "who", lambda: token_names_it)())

    async def _call(self, work: Callable[[TokenProvider], T]) -> T:
        """Call the provider in a thread that the end of the process does not wait for."""
        if not self._calls.acquire(blocking=False):
            raise TokenUnavailable(f"{MAX_CALLS} earlier calls have not returned")
        done = Future[T]()
        done.set_running_or_notify_cancel()  # a thread cannot be cancelled

        def run() -> None:
            try:
                if self._provider is None:
                    self._provider = self._create()
                result = work(self._provider)
            except TokenUnavailable as error:
                done.set_exception(error)
            except BaseException as error:  # foreign code may raise anything
                reason = f"{type(error).__name__}: {_loggable(str(error))}"
                done.set_exception(TokenUnavailable(reason))
            else:
                done.set_result(result)
            finally:
                self._calls.release()

        threading.Thread(target=run, name="token-provider", daemon=True).start()
        return await asyncio.wrap_future(done)


def _loggable(text: str) -> str:
    """Return foreign text as one line, without words that could be a token."""
    return fit_for_log(_COULD_BE_SECRET.sub("...", text), ())


class CommandTokens(RenewedTokens):
    """Tokens that a command prints: alone, or as the JSON object of a token endpoint (RFC 6749
    section 5.1)."""

    def __init__(self, command: Sequence[str]) -> None:
        """Run `command`, a program and its arguments, without a shell."""
        super().__init__(f"command {fit_for_log(command[0], ())}")
        self._command = command

    async def _load(self) -> bytes | tuple[object, float | None]:
        status, output, errors = await self._run()
        if len(output) > MAX_ANSWER_BYTES:
            raise TokenUnavailable(f"it prints more than {MAX_ANSWER_BYTES} bytes")
        if status:
            line = errors.decode("ascii", "replace").strip().rpartition("\n")[2]
            raise TokenUnavailable(f"exit status {status}{': ' if line else ''}{_loggable(line)}")
        return output if output.lstrip().startswith(b"{") else (read_token(output), None)

    async def _run(self) -> tuple[int, bytes, bytes]:
        """Return the exit status, the output, and the end of the standard error."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
        )
        assert process.stdout is not None
        assert process.stderr is not None

        def kill() -> None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

        try:
            output, errors = await asyncio.gather(
                _read(process.stdout, kill), _read(process.stderr)
            )
            return await process.wait(), output, errors
        finally:
            kill()
            with suppress(TimeoutError):  # a process in the kernel outlives SIGKILL
                await asyncio.wait_for(process.wait(), 1.0)


async def _read(stream: asyncio.StreamReader, too_long: Callable[[], None] | None = None) -> bytes:
    """Read to the end. With `too_long`, which is called above MAX_ANSWER_BYTES, return the
    beginning; without, the last MAX_ERROR_BYTES."""
    found = b""
    while piece := await stream.read(65_536):
        if too_long is None:
            found = (found + piece)[-MAX_ERROR_BYTES:]
        elif len(found) <= MAX_ANSWER_BYTES:
            found += piece
            if len(found) > MAX_ANSWER_BYTES:
                too_long()
    return found


class AwsMskIam:
    """Signed URLs of Amazon MSK with IAM: a GET of `kafka-cluster:Connect` that brokers carry out
    (Signature Version 4, in the query).

    Credentials are found as botocore finds them: environment, web identity, container, instance.
    """

    def __init__(self, servers: str) -> None:
        """The region is that of the brokers' names, or of the environment."""
        from botocore.config import Config
        from botocore.session import Session

        logging.getLogger("botocore").setLevel(logging.CRITICAL)
        session_name = os.environ.get("AWS_ROLE_SESSION_NAME") or ROLE_SESSION_NAME
        os.environ["AWS_ROLE_SESSION_NAME"] = session_name
        self._session = Session()
        named = _MSK.search(servers)
        found = named[1] if named else os.environ.get("AWS_REGION")
        self._region: str | None = found or self._session.get_config_variable("region")
        if not self._region:
            raise TokenUnavailable("set AWS_REGION: the brokers' names do not contain the region")
        self._session.set_config_variable("region", self._region)
        once = {"total_max_attempts": 1}
        limits = Config(connect_timeout=2, read_timeout=5, retries=once)
        self._session.set_default_client_config(limits)
        # botocore prolongs the expiry of an instance's credentials that end soon; brokers do not
        instance = self._session.get_component("credential_provider").get_provider("iam-role")
        instance._role_fetcher._evaluate_expiration = lambda _: None  # noqa: SLF001

    def token(self) -> tuple[str, float | None]:
        """Return the URL in Base64, and the earlier of its expiry and the credentials'."""
        url, expires_at = self.sign(f"kafka.{self._region}.amazonaws.com")
        return base64url_encode(f"{url}&User-Agent=reauth-proxy".encode()).decode(), expires_at

    def sign(self, host: str) -> tuple[str, float]:
        """Return a signed URL for `host`, and its expiry in Unix time. Raises TokenUnavailable."""
        from botocore.auth import SigV4QueryAuth
        from botocore.awsrequest import AWSRequest

        credentials = self._session.get_credentials()
        if credentials is None:
            raise TokenUnavailable("no AWS credentials were found")
        keys = credentials.get_frozen_credentials()
        now = time.time()
        expires_at = now + TOKEN_SECONDS
        # Not public, but nothing else has it; absent from keys without an end
        if (ends := getattr(credentials, "_expiry_time", None)) is not None:
            expires_at = min(expires_at, ends.timestamp() - MIN_CREDENTIALS_SECONDS)
        if expires_at <= now:
            raise TokenUnavailable(
                f"the AWS credentials end in less than {MIN_CREDENTIALS_SECONDS:g} s by this clock"
            )
        request = AWSRequest("GET", f"https://{host}/?Action=kafka-cluster%3AConnect")
        SigV4QueryAuth(keys, "kafka-cluster", self._region, TOKEN_SECONDS).add_auth(request)
        return str(request.url), expires_at

    def who(self) -> str:
        """Return the ARN that the credentials have at AWS."""
        return str(self._session.create_client("sts").get_caller_identity()["Arn"])


class MskIamLogin:
    """Login with AWS_MSK_IAM: one message with the parts of a URL that is signed for the broker."""

    mechanism: Final = MSK_IAM
    expires: Final = False

    def __init__(self, message: bytes) -> None:
        self._first = message
        self.secret: Final = str(json.loads(message)["x-amz-signature"])

    def first(self) -> bytes:
        """Return the message."""
        return self._first

    def step(self, challenge: bytes) -> None:
        """Accept the broker's answer, which has its version and the id of the request."""


class MskIamIdentity:
    """Identity of the proxy at brokers with AWS_MSK_IAM."""

    def __init__(self, servers: str) -> None:
        """`servers` is the brokers' `bootstrap.servers`."""
        self._aws = cache(lambda: _create("aws-msk-iam", servers, None))
        self._messages: dict[str, ProvidedTokens] = {}
        """Message for each broker's host, in Base64."""

    async def exchange(self, host: str = "", /) -> ClientExchange:
        """Begin a login at a broker's host. Raises LoginError."""
        if (messages := self._messages.get(host)) is None:
            name = f"aws-msk-iam for {fit_for_log(host, ())}"
            messages = ProvidedTokens(name, lambda: _Message(self._aws(), host))
            self._messages[host] = messages
        return MskIamLogin(base64url_decode(await messages.current()))

    async def run(self) -> None:
        """Return at once: messages are signed when they are needed."""

    def collect(self, snapshot: Snapshot) -> None:
        """Add the number of failures."""
        failures = sum(one.refresh_failures for one in self._messages.values())
        snapshot.count(registry.UPSTREAM_TOKEN_REFRESH_FAILURES, failures)


class _Message:
    """Message of AWS_MSK_IAM to one broker; see the README of aws-msk-iam-auth."""

    def __init__(self, aws: TokenProvider, host: str) -> None:
        assert isinstance(aws, AwsMskIam)
        self._aws, self._host = aws, host

    def token(self) -> tuple[str, float | None]:
        """Return the message in Base64, to be used for `MESSAGE_SECONDS` at most."""
        url, expires_at = self._aws.sign(self._host)
        parts = {name.lower(): value for name, value in parse_qsl(urlsplit(url).query)}
        own = {"version": "2020_10_22", "host": self._host, "user-agent": "reauth-proxy"}
        message = base64url_encode(json.dumps(own | parts).encode()).decode()
        return message, min(expires_at, time.time() + MESSAGE_SECONDS)


class GoogleCloud:
    """Tokens of a service account, as Google's Managed Service for Apache Kafka reads them."""

    def __init__(self) -> None:
        import google.auth
        from google.auth.transport.urllib3 import Request
        from urllib3 import PoolManager, Timeout

        logging.getLogger("google").setLevel(logging.CRITICAL)
        # Neither retries nor redirects: a redirect would choose the token
        self._request = Request(PoolManager(timeout=Timeout(5), retries=False))
        scope = "https://www.googleapis.com/auth/cloud-platform"
        self._credentials, _ = google.auth.default([scope], self._request)

    def token(self) -> tuple[str, float | None]:
        """Return a token in the form of a JWT that is not signed, with the access token in place of
        the signature."""
        self._credentials.refresh(self._request)
        expires_at = self._credentials.expiry.replace(tzinfo=UTC).timestamp()
        header = {"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}
        name = getattr(self._credentials, "service_account_email", None) or "unknown"
        claims = {"exp": expires_at, "iat": time.time(), "iss": "Google", "sub": name}
        parts = json.dumps(header), json.dumps(claims | {"scope": "kafka"}), self._credentials.token
        return b".".join(base64url_encode(part.encode()) for part in parts).decode(), expires_at


class Azure:
    """Tokens of a workload or managed identity, for Event Hubs or another scope."""

    def __init__(self, servers: str, scope: str | None) -> None:
        """Without `scope`, use that of the Event Hubs namespace among `servers`."""
        from azure.identity import DefaultAzureCredential

        for name in ("azure", "msal"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        if scope is None:
            namespace = _EVENT_HUBS.search(servers)
            if namespace is None:
                raise TokenUnavailable("set sasl.oauthbearer.scope: no broker is of Event Hubs")
            scope = f"https://{namespace[0]}/.default"
        self._scope = scope
        os.environ.setdefault("AZURE_TOKEN_CREDENTIALS", "prod")  # without a developer's logins
        self._credential = DefaultAzureCredential(permit_redirects=False, retry_total=0)

    def token(self) -> tuple[str, float | None]:
        """Return an access token."""
        found = self._credential.get_token(self._scope)
        return found.token, float(found.expires_on)


def provided_tokens(settings: UpstreamSasl, servers: str) -> RenewedTokens:
    """Return the tokens of the configured provider, for brokers of these `bootstrap.servers`."""
    name = settings.sasl_login_provider
    assert name is not None
    if name == "command":
        assert settings.sasl_login_command is not None
        return CommandTokens(settings.sasl_login_command)
    scope = settings.sasl_oauthbearer_scope
    return ProvidedTokens(name, lambda: _create(name, servers, scope))


def _create(name: str, servers: str, scope: str | None) -> TokenProvider:
    """Create a cloud's provider, or that of a class. Raises TokenUnavailable."""
    try:
        match name:
            case "aws-msk-iam":
                return AwsMskIam(servers)
            case "gcp":
                return GoogleCloud()
            case "azure":
                return Azure(servers, scope)
    except ModuleNotFoundError as error:
        needs = missing(name.partition("-")[0]) or f"needs {error.name}"
        raise TokenUnavailable(f"{name} {needs}") from None
    module, _, class_name = name.partition(":")
    made = getattr(importlib.import_module(module), class_name)()
    if not callable(getattr(made, "token", None)):
        raise TokenUnavailable(f"{name} has no method token")
    provider: TokenProvider = made
    return provider
