"""The guards and the handlers of the ACL APIs answer as recorded with Kafka's authorizer.

`tests.support.kafka.acl_differential.recording` compared every answer in the record with Kafka's,
and can make it again.
"""

from collections.abc import Sequence

import pytest

from proxy.acl.guards import GUARDS
from proxy.wire.apis import ACL_APIS
from tests.support.kafka.acl_differential.comparison import Normal
from tests.support.kafka.acl_differential.profiles import PROFILES, Names
from tests.support.kafka.acl_differential.recording import SIDE, Case, Exchange, Judging, Record
from tests.support.kio_messages import response_type
from tests.support.kio_messages.strict import decode

#: Judged in steps, as long requests are.
IN_STEPS = ("one", "deny-all", "prefixed-read")
#: Not in the record: released brokers offer these only with a plugin, or not at all.
NEVER_ASKED = {50, 51, 71, 72}


@pytest.fixture(scope="module")
def record() -> Record:
    return Record.read()


class Replayed:
    """The broker of one case: it answers what it answered, and nothing else."""

    def __init__(self) -> None:
        self.expected: list[Exchange] = []

    def __call__(self, api_key: int, version: int, body: bytes) -> bytes | None:
        assert self.expected, "a request that was not sent to the broker is sent now"
        *request, response = self.expected.pop(0)
        assert (api_key, version, body) == tuple(request)
        return response


@pytest.mark.parametrize("profile", PROFILES)
def test_every_answer_is_the_recorded_one(profile: str, record: Record) -> None:
    broker = Replayed()
    judging = Judging(profile, record.topics, broker, pauses=profile in IN_STEPS)
    cases = record.cases[profile]
    different = []
    for case in cases:
        broker.expected = [*case.exchanges]
        answer = judging.answer(case.api_key, case.version, case.request)
        assert not broker.expected, f"{case.label}: the broker is not asked any more"
        if answer != case.answer:
            different.append((case, answer))
    assert not different, _report(profile, different)


def _report(profile: str, different: Sequence[tuple[Case, bytes | None]]) -> str:
    rows = [f"{len(different)} answers are different"]
    for case, answer in different[:10]:
        texts = (_text(profile, case, body) for body in (case.answer, answer))
        rows += [f"{case.api_key} {case.label}", *(f"  {text}" for text in texts)]
    return "\n".join(rows)


def _text(profile: str, case: Case, body: bytes | None) -> str:
    if body is None:
        return "closed"
    message = decode(response_type(case.api_key, case.version), body)
    return f"{Normal(Names(SIDE, profile), {}).text(case.api_key, message)} {body.hex()}"


def test_every_guard_is_asked_in_every_version(record: Record) -> None:
    asked = {case.api_key for cases in record.cases.values() for case in cases}
    assert asked == (GUARDS.keys() | ACL_APIS | {48}) - NEVER_ASKED
