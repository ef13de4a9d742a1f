"""What tests must know of processes that they stop for a while."""

from pathlib import Path


def is_stopped(pid: int) -> bool:
    """Whether SIGSTOP has reached every thread: until then, each may go on."""
    try:
        stats = [task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/stat")]
    except FileNotFoundError:  # a thread that has just ended: others go on
        return False
    return all(stat.rsplit(")", 1)[1].split()[0] == "T" for stat in stats)
