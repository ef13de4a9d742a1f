"""Root error classes, one for each party at fault.

The proxy's own faults are plain `AssertionError`s, which no code catches by name.
"""


class ProxyError(Exception):
    """Root of every error that this program raises on purpose."""


class ClientFault(ProxyError):
    """The client broke the protocol: it is answered if possible, then disconnected."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class BrokerFault(ProxyError):
    """The broker broke the protocol, or went away."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class LoginRefused(BrokerFault):
    """The broker refused the proxy's login."""


class ConfigError(ProxyError):
    """The operator's configuration cannot be used."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.path = path
        """The setting concerned: a dotted key path below the file, such as
        `listeners[0].address`."""
        self.problem = problem
        """The problem and its solution, in one sentence."""

    def __reduce__(self) -> tuple[type["ConfigError"], tuple[str, str]]:
        """Support pickling, with which a child process returns the error to its parent."""
        return type(self), (self.path, self.problem)


def printable(text: str) -> str:
    """Return text with control characters escaped: clients choose names, and terminals interpret
    control characters."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def host_port(host: str, port: int | str) -> str:
    """Return host and port in their usual form: `broker:9092`, `[::1]:9092`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
