"""Random correlation id, the same in all workers, that marks the proxy's own requests.

It is chosen when this module is first imported, which the parent process does before it forks.
"""

import secrets
from typing import Final

OWN_CORRELATION_ID: Final = secrets.randbelow(2**31)
"""The correlation id of the proxy's own requests to brokers."""
