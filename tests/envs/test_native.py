"""What all native environments have in common: gymnasium's contracts, saved states, and what is refused."""

import re
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from helpers.native_kinds import ALL, PAIRS, Kind
from helpers.vector_env_checker import check_vector_env

every_kind = pytest.mark.parametrize("kind", ALL.values(), ids=ALL)
every_pair = pytest.mark.parametrize("kind", PAIRS.values(), ids=PAIRS)
TASKS = ("nth-farthest", "program", "text", "minipacman", "boxworld", "memory")
every_task = pytest.mark.parametrize("kind", [ALL[name] for name in TASKS], ids=TASKS)
every_single_task = pytest.mark.parametrize("kind", [ALL[name] for name in TASKS[:-1]], ids=TASKS[:-1])
"""For what a kind's settings do not change."""
ONE = PAIRS["minipacman"]
"""For what no kind has code of its own for; 5 actions."""


@every_pair
def test_gymnasium_checker_raises_no_warning(kind: Kind) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gym.make(kind.env_id, **kind.settings).unwrapped)


@pytest.mark.slow
@every_pair
def test_vector_env_is_a_sync_vector_env(kind: Kind) -> None:
    """So lanes are single environments of their seeds, and do not depend on their number."""
    check_vector_env(lambda mode: kind.lanes(3, autoreset_mode=mode), kind.one)


@pytest.mark.parametrize("vectorization_mode", [None, "vector_entry_point", "sync"])
@every_single_task
def test_make_vec_by_id(kind: Kind, vectorization_mode: str | None) -> None:
    env = gym.make_vec(kind.env_id, 3, vectorization_mode, **kind.settings)
    assert (type(env.unwrapped) is kind.vector) == (vectorization_mode != "sync")
    np.testing.assert_array_equal(env.reset(seed=1)[0], kind.lanes(3).reset(seed=1)[0])
    assert env.spec is not None
    assert env.spec.max_episode_steps is None
    env.close()


@every_single_task
def test_make_by_id_adds_no_time_limit(kind: Kind) -> None:
    env = gym.make(kind.env_id, **kind.settings)
    assert type(env.unwrapped) is kind.single
    assert env.spec is not None
    assert env.spec.max_episode_steps is None
    assert env.observation_space == kind.one().observation_space


@pytest.mark.parametrize("autoreset_mode", ["NEXT_STEP", "same_step"])
@every_kind
def test_state_round_trip_in_the_middle_of_episodes(kind: Kind, autoreset_mode: str) -> None:
    """A new environment continues exactly like the first, including lanes that wait for their reset."""
    first, second = (kind.lanes(32, autoreset_mode=autoreset_mode) for _ in range(2))
    first.reset(seed=2)
    random, steps, ended = np.random.default_rng(2), 0, np.zeros(32, bool)
    while steps < 100 or not ended.any():
        ended = np.logical_or(*first.step(random.integers(0, first.lanes.action_space.n, 32))[2:4])
        steps += 1
    np.testing.assert_array_equal(first.lanes.needs_reset, ended & (autoreset_mode == "NEXT_STEP"))
    state = first.get_state()
    assert state.get("has_spare", np.True_).any()  # memory: half of a random number is left
    second.set_state(state)
    for array in state.values():
        array[...] = array == 0
    np.testing.assert_equal(second.get_state(), first.get_state())
    for _ in range(100):
        actions = random.integers(0, first.lanes.action_space.n, 32)
        np.testing.assert_equal(second.step(actions)[:4], first.step(actions)[:4])
    np.testing.assert_equal(second.get_state(), first.get_state())


def test_a_single_env_continues_from_a_state() -> None:
    first, second = ONE.one(), ONE.one()
    first.reset(seed=1)
    second.set_state(first.get_state())
    for action in (0, 1, 2, 3):
        np.testing.assert_array_equal(first.step(action)[0], second.step(action)[0])


@every_kind
def test_a_state_before_the_first_reset_is_taken(kind: Kind) -> None:
    env = kind.lanes(2)
    env.reset(seed=0)
    env.set_state(kind.lanes(2).get_state())
    with pytest.raises(ResetNeeded):
        env.step([0, 0])


@every_task
def test_state_fields_of_another_shape_or_type_are_refused(kind: Kind) -> None:
    env = kind.lanes(2)
    env.reset(seed=1)
    state = env.get_state()
    for name, value in state.items():
        for wrong in (value[:1], value[..., None], value.astype(np.complex64), value.tolist()):
            with pytest.raises(ValueError, match=rf"state field '{name}': expected .* got"):
                env.set_state({**state, name: wrong})


@every_task
def test_missing_and_unknown_state_fields_are_refused(kind: Kind) -> None:
    env = kind.lanes(2)
    state = env.get_state()
    name, value = state.popitem()
    for fields, missing, unknown in ((state, [name], []), ({**state, name: value, "speed": value}, [], ["speed"])):
        with pytest.raises(ValueError, match=re.escape(f"missing {missing}, unknown {unknown}")):
            env.set_state(fields)


@every_task
def test_wrong_arguments_are_refused(kind: Kind) -> None:
    modes = ", ".join(kind.lanes(1).metadata["render_modes"])
    for arguments, message in (
        ({"num_envs": 0}, "num_envs: expected an int of at least 1, got 0"),
        ({"autoreset_mode": "later"}, "autoreset_mode: expected one of NEXT_STEP, .*; got 'later'"),
        ({"render_mode": "human"}, f"render_mode: expected None or one of {modes}; got 'human'"),
    ):
        with pytest.raises(ValueError, match=message):
            kind.lanes(**{"num_envs": 2, **arguments})  # type: ignore[arg-type]
    if kind.single:
        with pytest.raises(ValueError, match=f"render_mode: expected None or one of .*{modes}; got 'svg'"):
            kind.one(render_mode="svg")


@pytest.mark.parametrize("actions", [[0, 5], [-1, 0], [0], [0.0, 1.0], [[0, 1]], [True, False], [None, 0]])
def test_wrong_actions_are_refused(actions: list[Any]) -> None:
    env = ONE.lanes(2)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"actions: expected (0\.\.4|ints \(2,\)), got"):
        env.step(actions)


@pytest.mark.parametrize("action", [5, -1, 1.0, None])
def test_a_wrong_action_is_refused(action: Any) -> None:
    env = ONE.one()
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"action: expected an int in 0\.\.4, got"):
        env.step(action)


def test_wrong_seeds_and_masks_are_refused() -> None:
    env = ONE.lanes(2)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="expected an int or a sequence of 2, got 3 seeds"):
        env.reset(seed=[1, 2, 3])
    with pytest.raises(ValueError, match=r"expected an int or a sequence of 2, got 2\.5"):
        env.reset(seed=2.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected non-negative ints, got -1"):
        env.reset(seed=[0, -1])
    for mask in ([True, True], np.array([1, 0]), np.array([True]), np.zeros(2, bool)):
        with pytest.raises(ValueError, match="reset_mask: expected"):
            env.reset(options={"reset_mask": mask})


@every_task
def test_lanes_without_an_episode_are_refused(kind: Kind) -> None:
    env = kind.lanes(2, autoreset_mode="disabled", render_mode="rgb_array")
    for call in (lambda: env.step([0, 0]), env.render):
        with pytest.raises(ResetNeeded):
            call()
    with pytest.raises(ValueError, match="expected True for every lane that was never reset"):
        env.reset(options={"reset_mask": np.array([True, False])})
    env.reset(seed=0)
    ended = np.zeros(2, bool)
    while not ended.any():
        ended = np.logical_or(*env.step([0, 0])[2:4])
    with pytest.raises(ResetNeeded, match=re.escape(f"lanes {np.flatnonzero(ended).tolist()} have ended")):
        env.step([0, 0])


@every_single_task
def test_a_single_env_without_an_episode_is_refused(kind: Kind) -> None:
    env = kind.one(render_mode="rgb_array")
    for call in (lambda: env.step(0), env.render):
        with pytest.raises(ResetNeeded, match="before reset"):
            call()
    env.reset(seed=0)
    while not any(env.step(0)[2:4]):
        pass
    with pytest.raises(ResetNeeded, match="after the episode's end"):
        env.step(0)


def test_unseeded_environments_differ() -> None:
    envs = [ONE.lanes(3) for _ in range(2)]
    for env in envs:
        env.reset()
    assert len(np.unique(np.concatenate([env.get_state()["key"] for env in envs]))) == 6


@pytest.mark.parametrize("render_mode", ["rgb_array", "ansi"])
@every_pair
def test_pictures_of_lanes_are_those_of_single_envs(kind: Kind, render_mode: str) -> None:
    single, vector = kind.one(render_mode=render_mode), kind.lanes(2, render_mode=render_mode)
    vector.reset(seed=8)
    frames = vector.render()
    assert isinstance(frames, tuple)
    assert len(frames) == 2
    for lane, frame in enumerate(frames):
        single.reset(seed=8 + lane)
        assert isinstance(frame, str if render_mode == "ansi" else np.ndarray)
        np.testing.assert_array_equal(frame, single.render(), strict=True)


@every_single_task
def test_gymnasium_shows_a_window(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    with pytest.warns(UserWarning, match="HumanRendering wrapper is being applied"):
        env = gym.make(kind.env_id, render_mode="human", **kind.settings)
    env.reset(seed=1)
    env.step(1)
    assert env.render() is None
    env.close()
