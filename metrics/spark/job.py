"""Readiness report by Spark: the job as spark-submit runs it.

    spark-submit --py-files dist/kafka_reauth_proxy-….whl submit.py --events s3a://… --out report

`metrics.readiness.job` says what the options are.
"""

from collections.abc import Sequence

from metrics.readiness import job


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job on Spark, with the master that spark-submit names."""
    return job.main(argv, submitted=True)


if __name__ == "__main__":
    raise SystemExit(main())
