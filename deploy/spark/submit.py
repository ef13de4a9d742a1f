"""The report as spark-submit runs it: `spark-submit … submit.py --events … --out …`."""

import sys

from proxy.cli import main

sys.argv[1:1] = ["report", "--engine", "spark"]
main()
