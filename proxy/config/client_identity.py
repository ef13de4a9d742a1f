"""Settings of the identity that a listener's clients have at brokers."""

from collections.abc import Mapping
from enum import StrEnum
from itertools import chain
from typing import Annotated, Final, Literal

from proxy.config.section import Problems, Section, check, setting
from proxy.config.values import (
    MappingRules,
    OneOrMore,
    PathValue,
    PositiveMilliseconds,
    Principal,
    PrincipalPrefix,
    Text,
    shown,
)
from proxy.declarations import Field
from sasl.identity import USER_TYPE


class UpstreamIdentity(StrEnum):
    """Identity of a listener's connections at brokers."""

    PROXY = "proxy"
    """The proxy's own."""
    DELEGATION_TOKEN = "delegation-token"  # noqa: S105 - no password
    """The client's, with a delegation token that the proxy creates."""
    MAPPED = "mapped"
    """The client's, with its credentials from a directory."""
    MINTED_TOKEN = "minted-token"  # noqa: S105 - no password
    """The client's, with a token that the proxy signs."""


_WAYS: Final[Mapping[UpstreamIdentity, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    UpstreamIdentity.DELEGATION_TOKEN: (("mechanism",), ()),
    UpstreamIdentity.MAPPED: (("directory", "mechanism"), ()),
    UpstreamIdentity.MINTED_TOKEN: (
        ("signing_key_files", "token_issuer", "token_audience"),
        ("jwks_file", "token_lifetime_ms"),
    ),
}
"""Required and optional settings of each way."""


class ClientIdentity(Section):
    """Identity at brokers of clients that the proxy authenticates."""

    upstream_identity: UpstreamIdentity = setting(UpstreamIdentity.PROXY)
    """The identity that brokers see. `proxy`: the proxy's own. `delegation-token`: each client's,
    with a delegation token that the proxy creates. `mapped`: each client's, with a login of its own
    from `upstream.identity.directory`. `minted-token`: each client's, with a token (OAUTHBEARER)
    that the proxy signs. See docs/client-identity.md."""
    upstream_identity_principal_mapping_rules: MappingRules | None = setting(None, reloadable=True)
    """Rules that turn the name of a client's principal into the name of its principal at brokers,
    in the grammar of `ssl.principal.mapping.rules`. A client that no rule matches is refused. null:
    the name stays."""
    upstream_identity_allow: tuple[Principal, ...] = setting((), reloadable=True)
    """Principals at brokers that clients may have, such as `User:alice`. Others are refused, unless
    the next setting allows them."""
    upstream_identity_allow_prefixes: tuple[PrincipalPrefix, ...] = setting((), reloadable=True)
    """Prefixes of principals at brokers that clients may have, such as `User:team-`. They do not
    apply to `upstream.identity.super.users`, nor to `upstream.sasl.username`."""
    upstream_identity_deny: tuple[Principal, ...] = setting((), reloadable=True)
    """Principals at brokers that no client may have, even if they are allowed."""
    upstream_identity_super_users: tuple[Principal, ...] | None = setting(None, reloadable=True)
    """The brokers' `super.users`: only `upstream.identity.allow` allows them. Required with
    `upstream.identity.allow.prefixes`; `[]` if brokers have no super users."""
    upstream_identity_directory: PathValue | None = setting(None)
    """`mapped` only, and required there: the directory with the files `NAME/username` and
    `NAME/password`, or `NAME/token`, of each principal `User:NAME` at brokers. They are read again
    when they are used. A client without them is refused."""
    upstream_identity_mechanism: (
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None
    ) = setting(None)
    """Required with `mapped` and `delegation-token`, and only there: the mechanism of the logins.
    With `mapped`, OAUTHBEARER uses `token`, the others `username` and `password`; delegation tokens
    need SCRAM."""

    upstream_identity_signing_key_files: OneOrMore[PathValue] = setting(())
    """`minted-token` only, and required there: private EC keys on P-256 in PEM. The first one
    signs; `/jwks.json` at `http.address` has the public keys of all. They are read again when they
    change."""
    upstream_identity_jwks_file: PathValue | None = setting(None)
    """`minted-token` only: a file in which the proxy also publishes these public keys."""
    upstream_identity_token_issuer: Text | None = setting(None)
    """`minted-token` only, and required there: `iss` of the tokens, the brokers'
    `sasl.oauthbearer.expected.issuer`."""
    upstream_identity_token_audience: Text | None = setting(None)
    """`minted-token` only, and required there: `aud` of the tokens, the brokers'
    `sasl.oauthbearer.expected.audience`. It should name the cluster's id, so that a token is of no
    use elsewhere."""
    upstream_identity_token_lifetime_ms: Annotated[
        PositiveMilliseconds, Field(ge=60_000, le=3_600_000)
    ] = setting(600_000)
    """`minted-token` only: the tokens' lifetime, 60000 to 3600000."""

    @property
    def presents_clients(self) -> bool:
        """True if brokers see the client, and not the proxy."""
        return self.upstream_identity is not UpstreamIdentity.PROXY

    @check
    def _check_identity(self) -> Problems:
        mode = f"upstream.identity: {self.upstream_identity}"
        if not self.presents_clients:
            others = ClientIdentity.model_fields.keys() - {"upstream_identity"}
            yield from self.given(others, f"has no meaning with {mode}")
            return
        yield from self._check_way(mode)
        if not (self.upstream_identity_allow or self.upstream_identity_allow_prefixes):
            problem = f"is required with {mode}, or upstream.identity.allow.prefixes"
            yield "upstream.identity.allow", problem
        if self.upstream_identity_allow_prefixes and self.upstream_identity_super_users is None:
            yield (
                "upstream.identity.super.users",
                "is required with upstream.identity.allow.prefixes: name the brokers' super.users,"
                " which a prefix must not allow",
            )
        yield from self._check_types()

    def _check_way(self, mode: str) -> Problems:
        """Refuse missing settings of the chosen way, and settings of the others."""
        needed, optional = _WAYS[self.upstream_identity]
        for other in sorted({name for one in _WAYS.values() for name in chain(*one)}):
            name = f"upstream_identity_{other}"
            if other in needed and not getattr(self, name):
                yield self.key_of(name), f"is required with {mode}"
            if other not in needed + optional and name in self.model_fields_set:
                yield self.key_of(name), f"has no meaning with {mode}"
        mechanism = self.upstream_identity_mechanism or ""
        if self.upstream_identity is UpstreamIdentity.DELEGATION_TOKEN and "SCRAM" not in mechanism:
            yield (
                "upstream.identity.mechanism",
                f"must be SCRAM-SHA-256 or SCRAM-SHA-512 with {mode}",
            )

    def _check_types(self) -> Problems:
        """Refuse principals that no client can have at brokers: rules would silently not apply."""
        for name in ClientIdentity.model_fields:
            values = getattr(self, name)
            for index, value in enumerate(values if isinstance(values, tuple) else ()):
                if isinstance(value, str) and not value.startswith(USER_TYPE):
                    problem = f"must begin with {USER_TYPE}, got {shown(value)}"
                    yield f"{self.key_of(name)}[{index}]", problem
