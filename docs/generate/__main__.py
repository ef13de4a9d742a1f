"""Writes the files that the code declares: tables of the docs, the chart.

python -m docs.generate            write them
python -m docs.generate --check    write nothing; status 1 if a file is out of date
"""

import argparse
import sys

from deploy.helm.schema import chart
from docs.generate.reference import pages


def main(arguments: list[str]) -> int:
    """Write the files, or compare them; return the exit status."""
    parser = argparse.ArgumentParser(prog="docs.generate", description="Write generated files.")
    parser.add_argument("--check", action="store_true", help="check whether the files are current")
    check = parser.parse_args(arguments).check
    status = 0
    for files in (pages, chart):
        for file, text in files().items():
            if file.is_file() and file.read_text() == text:
                continue
            status = int(check)
            if check:
                sys.stderr.write(f"{file} is out of date: run make docs\n")
            else:
                file.parent.mkdir(exist_ok=True)
                file.write_text(text)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
