from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.events.copies import ALL_FIELDS, copied, schema_ddl
from benchmarks.events.generate import Size, clients_of, main, simulated
from metrics.spark.lines import parsed

SIZE = Size(connections=8, principals=3, clients=5, days=0.1, seed=2)


def generated(size: Size) -> list[str]:
    return list(simulated(size, clients_of(size)))


def test_a_seed_gives_the_same_events_and_another_gives_others() -> None:
    assert generated(SIZE) == generated(SIZE)
    assert generated(SIZE) != generated(
        Size(connections=8, principals=3, clients=5, days=0.1, seed=4)
    )


def test_files_are_as_the_proxy_names_them(tmp_path: Path) -> None:
    options = ["--connections", "5", "--clients", "5", "--days", "0.1"]
    assert main(["--out", str(tmp_path), *options]) == 0
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["events-generated-0-20260601T000000Z-0.jsonl", "truth.json"]


def test_copies_are_other_connections_at_other_times(spark: SparkSession) -> None:
    lines = spark.createDataFrame([(line,) for line in generated(SIZE)], "value STRING")
    templates = parsed(lines, ALL_FIELDS)
    made = copied(templates, copies=3, groups=3, clients=5)
    assert made.count() == 3 * templates.count()
    assert made.select("connection_id").distinct().count() == 24
    assert made.select("client_id").where("client_id IS NOT NULL").distinct().count() == 15
    nameless = templates.where("principal IS NULL").count()
    assert made.where("principal IS NULL").count() == 3 * nameless > 0
    assert made.where("active_from_ms % 60000 <> 0").count() == 0
    assert made.where("authenticated_ms < connected_ms").count() == 0


def test_ddl_names_structs_as_spark_does() -> None:
    ddl = schema_ddl()
    assert ddl.startswith("schema_version BIGINT, kind STRING, timestamp_ms BIGINT")
    assert "final BOOLEAN" in ddl
    assert "reauth_latencies array<struct<bucket:bigint,count:bigint>>" in ddl
    assert "ended_since_auth_ms:bigint,ended_by:string>>" in ddl
