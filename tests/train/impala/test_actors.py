"""Actors and their pool: parcels are checked, no rollout is used twice, failed actors are replaced, on any engine."""

import json
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from multiprocessing import Pipe
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
import safetensors.torch
import torch

from helpers.actors import LANES, config, make_actor, reader_of
from helpers.counting import CountingActor
from helpers.runs import assert_same
from rmc_agents.config import Config
from rmc_agents.envs.processes import WorkerError
from rmc_agents.episodes import Episode
from rmc_agents.runs import checkpoint
from rmc_agents.train.impala import processes
from rmc_agents.train.impala.actors import Actor, Parcel, UnfitParcel, pack_weights
from rmc_agents.train.impala.pool import TRIES, ActorPool, Arrival, Failure


def parcel_of(actor: Actor) -> Parcel:
    actor.version = 0
    return actor.act(waited=0.5)


def test_all_actors_of_all_learners_draw_different_actions() -> None:
    settings = config(actors=2)
    generators = [Actor(settings, *place).collector.generator for place in ((0, 0), (1, 0), (0, 1), (1, 1))]
    draws = {tuple(torch.rand(4, generator=generator).tolist()) for generator in generators}
    assert len(draws) == 4


def test_an_actor_acts_with_the_weights_it_took() -> None:
    actor, learners = make_actor(), make_actor(seed=1)
    actor.take_weights(3, pack_weights(learners.agent))
    assert actor.version == 3
    assert_same(actor.agent.state_dict(), learners.agent.state_dict())
    assert_same(actor.collector.agent.state_dict(), learners.agent.state_dict())  # type: ignore[attr-defined]


def test_an_actor_does_not_need_the_gpu_of_its_learner() -> None:
    settings = config(actors=1).updated({"core": "rmc", "backend": "triton"}, "test")
    actor = Actor(settings, 0)
    assert actor.agent.core.backend == "auto"
    parcel_of(actor)


def test_after_a_parcel_without_lanes_new_episodes_begin() -> None:
    actor = make_actor(env="memory-s7")
    parcel = parcel_of(actor).without_lanes()
    reader_of(actor).open(parcel.to_bytes(), 0)
    other = make_actor(env="memory-s7")
    other.set_state(parcel.snapshot)
    assert other.sequence == parcel.sequence + 1
    assert other.lanes.steps.is_first.all()


def test_a_state_that_outgrows_its_place_is_left_out() -> None:
    actor = make_actor(env="memory-s7")
    reader, parcel = reader_of(actor), parcel_of(actor)
    slot = bytearray(len(parcel.to_bytes()) - 500)
    assert len(parcel.without_lanes().to_bytes()) < len(slot)
    ours, theirs = Pipe()
    ours.send_bytes(b"")
    board = SimpleNamespace(version=actor.version)
    acting = Thread(target=processes._act, args=(actor, board, [slot], theirs))
    acting.start()
    assert ours.poll(60)
    size = json.loads(ours.recv_bytes())["bytes"]
    ours.close()
    acting.join()
    assert reader.open(bytes(slot[:size]), 0).snapshot["collector"]["lanes"] is None


@pytest.mark.slow
def test_a_parcel_arrives_as_it_was_sent() -> None:
    for env in (
        "helpers.counting:Counting-v0",
        "memory-s7",
    ):  # with and without reported success, numbers and categories
        actor = make_actor(env=env, unroll_length=250)
        reader = reader_of(actor)
        sent = parcel_of(actor)
        received = reader.open(sent.to_bytes(), 0)
        assert_same(*(parcel.rollout._replace(distribution=None) for parcel in (received, sent)))
        assert received.episodes == sent.episodes != []
        assert received[:5] == sent[:5]
        assert type(received.rollout.initial_state) is type(sent.rollout.initial_state)


def changed(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Parcel], Parcel]:
    """The parcel with another tensor in place of one of its rollout."""

    def apply(parcel: Parcel) -> Parcel:
        rollout = parcel.rollout
        if name in rollout.steps._fields:
            steps = rollout.steps._replace(**{name: change(getattr(rollout.steps, name).clone())})
            return parcel._replace(rollout=rollout._replace(steps=steps))
        if name == "initial_state":
            state = rollout.initial_state._replace(hidden=change(rollout.initial_state.hidden.clone()))
            return parcel._replace(rollout=rollout._replace(initial_state=state))
        return parcel._replace(rollout=rollout._replace(**{name: change(getattr(rollout, name).clone())}))

    return apply


def with_at_last(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor.view(-1)[-1] = value
        return tensor

    return change


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (changed("policy_logits", with_at_last(torch.nan)), "policy_logits: expected finite"),
        (changed("value", with_at_last(torch.inf)), "value: expected finite"),
        (changed("obs", with_at_last(torch.nan)), "obs: expected finite"),
        (changed("prev_reward", with_at_last(-torch.inf)), "prev_reward: expected finite"),
        (changed("initial_state", with_at_last(torch.nan)), "initial_state/0: expected finite"),
        (changed("prev_action", with_at_last(3)), "prev_action: expected 0 to 2, got 0 to 3"),
        (changed("prev_action", with_at_last(-1)), "prev_action: expected 0 to 2, got -1"),
        (changed("value", lambda value: value[:-1]), r"value: expected torch.float32 \[8, 3\], got"),
        (changed("value", lambda value: value.double()), r"value: expected torch.float32 \[8, 3\], got torch.float64"),
        (changed("is_first", lambda is_first: ~is_first), "is_first: expected it after the last step of an episode"),
        (lambda parcel: parcel._replace(episodes=[Episode(math.nan, 1, None)]), "episodes: expected finite numbers"),
        (lambda parcel: parcel._replace(episodes=[Episode(0.0, 1, None)] * 99), r"episodes: expected .*\[24, 4\], got"),
        (lambda parcel: parcel._replace(actor=1), "expected a parcel of actor 0"),
        (lambda parcel: parcel._replace(sequence=-1), "expected a parcel of actor 0"),
        (lambda parcel: parcel._replace(version=1.5), "expected a parcel of actor 0"),
        (lambda parcel: parcel._replace(acted=float("nan")), "acted, waited: expected seconds"),
        (
            lambda parcel: parcel._replace(snapshot={"sequence": 0}),
            "snapshot: expected one after rollout 1, got one be",
        ),
        (lambda parcel: parcel._replace(snapshot={"sequence": None}), "snapshot: expected one after rollout 1"),
        (lambda parcel: parcel._replace(snapshot=[]), "TypeError"),
        (
            lambda parcel: parcel._replace(rollout=parcel.rollout._replace(value="many")),
            "value: expected a tensor, got str",
        ),
    ],
)
def test_what_is_no_rollout_of_this_run_is_reported_by_name(spoil: Callable[[Parcel], Parcel], message: str) -> None:
    actor = make_actor()
    reader = reader_of(actor)
    with pytest.raises(UnfitParcel, match=message):
        reader.open(spoil(parcel_of(actor)).to_bytes(), 0)


def test_names_of_categories_that_do_not_exist_are_no_rollout() -> None:
    actor = make_actor(env="memory-s7")
    reader = reader_of(actor)
    with pytest.raises(UnfitParcel, match="obs: expected categories from 0 to 3, got 255"):
        reader.open(changed("obs", with_at_last(255))(parcel_of(actor)).to_bytes(), 0)


def test_damaged_and_foreign_bytes_are_no_parcel() -> None:
    actor = make_actor()
    reader, content = reader_of(actor), bytearray(parcel_of(actor).to_bytes())
    flipped = bytes(content[:-1]) + bytes([content[-1] ^ 1])
    for spoilt in (b"", b"hello", bytes(content[:-5]), flipped, checkpoint.to_bytes({"rollout": {}})):
        with pytest.raises(UnfitParcel):
            reader.open(spoilt, 0)


class ScriptedEngine:
    """Actors that act on request, in this process."""

    def __init__(self, settings: Config) -> None:
        self.settings = settings
        self.actors: dict[int, Actor] = {}
        self.granted: dict[int, int] = {}
        self.killed: list[int] = []
        self.events: deque[Arrival | Failure] = deque()
        self.version = 0

    def start(self, actor: int, state: dict[str, Any] | None) -> None:
        self.actors[actor], self.granted[actor] = CountingActor(self.settings, actor), 0
        if state is not None:
            self.actors[actor].set_state(state)

    def publish(self, version: int, weights: bytes) -> None:
        self.version = version

    def grant(self, actor: int) -> None:
        self.granted[actor] += 1

    def act(self, actor: int) -> None:
        """The actor makes one of the requested rollouts."""
        assert self.granted[actor] > 0
        self.granted[actor] -= 1
        self.actors[actor].version = self.version
        self.events.append(Arrival(actor, self.actors[actor].act(0.0).to_bytes()))

    def receive(self, seconds: float) -> list[Arrival | Failure]:
        events = list(self.events)
        self.events.clear()
        if seconds:
            assert events, "the pool would wait for ever"
        return events

    def kill(self, actor: int) -> None:
        self.killed.append(actor)

    def close(self) -> None:
        self.actors.clear()


def make_pool(actors: int = 1, **settings: Any) -> tuple[ActorPool, ScriptedEngine]:
    engine = ScriptedEngine(config(actors=actors))
    reader = reader_of(CountingActor(engine.settings, 0))
    defaults: dict[str, Any] = {"rollouts_ahead": 2, "max_policy_lag": 4, "timeout": 60.0}
    pool = ActorPool(engine, reader, settings.pop("states", [None] * actors), **defaults | settings)
    pool.start(0, b"")
    return pool, engine


def test_an_actor_is_never_further_ahead_than_it_may() -> None:
    pool, engine = make_pool(rollouts_ahead=2)
    assert engine.granted == {0: 2}
    engine.act(0)
    engine.act(0)
    (first,) = pool.take(1)
    assert (first.sequence, pool.queued, engine.granted) == (0, 1, {0: 1})
    (second,) = pool.take(1)
    assert (second.sequence, pool.queued, engine.granted) == (1, 0, {0: 2})


def test_rollouts_of_old_weights_are_dropped_counted_and_made_again() -> None:
    pool, engine = make_pool(rollouts_ahead=1, max_policy_lag=4)
    engine.act(0)
    pool.publish(5, b"")
    pool._listen(0.0)
    pool._drop_stale()
    assert (pool.counts.rollouts_stale, pool.queued, engine.granted) == (1, 0, {0: 1})
    engine.act(0)
    pool.publish(9, b"")
    (parcel,) = pool.take(1)  # exactly as old as may be
    assert (parcel.sequence, parcel.version, pool.counts.rollouts_stale) == (1, 5, 1)


def test_no_rollout_is_taken_twice() -> None:
    pool, engine = make_pool()
    engine.act(0)
    engine.events.append(engine.events[0])
    (parcel,) = pool.take(1)
    assert (parcel.sequence, pool.queued, pool.counts.rollouts_repeated) == (0, 0, 1)


def test_what_is_unfit_is_dropped_and_a_third_in_a_row_ends_the_run() -> None:
    pool, engine = make_pool()
    engine.events.append(Arrival(0, b"nonsense"))
    engine.act(0)
    pool.take(1)
    assert pool.counts.rollouts_unfit == 1
    engine.events.extend([Arrival(0, b"nonsense")] * TRIES)
    with pytest.raises(
        WorkerError, match=r"actor 0 sent something other than a rollout of this run: the parcel is dam"
    ):
        pool.take(1)


def test_weights_of_the_future_are_unfit() -> None:
    pool, engine = make_pool()
    engine.version = 3
    engine.act(0)
    engine.version = 0
    engine.act(0)
    (parcel,) = pool.take(1)
    assert (parcel.sequence, pool.counts.rollouts_unfit) == (1, 1)


def test_a_replacement_continues_after_the_last_rollout_that_came() -> None:
    pool, engine = make_pool(rollouts_ahead=3)
    engine.act(0)
    engine.events.append(Failure(0, "was killed by SIGKILL"))
    (first,) = pool.take(1)
    assert engine.actors[0].sequence == 1
    assert engine.granted == {0: 3}  # two of the new process, and one for the rollout that was taken
    engine.act(0)
    (second,) = pool.take(1)
    assert (second.sequence, pool.counts.actors_replaced) == (1, 1)
    assert not first.rollout.steps.is_first[-1].any()
    assert second.rollout.steps.is_first[0].all()  # an environment that cannot be saved begins again


def test_failures_without_a_rollout_in_between_end_the_run_with_their_error() -> None:
    pool, engine = make_pool(actors=2)
    for _ in range(TRIES - 1):
        engine.events.append(Failure(1, "failed: OSError: no display", "trace"))
        engine.act(0)
        pool.take(1)
    engine.events.append(Failure(1, "failed: OSError: no display", "trace"))
    with pytest.raises(WorkerError, match="actor 1 failed: OSError: no display") as caught:
        pool.take(1)
    assert caught.value.__notes__ == ["trace"]


def test_an_actor_that_hangs_is_killed_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, engine = make_pool(timeout=40)
    begun = time.monotonic()
    for half in range(1, 2 * TRIES):
        monkeypatch.setattr(time, "monotonic", lambda half=half: begun + 25 * half)
        pool._listen(0.0)
        assert engine.killed == [0] * (half // 2)
    monkeypatch.setattr(time, "monotonic", lambda: begun + 25 * 2 * TRIES)
    with pytest.raises(WorkerError, match=r"actor 0 has not sent a rollout for 40 s"):
        pool._listen(0.0)
    assert engine.killed == [0] * TRIES


def test_an_actor_does_not_hang_while_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after Ctrl-Z and fg, or a long evaluation."""
    pool, engine = make_pool(timeout=40)
    begun = time.monotonic()
    for seconds, killed in ((3600, []), (3625, []), (3650, [0])):
        monkeypatch.setattr(time, "monotonic", lambda seconds=seconds: begun + seconds)
        pool._listen(0.0)
        assert engine.killed == killed


def test_a_checkpoint_holds_actors_as_of_the_rollouts_that_were_taken() -> None:
    pool, engine = make_pool(actors=2, rollouts_ahead=3)
    for actor in (0, 0, 1):
        engine.act(actor)
    pool.take(2)
    states = pool.get_state()
    assert [state and state["sequence"] for state in states] == [2, None]
    _, engine = make_pool(actors=2, states=states)
    assert [actor.sequence for actor in engine.actors.values()] == [2, 0]


def test_actors_of_a_script_without_a_guard_are_explained() -> None:
    engine = processes.ProcessEngine(lambda actor: os._exit(1), actors=1, slots=1, parcel_bytes=8, weights_bytes=8)
    engine.start(0, None)
    (failure,) = engine.receive(600)
    assert failure.reason.startswith("ended with exit status 1 before its first rollout (a script that uses several")


def test_actors_that_cannot_be_sent_are_one_line() -> None:
    with pytest.raises(ValueError, match=r"^algo: expected another than impala for this environment, which cannot"):
        processes.ProcessEngine(partial(print, file=sys.stdout), actors=1, slots=1, parcel_bytes=8, weights_bytes=8)


def test_the_lanes_of_actors_are_numbered_one_actor_after_the_other() -> None:
    """Two actors' lanes are those of one run with all of them."""
    both = [Actor(config(actors=2, env="minipacman"), index) for index in range(2)]
    whole = Actor(config(actors=1, lanes_per_actor=2 * LANES, env="minipacman"), 0)
    together = torch.cat([actor.lanes.steps.obs for actor in both])
    assert torch.equal(together, whole.lanes.steps.obs)
    for actor in (*both, whole):
        actor.close()


def test_tied_and_strided_weights_reach_the_actors() -> None:
    agent = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3), torch.nn.Linear(2, 3))
    agent[1].weight = agent[0].weight
    agent[2].weight = torch.nn.Parameter(torch.rand(2, 3).T)
    received = safetensors.torch.load(pack_weights(agent))
    for name, weight in agent.state_dict().items():
        assert torch.equal(received[name], weight)
