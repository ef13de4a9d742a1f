"""Every question of the tables, asked by every profile, in the versions that both sides offer."""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.kafka import (
    acl_questions_cluster,
    acl_questions_data,
    acl_questions_groups,
    acl_questions_transactions,
)
from tests.kafka.acl_normal import Normal
from tests.kafka.acl_profiles import PROFILES, THOROUGH, Names
from tests.kafka.acl_requests import QUESTIONS, Context, Question
from tests.kafka.acl_side import Client, Side
from tests.kafka.wire_client import Address, Outcome, ask

__all__ = [
    "acl_questions_cluster",
    "acl_questions_data",
    "acl_questions_groups",
    "acl_questions_transactions",
]

Versions = Mapping[int, tuple[int, int]]
Answers = dict[str, str]

_AT_ONCE = 4

#: CreateAcls and DeleteAcls; what they do shows in DescribeAcls a moment later.
_CHANGE_ACLS = (30, 31)


def offered(address: Address) -> Versions:
    """What a listener says to ApiVersions."""
    answer: Any = ask(address, 18, 3, {"client_software_name": "a", "client_software_version": "1"})
    return {key.api_key: (key.min_version, key.max_version) for key in answer.api_keys}


def answer_all(side: Side, versions: Versions) -> Answers:
    """By case: the answer. Profiles are independent of each other, so they share the time."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        done = pool.map(lambda profile: list(_answers(side, profile, versions)), PROFILES)
        return dict(case for cases in done for case in cases)


def _answers(side: Side, profile: str, versions: Versions) -> Iterator[tuple[str, str]]:
    names = Names(side.name, profile)
    client = side.client(names.user)
    normal = Normal(names, side.topics)
    previous = None
    for question in QUESTIONS:
        if previous in _CHANGE_ACLS and question.api_key not in _CHANGE_ACLS:
            side.until_acls_are_known()
        previous = question.api_key
        if question.profiles is not None and profile not in question.profiles:
            continue
        for version in _versions(question, versions, is_thorough=profile in THOROUGH):
            context = Context(names, side, version)
            yield (
                f"{profile}: {question.api_key} {question.label} v{version}",
                _answer(client, normal, question, context),
            )


def _answer(client: Client, normal: Normal, question: Question, context: Context) -> str:
    answer = client.ask(question.api_key, context.version, question.build(context))
    if isinstance(answer, Outcome):
        return answer.value
    return normal.text(question.api_key, answer, is_list=question.is_list)


def _versions(question: Question, offered: Versions, *, is_thorough: bool) -> Iterable[int]:
    if question.api_key not in offered:
        return ()
    low, high = offered[question.api_key]
    fitting = [each for each in range(low, high + 1) if question.versions(each)]
    if is_thorough or len(fitting) <= 3:
        return fitting
    return (fitting[0], fitting[len(fitting) // 2], fitting[-1])
