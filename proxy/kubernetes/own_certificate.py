"""Certificate that the webhook makes and renews itself, shared by its replicas in a Secret.

The Secret is there from the start, empty: the service account may change it, and make no other.
The API server finds the authority in the webhook's own MutatingWebhookConfiguration.
"""

import base64
import datetime
from typing import Any, Final

from proxy.kubernetes.api import Api, ApiError
from proxy.kubernetes.certificates import Certificate, make

_CONFLICT: Final = 409
_FIELDS: Final = {"authority": "ca.crt", "certificate": "tls.crt", "key": "tls.key"}


class OwnCertificate:
    """The Secret, and the webhook configuration with its authority."""

    def __init__(self, api: Api, *, secret: str, service: str, webhook: str) -> None:
        namespace = api.namespace
        self._api = api
        self._secret = f"/api/v1/namespaces/{namespace}/secrets/{secret}"
        self._names = [f"{service}.{namespace}.svc", f"{service}.{namespace}.svc.cluster.local"]
        self._webhook = (
            "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/" + webhook
        )

    async def current(self, now: datetime.datetime) -> Certificate:
        """Return the certificate, which is made or renewed if need be; raises `ApiError`.

        Another replica may do the same at that moment: whoever is later takes what is there then.
        """
        found = await self._api.get(self._secret)
        certificate = _read(found)
        if certificate is not None and not certificate.is_to_be_renewed(self._names, now):
            return certificate
        made = make(self._names, now, before=certificate)
        data = {key: _encoded(getattr(made, field)) for field, key in _FIELDS.items()}
        try:
            await self._api.replace(self._secret, found | {"data": data})
        except ApiError as error:
            if error.status != _CONFLICT:
                raise
            made_by_other = _read(await self._api.get(self._secret))
            if made_by_other is None:
                raise
            return made_by_other
        return made

    async def publish(self, certificate: Certificate) -> None:
        """Let the API server trust its authorities, in every webhook of the configuration."""
        configuration = await self._api.get(self._webhook)
        bundle = _encoded(certificate.authority)
        operations = [
            {"op": "add", "path": f"/webhooks/{number}/clientConfig/caBundle", "value": bundle}
            for number, one in enumerate(configuration.get("webhooks", ()))
            if one["clientConfig"].get("caBundle") != bundle
        ]
        if operations:
            await self._api.patch(self._webhook, operations)


def _read(secret: Any) -> Certificate | None:
    data = secret.get("data") or {}
    try:
        return Certificate(**{field: base64.b64decode(data[key]) for field, key in _FIELDS.items()})
    except (KeyError, ValueError):
        return None


def _encoded(pem: bytes) -> str:
    return base64.b64encode(pem).decode()
