"""The program as it is started."""

import subprocess
import sys
from pathlib import Path


def test_no_folder_of_hypothesis_appears(tmp_path: Path) -> None:
    """kio loads it if it is installed, and hypothesis makes a folder where one works."""
    arguments = ["acls", "list", "--bootstrap-server", "127.0.0.1:1"]
    done = subprocess.run(
        [sys.executable, "-c", "from proxy.__main__ import main; main()", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    loaded = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; sys.argv[1:] = ['--version']\n"
            "from proxy.__main__ import main\n"
            "try:\n    main()\nfinally:\n"
            "    import kio.static.primitive; print(sys.modules['hypothesis'])",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert loaded.stdout.splitlines()[-1] == "None", loaded.stderr
    assert not list(tmp_path.iterdir())
