"""Client of the API server, with the service account that a pod has."""

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp

from proxy.errors import ProxyError

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Directory of a service account's token, authority and namespace, in a pod."""
_SECONDS: Final = aiohttp.ClientTimeout(total=15)


class ApiError(ProxyError):
    """The API server cannot be reached, or refuses."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status
        """HTTP status; 0: there was no answer."""


class Api:
    """Requests to the API server; the token is read anew for each, since the kubelet renews it."""

    def __init__(self, environment: Mapping[str, str], account: Path = ACCOUNT) -> None:
        host = environment.get("KUBERNETES_SERVICE_HOST")
        port = environment.get("KUBERNETES_SERVICE_PORT", "443")
        if host is None or not (account / "token").exists():
            raise ApiError(
                "no service account here: run it in a pod, or give --certificate and --key"
            )
        self._url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        self._account = account

    @property
    def namespace(self) -> str:
        """The pod's own namespace."""
        return (self._account / "namespace").read_text().strip()

    async def get(self, path: str) -> Any:
        """Return an object; raises `ApiError`, with status 404 if there is none."""
        return await self._ask("GET", path, None, "application/json")

    async def replace(self, path: str, body: Any) -> Any:
        """Replace an object; raises `ApiError`, with status 409 if it has changed since."""
        return await self._ask("PUT", path, body, "application/json")

    async def patch(self, path: str, body: Any) -> Any:
        """Change an object by a JSON patch (RFC 6902)."""
        return await self._ask("PATCH", path, body, "application/json-patch+json")

    async def _ask(self, method: str, path: str, body: Any, content_type: str) -> Any:
        trust = ssl.create_default_context(cafile=str(self._account / "ca.crt"))
        token = (self._account / "token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        if body is not None:
            headers["Content-Type"] = content_type
        async with aiohttp.ClientSession(timeout=_SECONDS) as session:
            try:
                async with session.request(
                    method,
                    f"{self._url}{path}",
                    data=None if body is None else aiohttp.JsonPayload(body),
                    headers=headers,
                    ssl=trust,
                    allow_redirects=False,
                ) as response:
                    if response.status >= 300:
                        raise ApiError(
                            f"the API server answers {method} {path} with {response.status}",
                            response.status,
                        )
                    return await response.json()
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                raise ApiError(f"the API server does not answer {method} {path}: {error}") from None
