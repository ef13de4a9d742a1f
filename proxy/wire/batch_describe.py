"""DescribeAcls v4 and DescribeClientQuotas v2 (KIP-888): limits, and numbers of filters.

No Kafka serves them. A request is a list of filters, and a response a list with one result for
each, in their order, each with its own error.
"""

from typing import Final

from proxy.wire.primitives import Malformed, uvarint

ACLS_BATCHED: Final = 4
"""First version of DescribeAcls with many filters."""
QUOTAS_BATCHED: Final = 2
"""First version of DescribeClientQuotas with many filters."""
MAX_FILTERS: Final = 100_000
"""Maximum number of filters per request; a bound of this proxy, as the specification sets none."""
MAX_RESULT_BYTES: Final = 64 << 20
"""Maximum size of all results of one response, in bytes; a bound of this proxy, well below what
clients read, such as librdkafka's `receive.message.max.bytes` (100,000,000)."""


def acl_filter_count(body: bytes) -> int:
    """Return the number of filters of DescribeAcls v4, before any object is made of them.

    Raises Malformed.
    """
    return _count(body, 0, min_size=8)  # four codes, three strings, tags


def quota_filter_count(body: bytes) -> int:
    """Return the number of filters of DescribeClientQuotas v2, before any object is made of them.

    Raises Malformed.
    """
    return _count(body, 1, min_size=2)  # no components, tags


def _count(body: bytes, position: int, *, min_size: int) -> int:
    length, position = uvarint(body, position)
    if length == 0:
        raise Malformed("null instead of filters")
    if (length - 1) * min_size > len(body) - position:
        raise Malformed("more filters than bytes for them")
    return length - 1
