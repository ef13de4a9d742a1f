"""Principal of a client without SASL: anonymous, or its certificate's name.

Laws:

- A certificate counts only if it was requested, and so verified in the handshake.
- A client without one is `User:ANONYMOUS`, as in Kafka; a connection whose certificate yields no
  name is closed, rather than given another principal.
"""

import ssl
from typing import Final

from proxy.acl.certificate_subject import subject_of
from proxy.acl.principal_mapping import PrincipalMapping
from sasl.identity import USER_TYPE

ANONYMOUS: Final = "User:ANONYMOUS"
"""Principal of a client without a certificate: Kafka's `KafkaPrincipal.ANONYMOUS`."""


def certified_principal(client: ssl.SSLObject, mapping: PrincipalMapping) -> str:
    """Return the principal of a client whose TLS handshake is done. Raises NamelessError."""
    if client.context.verify_mode == ssl.CERT_NONE:
        return ANONYMOUS
    certificate = client.getpeercert(binary_form=True)
    if certificate is None:
        return ANONYMOUS
    return USER_TYPE + mapping.name_of(subject_of(certificate))
