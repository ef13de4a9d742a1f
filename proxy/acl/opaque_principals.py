"""Names of opaque principals: clients that the proxy cannot identify by their login."""

from typing import Final

from proxy.acl.principal_mapping import PrincipalMapping

TYPE: Final = "Opaque"
"""Type of an opaque principal, which no Kafka broker gives."""


def is_opaque(principal: str) -> bool:
    """Return whether a principal is opaque: no rule made a user of it."""
    return principal.startswith(f"{TYPE}:")


class OpaqueNames:
    """Names of a listener's opaque principals."""

    def __init__(self, rules: str | None) -> None:
        """Map by `rules`, in the grammar of `ssl.principal.mapping.rules`; None: map nobody."""
        self._mapping = None if rules is None else PrincipalMapping(rules)

    def principal(self, description: str) -> str:
        """Return the principal for a description, e.g. `GSSAPI@192.0.2.1`.

        It is a user if a rule matches, and `Opaque:GSSAPI@192.0.2.1` if none does.
        """
        name = None if self._mapping is None else self._mapping.try_name_of(description)
        return f"{TYPE}:{description}" if name is None else f"User:{name}"
