"""Additional jars for Spark, listed in requirements/spark.xml."""

import os
import shutil
import subprocess

from tests.support.deploy import ROOT, missing
from tests.support.kafka.java import cache_directory

_POM = ROOT / "requirements/spark.xml"

_HINT = "Spark's connectors could not be fetched: it takes mvn (Debian: maven) and Maven Central"


def spark_jars(name: str, *options: str) -> str:
    """Return jars for `--jars`, fetched once into the cache under this name.

    Where they cannot be had, skips with a hint, but in CI it is a fault. `options`: further ones of
    mvn.
    """
    jars = cache_directory() / name
    if not any(jars.glob("*.jar")):
        partial = jars.with_suffix(f".{os.getpid()}")
        command = ["mvn", "-q", "-B", "-f", str(_POM), *options, "dependency:copy-dependencies"]
        output = f"-DoutputDirectory={partial}"
        if (
            shutil.which("mvn") is None
            or subprocess.run([*command, output], timeout=900).returncode
        ):
            shutil.rmtree(partial, ignore_errors=True)
            missing(_HINT)
        shutil.rmtree(jars, ignore_errors=True)
        partial.rename(jars)
    return ",".join(map(str, sorted(jars.glob("*.jar"))))
