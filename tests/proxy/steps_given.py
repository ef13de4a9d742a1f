"""Works whose length is in turns of the event loop, however fast the machine."""

from time import perf_counter

from proxy.scheduling.steps import Steps
from proxy.scheduling.time_slices import SLICE_SECONDS


def slow(steps: int) -> Steps[int]:
    """Each step takes a whole slice."""
    for _ in range(steps):
        until = perf_counter() + SLICE_SECONDS
        while perf_counter() < until:
            pass
        yield
    return steps
