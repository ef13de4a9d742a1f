"""Responses of groups and transactions that are cut: whatever bytes the broker sends."""

from contextlib import suppress

import pytest

from proxy.acl.decision import Change
from proxy.acl.guards import GUARDS
from proxy.acl.model import Operation
from proxy.wire.primitives import Malformed
from tests.support.authorization import NOTHING, group, judged, transactional_id
from tests.support.kio_messages import encode, request_type, response_type
from tests.support.messages import LARGE, large, versions

NAMES = {LARGE["uuid"].bytes: "secret"}
RIGHTS = group(Operation.READ, "*") | group(Operation.DESCRIBE, "*") | group(Operation.DELETE, "*")
RIGHTS |= transactional_id(Operation.DESCRIBE, "*")
CUT = [
    (api_key, version)
    for api_key in (9, 16, 47, 65, 66, 69, 77, 78, 79, 89, 90, 91)
    for version in versions(api_key)
]


@pytest.mark.parametrize(("api_key", "version"), CUT)
def test_a_cut_fears_no_bytes(api_key: int, version: int) -> None:
    """What cannot be read is Malformed: it must not pass uncut, nor end anything else."""
    rights = NOTHING if api_key == 16 else RIGHTS
    judgement = judged(GUARDS[api_key], large(request_type(api_key, version)), rights, NAMES)
    assert isinstance(judgement, Change)
    assert judgement.response is not None
    body = encode(large(response_type(api_key, version)))
    judgement.response(body)
    step = max(1, len(body) // 25)
    for position in range(0, len(body), step):
        for hostile in (
            body[:position],
            body[:position] + b"\xff\xff\xff\xff\x07" + body[position + 5 :],
        ):
            with suppress(Malformed):
                judgement.response(hostile)
    with pytest.raises(Malformed):
        judgement.response(body[: len(body) // 2])
