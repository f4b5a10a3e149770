"""BoxWorld's states, arguments, pictures and names; rules are in test_boxworld_rules, the rest in test_native."""

from typing import Any

import numpy as np
import pytest

from helpers.native_kinds import TINY_ROOM
from rmc_agents.envs.boxworld import BoxWorldEnv, BoxWorldVectorEnv
from rmc_agents.envs.names import BOXWORLD_SIZES
from rmc_agents.envs.registry import make_vector_env
from rmc_agents.evaluate.actions import action_rows
from rmc_agents.spaces import SpaceSpec


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("board", np.full((2, 4, 4), 22, np.uint8)),
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
        ("step_count", np.array([0, 2**31 - 1], np.int32)),
    ],
)
def test_a_wrong_state_is_refused(name: str, value: Any) -> None:
    env = BoxWorldVectorEnv(2, **TINY_ROOM)
    env.reset(seed=1)
    with pytest.raises(ValueError, match=rf"state field '{name}': expected .* got"):
        env.set_state({**env.get_state(), name: value})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"room_size": 3}, r"room_size: expected an int from 4 to 64, got 3"),
        ({"room_size": 12}, r"room_size: expected at least 13 for 5 \+ 5 boxes, got 12"),
        ({"viewport": 4}, "viewport: expected an odd int from 1 to 128, or None for the whole room, got 4"),
        ({"viewport": True}, "viewport: expected .* got True"),
        ({"max_solution_length": 0}, r"max_solution_length: expected an int from 1 to 20, got 0"),
        ({"max_distractors": 16}, r"max_distractors: expected an int from 0 to 15, got 16"),
        ({"max_steps": 0}, "max_steps: expected an int from .* got 0"),
        ({"min_solution_length": 6}, "min_solution_length: expected an int from 1 to 5, got 6"),
        ({"min_distractors": -1}, "min_distractors: expected an int from 0 to 5, got -1"),
        ({"gem_distractors": 1}, "gem_distractors: expected True or False, got 1"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BoxWorldVectorEnv(2, **arguments)
    with pytest.raises(ValueError, match=message):
        BoxWorldEnv(**arguments)


@pytest.mark.parametrize("viewport", [5, None])
def test_pictures_show_all_that_there_is(viewport: int | None) -> None:
    env = BoxWorldEnv(viewport=viewport, render_mode="rgb_array")
    env.reset(seed=8)
    seen = [np.asarray(env.render())]
    assert seen[0].shape == (432, 384, 3)
    state = env.get_state()
    for name, change in (
        ("held", lambda held: held + 1),
        ("board", lambda board: np.where(board > 0, 1 + board % 20, 0).astype(np.uint8)),
        ("row", lambda row: (row + 1) % 14),
        ("column", lambda column: (column + 1) % 14),
        ("boxes_opened", lambda opened: opened + 1),
    ):
        env.set_state({**state, name: change(state[name])})
        seen.append(np.asarray(env.render()))
    assert len({frame.tobytes() for frame in seen}) == len(seen)


@pytest.mark.parametrize("settings", [TINY_ROOM, {"room_size": 64, "max_solution_length": 20, "max_distractors": 0}])
def test_rooms_of_all_sizes_are_drawn(settings: dict[str, Any]) -> None:
    env = BoxWorldEnv(**settings, render_mode="rgb_array")
    env.reset(seed=0)
    frame = env.render()
    assert isinstance(frame, np.ndarray)
    assert frame.shape[0] == frame.shape[1] + 48


def test_short_names() -> None:
    for name, options in BOXWORLD_SIZES.items():
        size = options.get("room_size", 14)
        for env, shape in (
            (make_vector_env(name, 2), (6, 5, 3)),
            (make_vector_env(f"{name}-full", 2), (size + 1, size, 3)),
        ):
            assert isinstance(env, BoxWorldVectorEnv)
            assert env.single_observation_space.shape == shape
            assert env.lanes.rules.room_size == size
            env.reset(seed=0)
            env.close()


def test_actions_have_names() -> None:
    env = make_vector_env("boxworld", 1)
    assert [row.name for row in action_rows(env, SpaceSpec.of(env))] == ["up", "down", "left", "right"]
