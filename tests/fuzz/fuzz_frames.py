"""A mutational fuzzer of the hand-written parsers: addresses, long frames, ApiVersions.

Seeds are responses made up from kio's schemas; each round mutates one and feeds it to the code.
Run: python -m tests.fuzz.fuzz_frames --seconds 60 [--seed 1]
Exit status 1 on any exception but ClientFault and BrokerFault, or if a frame cut through changes
its length; the API's key and version and the input are printed in hex.
"""

import random
import warnings
from collections.abc import Callable
from contextlib import suppress

from hypothesis.errors import NonInteractiveExampleWarning

from proxy.errors import BrokerFault, ClientFault
from proxy.wire import metadata
from proxy.wire.addresses import rewrite
from proxy.wire.api_versions import ApiVersionsAnswers, parse_request, parse_response
from proxy.wire.apis import API_VERSIONS, APIS, METADATA, carries_addresses
from proxy.wire.walks import APIS_CUT_THROUGH, LongFrameEndpoints
from tests.support.fuzzing import main, mutate
from tests.support.responses import encode, responses

SEEDS_PER_VERSION = 4
INTERESTING = (0, 1, 2, 0x7F, 0x80, 0xFF)

Corpus = list[tuple[int, int, bytes]]


def corpus() -> Corpus:
    """Some responses of every API and version that is parsed by hand."""
    warnings.simplefilter("ignore", NonInteractiveExampleWarning)
    return [
        (api.key, version, encode(responses(api.key, version).example()))
        for api in APIS.values()
        for version in range(api.min_version, api.max_version + 1)
        if carries_addresses(api.key, version) or api.key == API_VERSIONS
        for _ in range(SEEDS_PER_VERSION)
    ]


def resolve(node_id: int, host: str, port: int) -> tuple[str, int] | None:
    return (f"gateway-{host[:20]}", port) if node_id % 2 else None


def cut_through(rng: random.Random, api_key: int, version: int, body: bytes) -> None:
    follower = LongFrameEndpoints(api_key, version, len(body))
    position = 0
    while position < len(body):
        size = rng.choice((1, 2, 7, 100, 10_000))
        chunk = bytearray(body[position : position + size])
        follower.feed(memoryview(chunk))
        assert len(chunk) == len(body[position : position + size])
        position += size


def api_versions(version: int, body: bytes) -> None:
    _, upstream = parse_response(version, body[4:])
    answers = ApiVersionsAnswers(upstream)
    for answered in range(5):
        again, _ = parse_response(answered, answers.response(answered, 1)[4:])
        assert again == 0


class Fuzzer:
    """Each round mutates a response and feeds it to the functions that process it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
        self.seeds = corpus()
        self.inputs: list[bytes] = []

    def round(self) -> None:
        rng = self.rng
        api_key, version, body = rng.choice(self.seeds)
        other = rng.choice(self.seeds)[2]
        at = rng.randint(0, len(other))
        words = (other[at:], other[at : at + 8], bytes((rng.choice(INTERESTING),)))
        mutated = mutate(rng, body, words)
        self.inputs = [bytes((api_key, version)), mutated]
        for target in self.targets(api_key, version, mutated):
            with suppress(BrokerFault, ClientFault):
                target()

    def targets(self, api_key: int, version: int, body: bytes) -> list[Callable[[], object]]:
        if api_key == API_VERSIONS:
            return [lambda: api_versions(version, body), lambda: parse_request(version, body[4:])]
        todo: list[Callable[[], object]] = [lambda: rewrite(api_key, version, body, resolve)]
        if api_key == METADATA and version >= metadata.LOWEST_VERSION:
            todo.append(lambda: metadata.parse_response(version, body[4:]))
        if api_key in APIS_CUT_THROUGH:
            todo.append(lambda: cut_through(self.rng, api_key, version, body))
        return todo


if __name__ == "__main__":
    main(Fuzzer, __doc__, "every fault is of a broker or a client")
