"""Short-lived child process, which does one piece of work and returns its result.

What the work imports and allocates ends with the child; meanwhile the parent can do something else.
"""

import os
import pickle
import sys
import traceback
from collections.abc import Callable
from typing import Generic, NoReturn, TypeVar

from proxy.errors import ProxyError

T = TypeVar("T")


class ShortLived(Generic[T]):
    """Child that does one piece of work. Only for a parent with a single thread."""

    def __init__(self, work: Callable[[], T]) -> None:
        """Fork, and begin; result and `ProxyError`s of the work must be such as can be pickled."""
        reading, writing = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if not self._pid:
            _do(work, writing)
        os.close(writing)
        self._answer = os.fdopen(reading, "rb")

    def result(self) -> T:
        """Wait for the result. Raises the ProxyError that the work raised."""
        with self._answer:
            answer = self._answer.read()
        os.waitpid(self._pid, 0)
        if not answer:
            raise ProxyError("a child process failed, see above")
        result: T | ProxyError = pickle.loads(answer)  # noqa: S301 - written by this program
        if isinstance(result, ProxyError):
            raise result
        return result


def _do(work: Callable[[], T], writing: int) -> NoReturn:
    status = 1
    try:
        result: T | ProxyError
        try:
            result = work()
        except ProxyError as error:
            result = error
        with os.fdopen(writing, "wb") as answer:
            answer.write(pickle.dumps(result))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)
