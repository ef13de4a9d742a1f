"""Brokers of clusters in the database, as clients' Metadata named them."""

from collections.abc import Mapping

from proxy.store.sqlite.database import Database


class SqliteBrokers(Database):
    """Addresses of brokers in a SQLite file, a `proxy.store.BrokerStore`."""

    def brokers(self, cluster: str) -> dict[int, tuple[str, int]]:
        """Return host and port of each broker that was kept for a cluster, by id."""
        with self.reading() as connection:
            rows = connection.execute(
                "SELECT id, host, port FROM brokers WHERE cluster = ?", (cluster,)
            ).fetchall()
        return {broker_id: (host, port) for broker_id, host, port in rows}

    def keep_brokers(self, cluster: str, brokers: Mapping[int, tuple[str, int]]) -> None:
        """Add brokers of a cluster, or replace their addresses, all in one transaction."""
        with self.writing() as connection:
            connection.executemany(
                "INSERT INTO brokers VALUES (?, ?, ?, ?) ON CONFLICT (cluster, id)"
                " DO UPDATE SET host = excluded.host, port = excluded.port"
                " WHERE host != excluded.host OR port != excluded.port",
                [(cluster, broker_id, host, port) for broker_id, (host, port) in brokers.items()],
            )
