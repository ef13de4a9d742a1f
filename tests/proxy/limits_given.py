"""Limits of connections that hardly anything meets."""

from proxy.config.address_limits import LARGEST
from proxy.worker.connection_limits import ConnectionLimits, Evictable, OpenConnections, Shared


def room_for(most: int) -> OpenConnections[Evictable]:
    """What a listener of the one worker there is counts its connections with."""
    limits = ConnectionLimits(Shared(1, [most]), 0)
    limits.apply(LARGEST, {})
    return OpenConnections(limits, 0)
