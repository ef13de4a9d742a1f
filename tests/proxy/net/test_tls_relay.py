"""The laws of the relay hold with TLS on either side: its own tests again."""

from collections.abc import Iterator

import pytest

from tests.proxy.net.test_relay import (  # noqa: F401 - run again, under `everywhere`
    test_20_megabytes_both_ways,
    test_a_broker_that_closes_in_the_middle_takes_the_client_along,
    test_a_client_that_goes_takes_its_broker_along,
    test_many_small_frames_between_large_ones,
    test_memory_is_bounded_when_a_client_does_not_read,
)
from tests.support import relay as harness
from tests.support.relay import Secured
from tests.support.tls import BACK, BOTH, FRONT


@pytest.fixture(
    autouse=True,
    params=[
        pytest.param(FRONT, id="clients", marks=pytest.mark.slow),
        pytest.param(BACK, id="brokers", marks=pytest.mark.slow),
        pytest.param(BOTH, id="both"),
    ],
)
def everywhere(request: pytest.FixtureRequest) -> Iterator[Secured]:
    harness.present[0] = request.param
    yield request.param
    harness.present[0] = Secured()
