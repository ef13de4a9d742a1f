"""A mutational fuzzer of the hand-written parsers: addresses, long frames, ApiVersions.

Seeds are responses made up from kio's schemas; each round mutates one and feeds it to the code.
Run: python -m tests.fuzz.fuzz_frames --seconds 60 [--seed 1]
Exit status 1 on any exception but ClientFault and BrokerFault, or if a frame cut through changes
its length; the input is printed in hex.
"""

import random
import sys
import time
import warnings
from collections.abc import Callable

from hypothesis.errors import NonInteractiveExampleWarning

from proxy.errors import BrokerFault, ClientFault
from proxy.wire import metadata
from proxy.wire.addresses import rewrite
from proxy.wire.api_versions import ApiVersionsAnswers, parse_request, parse_response
from proxy.wire.apis import API_VERSIONS, APIS, METADATA, carries_addresses
from proxy.wire.walks import APIS_CUT_THROUGH, LongFrameEndpoints
from tests.support.fuzzing import arg_parser, mutate
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


def targets(
    rng: random.Random, api_key: int, version: int, body: bytes
) -> list[Callable[[], object]]:
    """Functions that process this response."""
    if api_key == API_VERSIONS:
        return [lambda: api_versions(version, body), lambda: parse_request(version, body[4:])]
    todo: list[Callable[[], object]] = [lambda: rewrite(api_key, version, body, resolve)]
    if api_key == METADATA and version >= metadata.LOWEST_VERSION:
        todo.append(lambda: metadata.parse_response(version, body[4:]))
    if api_key in APIS_CUT_THROUGH:
        todo.append(lambda: cut_through(rng, api_key, version, body))
    return todo


def main(seconds: float, seed: int) -> int:
    rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
    seeds = corpus()
    rounds = faults = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        api_key, version, body = rng.choice(seeds)
        other = rng.choice(seeds)[2]
        at = rng.randint(0, len(other))
        words = (other[at:], other[at : at + 8], bytes((rng.choice(INTERESTING),)))
        mutated = mutate(rng, body, words)
        for target in targets(rng, api_key, version, mutated):
            rounds += 1
            try:
                target()
            except (BrokerFault, ClientFault):
                faults += 1
            except Exception:
                print(f"API {api_key} v{version}: {mutated.hex()}", file=sys.stderr)  # noqa: T201
                raise
    print(f"{rounds} inputs, {faults} refused, seed {seed}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(**vars(arg_parser(__doc__).parse_args())))
