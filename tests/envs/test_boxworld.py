"""The BoxWorld environments against gymnasium's contracts; levels and rules are in test_boxworld_rules."""

import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from helpers.vector_env_checker import check_vector_env
from rmc_agents.envs.boxworld import BoxWorldEnv, BoxWorldVectorEnv
from rmc_agents.envs.names import BOXWORLD_SIZES
from rmc_agents.envs.registry import make_vector_env
from rmc_agents.evaluate.episodes import UniformPolicy, env_spec
from rmc_agents.evaluate.video import recording

ENV_ID = "rmc_agents.envs:BoxWorld-v0"
TINY: dict[str, Any] = {"room_size": 4, "max_solution_length": 1, "max_distractors": 0}


@pytest.mark.parametrize("viewport", [5, None])
def test_gymnasium_checker_raises_no_warning(viewport: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("default", module="pygame")
        check_env(gym.make(ENV_ID, viewport=viewport).unwrapped)


@pytest.mark.parametrize("settings", [{"max_steps": 30}, {**TINY, "viewport": None}])
def test_vector_env_is_a_sync_vector_env(settings: dict[str, Any]) -> None:
    check_vector_env(
        lambda autoreset_mode: BoxWorldVectorEnv(6, autoreset_mode=autoreset_mode, **settings),
        lambda: BoxWorldEnv(**settings),
    )


@pytest.mark.parametrize("autoreset_mode", ["NEXT_STEP", "same_step"])
def test_state_round_trip_in_the_middle_of_episodes(autoreset_mode: str) -> None:
    """A new environment continues exactly like the first, including lanes that wait for their reset."""
    first, second = (BoxWorldVectorEnv(32, **TINY, autoreset_mode=autoreset_mode) for _ in range(2))
    first.reset(seed=2)
    actions = np.random.default_rng(2).integers(0, 4, (200, 32))
    for before in actions[:98]:
        first.step(before)
    state = first.get_state()
    assert state["needs_reset"].any() == (autoreset_mode == "NEXT_STEP")
    second.set_state(state)
    for array in state.values():
        array[...] = 0
    for after in actions[98:]:
        for one, other in zip(first.step(after)[:4], second.step(after)[:4], strict=True):
            np.testing.assert_array_equal(one, other)
    for name, value in first.get_state().items():
        np.testing.assert_array_equal(second.get_state()[name], value)


def test_a_single_env_continues_from_its_state() -> None:
    first, second = BoxWorldEnv(**TINY), BoxWorldEnv(**TINY)
    first.reset(seed=1)
    second.set_state(first.get_state())
    for action in (0, 1, 2, 3):
        np.testing.assert_array_equal(first.step(action)[0], second.step(action)[0])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("board", np.full((2, 4, 4), 22, np.uint8)),
        ("board", np.zeros((2, 5, 5), np.uint8)),
        ("row", np.array([4, 0], np.uint8)),
        ("column", np.array([0, 4], np.uint8)),
        ("held", np.array([21, 0], np.uint8)),
        ("path", np.array([[1, 21, 5], [2, 21, 0]], np.uint8)),
        ("path", np.array([[1, 2, 0], [2, 21, 0]], np.uint8)),
        ("path", np.zeros((2, 3), np.uint8)),
        ("solution_length", np.array([2, 1], np.int32)),
        ("num_distractors", np.array([1, 0], np.int32)),
        ("boxes_opened", np.array([-1, 0], np.int32)),
        ("step_count", np.array([0, -1], np.int32)),
        ("is_success", [False, False]),
    ],
)
def test_a_wrong_state_is_refused(name: str, value: Any) -> None:
    env = BoxWorldVectorEnv(2, **TINY)
    env.reset(seed=1)
    with pytest.raises(ValueError, match=rf"state field '{name}': expected .* got"):
        env.set_state({**env.get_state(), name: value})


def test_a_state_before_the_first_reset_is_taken() -> None:
    env = BoxWorldVectorEnv(2, **TINY)
    env.set_state(BoxWorldVectorEnv(2, **TINY).get_state())
    with pytest.raises(ResetNeeded):
        env.step([0, 0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"room_size": 3}, r"room_size: expected an int from 4 to 64, got 3"),
        ({"room_size": 12}, r"room_size: expected at least 13 for 5 \+ 5 boxes, got 12"),
        ({"viewport": 4}, "viewport: expected an odd int, or None for the whole room; got 4"),
        ({"viewport": True}, "viewport: expected .* got True"),
        ({"max_solution_length": 0}, r"max_solution_length: expected an int from 1 to 20, got 0"),
        ({"max_distractors": 16}, r"max_distractors: expected an int from 0 to 15, got 16"),
        ({"max_steps": 0}, "max_steps: expected an int from .* got 0"),
        ({"render_mode": "svg"}, "render_mode: expected None or one of .*; got 'svg'"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BoxWorldVectorEnv(2, **arguments)
    with pytest.raises(ValueError, match=message):
        BoxWorldEnv(**arguments)


@pytest.mark.parametrize("action", [4, -1, 1.0, None])
def test_a_wrong_action_is_refused(action: Any) -> None:
    single, vector = BoxWorldEnv(), BoxWorldVectorEnv(2)
    single.reset(seed=0)
    vector.reset(seed=0)
    with pytest.raises(ValueError, match=r"action: expected an int in 0\.\.3, got"):
        single.step(action)
    with pytest.raises(ValueError, match=r"actions: expected .* got"):
        vector.step([action, 0])


def test_steps_and_pictures_without_an_episode_are_refused() -> None:
    single = BoxWorldEnv(max_steps=1, render_mode="rgb_array")
    vector = BoxWorldVectorEnv(2, max_steps=1, autoreset_mode=AutoresetMode.DISABLED)
    for call in (lambda: single.step(0), lambda: vector.step([0, 0]), single.render):
        with pytest.raises(ResetNeeded):
            call()
    single.reset(seed=0)
    vector.reset(seed=0)
    single.step(0)
    vector.step([0, 0])
    with pytest.raises(ResetNeeded):
        single.step(0)
    with pytest.raises(ResetNeeded, match=r"lanes \[0, 1\]"):
        vector.step([0, 0])


def test_unseeded_environments_differ() -> None:
    envs = [BoxWorldVectorEnv(3) for _ in range(2)]
    for env in envs:
        env.reset()
    assert len(np.unique(np.concatenate([env.get_state()["key"] for env in envs]))) == 6


@pytest.mark.parametrize("viewport", [5, None])
def test_pictures_show_all_that_there_is(viewport: int | None) -> None:
    single = BoxWorldEnv(viewport=viewport, render_mode="rgb_array")
    vector = BoxWorldVectorEnv(2, viewport=viewport, render_mode="rgb_array")
    single.reset(seed=8)
    vector.reset(seed=8)
    frames = vector.render()
    assert frames is not None
    assert [np.shape(frame) for frame in frames] == [(432, 384, 3)] * 2
    np.testing.assert_array_equal(single.render(), frames[0])
    seen = [np.asarray(frames[0])]
    state = single.get_state()
    for name, change in (
        ("held", lambda held: held + 1),
        ("board", lambda board: np.where(board > 0, 1 + board % 20, 0).astype(np.uint8)),
        ("row", lambda row: (row + 1) % 14),
        ("column", lambda column: (column + 1) % 14),
        ("boxes_opened", lambda opened: opened + 1),
    ):
        single.set_state({**state, name: change(state[name])})
        seen.append(np.asarray(single.render()))
    assert len({frame.tobytes() for frame in seen}) == len(seen)


@pytest.mark.parametrize("settings", [TINY, {"room_size": 64, "max_solution_length": 20, "max_distractors": 0}])
def test_rooms_of_all_sizes_are_drawn(settings: dict[str, Any]) -> None:
    env = BoxWorldEnv(**settings, render_mode="rgb_array")
    env.reset(seed=0)
    frame = env.render()
    assert isinstance(frame, np.ndarray)
    assert frame.shape[0] == frame.shape[1] + 48


def test_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    env = BoxWorldEnv(render_mode="human")
    env.reset(seed=1)
    env.step(1)
    assert env.render() is None
    env.close()
    env.close()


@pytest.mark.parametrize("vectorization_mode", ["vector_entry_point", "sync"])
def test_make_vec_by_id(vectorization_mode: str) -> None:
    env = gym.make_vec(ENV_ID, num_envs=3, vectorization_mode=vectorization_mode, room_size=20, viewport=None)
    assert isinstance(env.unwrapped, BoxWorldVectorEnv) == (vectorization_mode != "sync")
    assert env.reset(seed=1)[0].shape == (3, 21, 20, 3)
    assert env.spec is not None
    assert env.spec.max_episode_steps is None
    env.close()


def test_short_names() -> None:
    for name, options in BOXWORLD_SIZES.items():
        size = options.get("room_size", 14)
        for env, shape in (
            (make_vector_env(name, 2), (6, 5, 3)),
            (make_vector_env(f"{name}-full", 2), (size + 1, size, 3)),
        ):
            assert isinstance(env, BoxWorldVectorEnv)
            assert env.single_observation_space.shape == shape
            assert env.rules.room_size == size
            env.reset(seed=0)
            env.close()


def test_videos_name_the_actions(tmp_path: Path) -> None:
    policy = UniformPolicy(env_spec("boxworld-tiny"))
    recorded = recording.record(policy, "boxworld-tiny", tmp_path / "a.gif", device=torch.device("cpu"), max_steps=3)
    assert len(recorded.returns) == 1
    assert recording.action_names(make_vector_env("boxworld", 1), 4) == ["up", "down", "left", "right"]
    assert recording.action_names(make_vector_env("boxworld", 1), 2) == ["0", "1"], "not of these actions"
