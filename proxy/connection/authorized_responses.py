"""Changes to the responses of requests that were judged."""

from collections.abc import Callable
from typing import Final

from proxy.acl.decision import BodyTransform
from proxy.connection.frames import Amendment, LongTransform, Route
from proxy.errors import BrokerFault
from proxy.wire.apis import response_body_at
from proxy.wire.fetch_requests import SESSION_BYTES
from proxy.wire.primitives import Malformed

_KEPT_OF_A_BYTE: Final = 100
"""Bytes of memory that are kept, at worst, for a byte of a request: of items of a letter each."""


def cut(route: Route, response: BodyTransform, request_bytes: int) -> Amendment:
    """Do `response` to a response's body, then what the route does to all responses.

    `request_bytes`: of the request, of which it keeps what was denied.
    """

    def transform(content: bytes) -> bytes:
        try:
            at = response_body_at(route.api_key, route.api_version, content)
            changed = content[:at] + response(content[at:])
        except Malformed as malformed:
            api = f"API {route.api_key} v{route.api_version}"
            raise BrokerFault(f"response of {api}: {malformed}") from None
        return changed if route.transform is None else route.transform(changed)

    return Amendment(route, transform, takes_long=True, keeps=_KEPT_OF_A_BYTE * request_bytes)


def watched(route: Route, watch: Callable[[bytes], None]) -> Amendment:
    """Pass the first bytes of a response to `watch`, and treat it as all of its route are."""

    def transform(content: bytes) -> bytes:
        watch(content[:SESSION_BYTES])
        return content if route.transform is None else route.transform(content)

    def long_transform(size: int) -> LongTransform:
        inner = None if route.long_transform is None else route.long_transform(size)
        return _Watch(watch, inner)

    return Amendment(route, transform, long_transform)


class _Watch:
    """Passes on the first bytes of a response that comes in pieces."""

    __slots__ = ("_inner", "_seen", "_watch")

    def __init__(self, watch: Callable[[bytes], None], inner: LongTransform | None) -> None:
        self._watch: Callable[[bytes], None] | None = watch
        self._inner = inner
        self._seen = b""

    def feed(self, chunk: memoryview) -> None:
        """Take the next bytes behind the size field."""
        if self._watch is not None:
            self._seen += bytes(chunk[: SESSION_BYTES - len(self._seen)])
            if len(self._seen) == SESSION_BYTES:
                self._watch(self._seen)
                self._watch = None
        if self._inner is not None:
            self._inner.feed(chunk)
