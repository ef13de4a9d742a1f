"""The report as spark-submit runs it: `spark-submit … submit.py --events … --out …`."""

from metrics.spark.job import main

raise SystemExit(main())
