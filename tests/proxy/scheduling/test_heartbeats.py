"""Processes that are silent for too long: counted in checks, without a clock."""

import os

from proxy.scheduling.heartbeats import HUNG_CHECKS, START_CHECKS, Heartbeat, Watch


def looks(watch: Watch, count: int) -> bool:
    for _ in range(count):
        watch.check()
    return watch.is_hung


def test_one_beat_is_enough() -> None:
    heartbeat = Heartbeat()
    heartbeat.begin()
    heartbeat.beat()
    watch = Watch(heartbeat)
    assert not looks(watch, HUNG_CHECKS - 1)
    heartbeat.beat()
    assert not looks(watch, HUNG_CHECKS)
    assert looks(watch, 1)


def test_a_start_may_take_longer_and_another_life_is_a_sign_of_life() -> None:
    """A worker reads its ACLs first; a restarted process has the full time of a start."""
    heartbeat = Heartbeat()
    watch = Watch(heartbeat)
    for _ in range(2):
        heartbeat.begin()
        assert not looks(watch, START_CHECKS)
        assert looks(watch, 1)
    heartbeat.beat()
    assert looks(watch, HUNG_CHECKS + 1)
    heartbeat.begin()
    assert not looks(watch, START_CHECKS)


def test_a_child_s_beats_are_seen_by_its_parent() -> None:
    heartbeat = Heartbeat()
    heartbeat.begin()
    child = os.fork()
    if not child:
        heartbeat.beat()
        os._exit(0)
    os.waitpid(child, 0)
    assert (heartbeat.life, heartbeat.beats) == (1, 1)
