"""In-memory copy of the SCRAM verifiers, so that a login never waits for the store."""

from collections.abc import Mapping

from proxy.store.interface import CredentialKey, CredentialStore
from sasl.credentials import NO_USERS, ScramCredential, ScramMechanism, ShapeShares


class CachedCredentials:
    """Credentials of the store as of the last refresh; a `sasl.credentials.CredentialSource`."""

    def __init__(self, store: CredentialStore) -> None:
        self._store = store
        self._version = -1
        self._credentials: Mapping[CredentialKey, ScramCredential] = {}
        self._shares: Mapping[ScramMechanism, ShapeShares] = {}
        self.refresh_if_changed()

    def refresh_if_changed(self) -> bool:
        """Read the credentials again if they changed; return whether they did. Raises StoreError.

        To be called about once a second, on any thread. After an error the last known credentials
        stay in use.
        """
        if self._store.version() == self._version:
            return False
        snapshot = self._store.credential_snapshot()
        self._shares = _shares(snapshot.credentials)
        self._credentials, self._version = snapshot.credentials, snapshot.version
        return True

    def find(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        """Return the user's verifier for this mechanism; None if there is none."""
        return self._credentials.get((user, mechanism))

    def shape_shares(self, mechanism: ScramMechanism) -> ShapeShares:
        """Return how the shapes of this mechanism's verifiers are distributed."""
        return self._shares.get(mechanism, NO_USERS)


def _shares(
    credentials: Mapping[CredentialKey, ScramCredential],
) -> Mapping[ScramMechanism, ShapeShares]:
    by_mechanism: dict[ScramMechanism, list[ScramCredential]] = {}
    for (_, mechanism), credential in credentials.items():
        by_mechanism.setdefault(mechanism, []).append(credential)
    return {mechanism: ShapeShares.of(group) for mechanism, group in by_mechanism.items()}
