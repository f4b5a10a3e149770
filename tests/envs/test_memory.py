"""MiniGrid's tasks: the view as categories, and the native engine of MemoryEnv, bitwise equal to minigrid's own."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Discrete, MultiDiscrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from minigrid.envs import MemoryEnv
from numba import njit

from helpers.runs import assert_same, newest, train
from helpers.vector_env_checker import check_vector_env
from rmc_agents.envs.minigrid.engine import draw_integer
from rmc_agents.envs.minigrid.level import make_state, seed_lane
from rmc_agents.envs.minigrid.vector import MemoryVectorEnv
from rmc_agents.envs.minigrid.view import MiniGridView
from rmc_agents.envs.registry import make_vector_env
from rmc_agents.evaluate.actions import action_rows
from rmc_agents.evaluate.episodes import PlaySettings, UniformPolicy, env_spec
from rmc_agents.evaluate.video import recording
from rmc_agents.spaces import SpaceSpec
from rmc_agents.stream import Lanes

NAMES = ("memory-s7", "memory-s13-random", "memory-s17-random")
LANES, STEPS, MAX_STEPS = 4, 110, 40  # 4 lanes * (110 + 60) steps * 3 modes * 3 variants: about 6,000 steps


def settings_of(name: str) -> dict[str, Any]:
    size, *rest = name.removeprefix("memory-s").split("-")
    return {"size": int(size), "random_length": rest == ["random"]}


def both(**settings: Any) -> tuple[Callable[[AutoresetMode], VectorEnv], Callable[[], gym.Env]]:
    """Makers of the native vector environment and of minigrid's single one."""
    view = {name: settings.pop(name) for name in ("view_size", "actions") if name in settings}
    return (
        lambda mode: MemoryVectorEnv(LANES, **settings, **view, autoreset_mode=mode),
        lambda: MiniGridView(MemoryEnv(**settings), **view),
    )


def walk(env: VectorEnv, steps: int, seed: int = 0) -> np.ndarray:
    """Actions [steps, N], mostly forward, so that agents get somewhere."""
    return np.random.default_rng(seed).choice(3, (steps, env.num_envs), p=[0.2, 0.2, 0.6])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_native_lanes_are_bitwise_minigrids(name: str) -> None:
    check_vector_env(*both(**settings_of(name), max_steps=MAX_STEPS, actions="moves"), steps=STEPS)


@pytest.mark.parametrize("view_size", [3, 9])
def test_all_actions_and_other_views_are_minigrids_too(view_size: int) -> None:
    check_vector_env(*both(size=9, max_steps=40, view_size=view_size), steps=100)


@pytest.mark.parametrize("name", ["memory-s7", "memory-s17-random"])
def test_backends_play_the_same_episodes(name: str) -> None:
    native, minigrid = (make_vector_env(name, 4, backend=backend) for backend in ("auto", "minigrid"))
    assert isinstance(native, MemoryVectorEnv)
    assert isinstance(minigrid, SyncVectorEnv)
    np.testing.assert_array_equal(native.reset(seed=3)[0], minigrid.reset(seed=3)[0])
    outcomes = set()
    for actions in walk(native, 300):
        got, expected = native.step(actions), minigrid.step(actions)
        for one, other in zip(got[:4], expected[:4], strict=True):
            np.testing.assert_array_equal(one, other)
        np.testing.assert_equal(got[4], expected[4])
        outcomes |= set(got[4]["is_success"][got[4]["_is_success"]].tolist() if "is_success" in got[4] else ())
    assert outcomes == {True, False}


@pytest.mark.slow
def test_minigrids_own_lanes_may_be_in_workers() -> None:
    native = make_vector_env("memory-s7", 2)
    with closing(make_vector_env("memory-s7", 2, num_workers=2, backend="minigrid")) as env:
        assert env.single_action_space == native.single_action_space
        np.testing.assert_array_equal(env.reset(seed=1)[0], native.reset(seed=1)[0])
        for actions in walk(native, 20):
            np.testing.assert_array_equal(env.step(actions)[0], native.step(actions)[0])


def test_a_match_at_the_last_step_sets_both_flags() -> None:
    env = MemoryVectorEnv(64, 7, actions="moves")
    env.reset(seed=0)
    actions = walk(env, 40)
    step, terminated = 0, np.zeros(64, bool)
    while not terminated.any():
        rewards, terminated = env.step(actions[step])[1:3]
        step += 1
    lane = int(np.flatnonzero(terminated)[0])
    native, single = MemoryVectorEnv(1, 7, max_steps=step), MiniGridView(MemoryEnv(7, max_steps=step))
    native.reset(seed=lane)
    single.reset(seed=lane)
    for row in actions[: step - 1]:
        native.step(row[lane : lane + 1])
        single.step(row[lane])
    _, reward, *flags, infos = native.step(actions[step - 1, lane : lane + 1])
    _, *expected, info = single.step(actions[step - 1, lane])
    assert [reward[0], *(flag[0] for flag in flags)] == expected
    assert expected[1:] == [True, True]
    assert expected[0] == (1 - 0.9 if rewards[lane] > 0 else 0)
    assert infos["is_success"][0] == info["is_success"] == (rewards[lane] > 0)
    assert infos["corridor_length"][0] == info["corridor_length"] == 0


@pytest.mark.slow
def test_success_is_reported_by_the_length_of_the_corridor() -> None:
    spec = env_spec("memory-s13-random")
    played = {}
    for backend in ("native", "minigrid"):
        lanes = Lanes(make_vector_env("memory-s13-random", 4, backend=backend), 0, torch.device("cpu"))
        generator, seen = np.random.default_rng(0), []
        for _ in range(1000):
            lanes.step(torch.from_numpy(generator.integers(0, spec.num_actions, 4)))
            seen += lanes.infos["corridor_length"].tolist()
        played[backend] = seen
    assert played["native"] == played["minigrid"]
    assert set(played["native"]) <= set(range(7))
    assert len(set(played["native"])) > 1


def test_random_numbers_are_numpys() -> None:
    seeds = [0, 7, 2**32 + 5, 2**63]
    draw = njit(draw_integer.py_func)
    state, generators = make_state(len(seeds)), [np.random.default_rng(seed) for seed in seeds]
    for lane, seed in enumerate(seeds):
        seed_lane(state, lane, seed)
    # Of ranges just above 2**31 Lemire's method rejects nearly every second draw.
    highs = [2, 3, 1, 2**31 + 1, 7, 2**32 - 1, 2**31 + 12345, 5] * 100
    for lane, generator in enumerate(generators):
        assert [draw(state, lane, 0, high) for high in highs] == [generator.integers(high) for high in highs]
        assert draw(state, lane, -4, 9) == generator.integers(-4, 9)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("row", np.array([0, 3], np.uint8)),
        ("column", np.array([1, 6], np.uint8)),
        ("direction", np.array([4, 0], np.uint8)),
        ("cue", np.array([5, 7], np.uint8)),
        ("upper", np.array([5, 4], np.uint8)),
        ("hallway_end", np.array([4, 5], np.uint8)),
        ("step_count", np.array([-1, 0], np.int32)),
        ("random_increment", np.zeros((2, 2), np.uint64)),
        ("spare", np.array([0, 2**32], np.uint64)),
    ],
)
def test_a_wrong_state_is_refused(name: str, value: np.ndarray) -> None:
    env = MemoryVectorEnv(2, 7)
    env.reset(seed=1)
    with pytest.raises(ValueError, match=rf"state field '{name}': expected .* got"):
        env.set_state({**env.get_state(), name: value})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 8}, "size: expected an odd int from 7 to 255, got 8"),
        ({"max_steps": 0}, r"max_steps: expected an int from 1 to .*, got 0"),
        ({"view_size": 6}, "view_size: expected an odd int from 3 to 63, got 6"),
        ({"view_size": 1}, "view_size: .* got 1"),
        ({"actions": "few"}, "actions: expected one of all, moves; got 'few'"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MemoryVectorEnv(2, **arguments)
    if {"view_size", "actions"} & set(arguments):
        with pytest.raises(ValueError, match=message):
            MiniGridView(gym.make("MiniGrid-MemoryS7-v0"), **arguments)


@pytest.mark.parametrize("name", ["memory-s7", "memory-s13-random"])
def test_pictures_are_minigrids(name: str) -> None:
    envs = [make_vector_env(name, 2, "rgb_array", backend=backend) for backend in ("native", "minigrid")]
    for env in envs:
        env.reset(seed=4)
    for actions in walk(envs[0], 8):
        frames = []
        for env in envs:
            env.step(actions)
            frames.append(env.render())
        np.testing.assert_array_equal(frames[0], frames[1])


@pytest.mark.parametrize("name", ["memory-s7", "MiniGrid-DoorKey-5x5-v0"])
def test_videos_are_made_and_name_the_actions(name: str, tmp_path: Path) -> None:
    policy = UniformPolicy(env_spec(name))
    settings = PlaySettings(0, torch.device("cpu"), max_steps=3)
    recorded = recording.record(policy, name, tmp_path / "a.gif", settings, episodes=1)
    assert recorded.cut == [True]
    env = make_vector_env(name, 1)
    names = [row.name for row in action_rows(env, SpaceSpec.of(env))]
    assert names[:3] == ["left", "right", "forward"]
    assert len(names) == env.single_action_space.n  # type: ignore[attr-defined]


def test_backends_that_do_not_have_the_environment_are_refused() -> None:
    for name, backend, message in (
        ("recall", "native", "env_backend: expected auto for 'recall', which has no native engine, got native"),
        ("MiniGrid-DoorKey-5x5-v0", "native", "which has no native engine"),
        ("minipacman", "minigrid", "'minipacman', which is not a minigrid environment"),
        ("recall-stack2", "native", "which has no native engine"),
    ):
        with pytest.raises(ValueError, match=message):
            make_vector_env(name, 1, backend=backend)  # type: ignore[arg-type]
    assert make_vector_env("minipacman", 1, backend="native").num_envs == 1


def test_names() -> None:
    for name in (*NAMES, "memory-s9", "memory-s11", "memory-s13"):
        env = make_vector_env(name, 2)
        assert isinstance(env, MemoryVectorEnv)
        assert env.single_action_space == Discrete(3)
        assert env.single_observation_space == MultiDiscrete([11, 6, 3] * 49 + [4], dtype=np.uint8)
    full = make_vector_env("MiniGrid-MemoryS13-v0", 2)
    assert isinstance(full, MemoryVectorEnv)
    assert full.single_action_space == Discrete(7)


@pytest.mark.slow
def test_runs_of_both_backends_learn_the_same(tmp_path: Path) -> None:
    def run(backend: str) -> dict[str, Any]:
        flags = ["--env", "memory-s7", "--core", "lstm", "--env-backend", backend]
        assert train(*flags, "--total-frames", "400", "--run-dir", str(tmp_path / backend)) == 0
        return newest(tmp_path / backend)

    native, minigrid = run("native"), run("minigrid")
    assert native["collector"]["lanes"] is not None
    assert minigrid["collector"]["lanes"] is None
    assert_same(native["agent"], minigrid["agent"])
