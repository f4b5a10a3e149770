"""Actors in processes on this machine: state continues, weights arrive, and failed actors are replaced."""

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from multiprocessing import get_context

import pytest
import torch

from helpers import counting
from helpers.actors import LENGTH, config, reader_of
from helpers.counting import CountingActor
from rmc_agents.envs.processes import WorkerError
from rmc_agents.train.impala import pool as pools
from rmc_agents.train.impala.actors import Parcel, pack_weights
from rmc_agents.train.impala.pool import ActorPool
from rmc_agents.train.impala.processes import ProcessEngine, WeightsBoard

pytestmark = pytest.mark.slow


@pytest.fixture
def engines() -> Iterator[Callable[..., ProcessEngine]]:
    made: list[ProcessEngine] = []

    def make(actors: int, slots: int = 2, **settings: object) -> ProcessEngine:
        make_actor = partial(CountingActor, config(actors=actors, **settings))
        engine = ProcessEngine(make_actor, actors, slots, 1 << 20, len(pack_weights(counting.CountingAgent())))
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.close()


def weights(version: int) -> bytes:
    agent = counting.CountingAgent()
    torch.nn.init.constant_(agent.offset, version)
    return pack_weights(agent)


def take_in_turn(pool: ActorPool, updates: int, each: int) -> dict[int, list[Parcel]]:
    """Act as a learner: take some rollouts, then publish new weights; returns rollouts by actor."""
    taken: dict[int, list[Parcel]] = {}
    for version in range(updates):
        for parcel in pool.take(each):
            taken.setdefault(parcel.actor, []).append(parcel)
        pool.publish(version + 1, weights(version + 1))
    return taken


def assert_counts_go_on(parcels: list[Parcel]) -> None:
    """Each rollout begins where the one before ended, and memory and environment have equal counts."""
    for parcel in parcels:
        steps = parcel.rollout.steps
        seen = steps.obs.squeeze(-1)[:-1] + 1.0  # the first observation is a 0
        assert torch.equal(parcel.rollout.value, seen)
        assert torch.equal(parcel.rollout.policy_logits, torch.full_like(parcel.rollout.policy_logits, parcel.version))
    for before, after in pairwise(parcels):
        assert after.sequence == before.sequence + 1
        for last, first in zip(before.rollout.steps[:6], after.rollout.steps[:6], strict=True):
            assert torch.equal(last[-1], first[0])
        assert torch.equal(after.rollout.initial_state.steps, before.rollout.value[-1].unsqueeze(-1))


def pool_of(engine: ProcessEngine, actors: int, timeout: float = 60.0, **settings: object) -> ActorPool:
    reader = reader_of(CountingActor(config(actors=actors, **settings), 0))
    pool = ActorPool(engine, reader, [None] * actors, rollouts_ahead=2, max_policy_lag=100, timeout=timeout)
    pool.start(0, weights(0))
    return pool


def test_state_is_handed_from_rollout_to_rollout(engines: Callable[..., ProcessEngine]) -> None:
    pool = pool_of(engines(2), 2)
    taken = take_in_turn(pool, updates=20, each=2)
    assert sum(map(len, taken.values())) == 40
    for parcels in taken.values():
        assert parcels[0].sequence == 0
        assert_counts_go_on(parcels)
    last = max(parcel.version for parcels in taken.values() for parcel in parcels)
    assert last > 10  # new weights did come


def test_a_killed_actor_is_replaced_and_nothing_is_lost_or_doubled(engines: Callable[..., ProcessEngine]) -> None:
    """The environment of the counting agent cannot be saved: only numbers continue. Recall's episodes do."""
    engine = engines(1, env="recall", unroll_length=LENGTH)
    pool = pool_of(engine, 1, env="recall")
    taken = take_in_turn(pool, updates=5, each=2)[0]
    os.kill(engine._processes[0].process.pid, signal.SIGKILL)
    for _ in range(5):  # more than can have been in transit
        taken += pool.take(1)
    assert pool.counts.actors_replaced == 1
    for one, other in pairwise(taken):
        assert other.sequence == one.sequence + 1
        for last, first in zip(one.rollout.steps[:6], other.rollout.steps[:6], strict=True):
            assert torch.equal(last[-1], first[0])


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise", r"actor 0 failed: the environment .* failed in step\(\): RuntimeError: it lost count"),
        ("exit", "actor 0 ended with exit status 7"),
        ("hang", "actor 0 has not sent a rollout for 3 s"),
    ],
)
def test_faults_of_the_first_rollout(
    fault: str, message: str, engines: Callable[..., ProcessEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(counting.FAULT, fault)
    monkeypatch.setattr(pools, "TRIES", 1)
    pool = pool_of(engines(1), 1, timeout=3.0 if fault == "hang" else 60.0)
    with pytest.raises(WorkerError, match=message):
        pool.take(2)


def test_weights_are_read_whole_or_again(monkeypatch: pytest.MonkeyPatch) -> None:
    board = WeightsBoard(get_context("spawn"), 4)
    assert board.version == -1
    for version, weights in ((7, b"aaaa"), (8, b"bbbb"), (9, b"cccc")):
        board.write(version, weights)
        assert board.read() == (version, weights)
    with pytest.raises(ValueError, match="expected version 10, got 9"):
        board.write(9, b"dddd")
    seen = iter([7])  # as if 8 and 9 had come while 7 was read: 9 is written where 7 was
    monkeypatch.setattr(WeightsBoard, "version", property(lambda _: next(seen, 9)))
    assert board.read() == (9, b"cccc")
