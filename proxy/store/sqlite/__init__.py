"""The store in one SQLite file, shared by the workers and the command line."""

from proxy.store.sqlite.acls import SqliteAcls
from proxy.store.sqlite.credentials import SqliteCredentials
from proxy.store.sqlite.quotas import SqliteQuotas


class SqliteStore(SqliteCredentials, SqliteAcls, SqliteQuotas):
    """A `proxy.store.Store`: one class per concern, all on the same file."""
