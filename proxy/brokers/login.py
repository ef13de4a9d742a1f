"""SASL login to a server over any transport of requests and responses."""

import asyncio
from collections.abc import Awaitable, Callable

from sasl.login import ClientExchange, LoggedIn, Login, Send, Step


async def log_in(
    exchange: ClientExchange,
    highest_version: int,
    request: Callable[[int, int, bytes], Awaitable[bytes]],
) -> LoggedIn:
    """Log in. Raises LoginError.

    `highest_version` is the server's highest version of SaslAuthenticate; negative: it has none.
    `request(api_key, api_version, body)` returns the body of the response.
    """
    login = Login(exchange, highest_version)
    step: Step = login.begin()
    while not isinstance(step, LoggedIn):
        if isinstance(step, Send):
            answer = await request(step.api_key, step.api_version, step.body)
            step = login.answered(answer)
        else:
            step = login.derived(await asyncio.to_thread(step.work))
    return step
