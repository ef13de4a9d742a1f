"""The store in one SQLite file, shared by the workers and the command line."""

from proxy.store.interface import Mirror
from proxy.store.sqlite.acls import SqliteAcls
from proxy.store.sqlite.credentials import SqliteCredentials
from proxy.store.sqlite.quotas import SqliteQuotas


class SqliteStore(SqliteCredentials, SqliteAcls, SqliteQuotas):
    """A `proxy.store.Store`: one class per concern, all on the same file."""

    def begin(self) -> None:
        """The proxy starts: whatever is in the file is its own from now on."""
        with self.writing() as connection:
            connection.execute("DELETE FROM mirror")

    def mirror(self) -> Mirror | None:
        """Return how well ACLs and quotas are known; None: they are this file's own."""
        with self.reading() as connection:
            row = connection.execute("SELECT asked_at, problem FROM mirror").fetchone()
        return None if row is None else Mirror(asked_at=row[0], problem=row[1])
