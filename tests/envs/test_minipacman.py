"""Mini PacMan's states, arguments and pictures; the rules are in test_minipacman_rules, the rest in test_native."""

from typing import Any

import numpy as np
import pytest

from rmc_agents.envs.minipacman.env import MiniPacmanEnv, MiniPacmanVectorEnv


def test_state_is_copied_and_may_have_another_ghost_capacity() -> None:
    env = MiniPacmanVectorEnv(4)
    env.reset(seed=1)
    state, wider, narrower = env.get_state(), env.get_state(), env.get_state()
    for name in ("ghost_cell", "ghost_heading"):
        unused = np.full((4, 7), 255 if name == "ghost_cell" else 0, np.uint8)
        wider[name] = np.concatenate([state[name], unused], axis=1)
        narrower[name] = state[name][:, :1].copy()
    histories = []
    for given in (state, wider, narrower):
        env.set_state(given)
        for array in given.values():
            array[...] = 0
        histories.append([env.step([step % 5] * 4)[0] for step in range(60)])
    np.testing.assert_array_equal(histories[0], histories[1])
    np.testing.assert_array_equal(histories[0], histories[2])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("power", np.array([21, 0], np.int32)),
        ("level", np.array([9, 1], np.int32)),
        ("timer", np.array([2**31 - 1, 0], np.int32)),
        ("food_left", np.array([138, 0], np.int32)),
        ("pacman_cell", np.array([138, 0], np.uint8)),
        ("pill_cell", np.full((2, 2), 200, np.uint8)),
        ("ghost_cell", np.full((2, 0), 255, np.uint8)),
        ("ghost_heading", np.full((2, 4), 6, np.uint8)),
    ],
)
def test_a_wrong_state_is_refused(name: str, value: Any) -> None:
    env = MiniPacmanVectorEnv(2)
    env.reset(seed=1)
    with pytest.raises(ValueError, match=rf"state field '{name}': expected .* got"):
        env.set_state({**env.get_state(), name: value})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "chase"}, "mode: expected one of regular, avoid, hunt, ambush, rush; got 'chase'"),
        ({"viewport": 4}, "viewport: expected an odd int from 1 to 99, or None for the whole map, got 4"),
        ({"viewport": True}, "viewport: .* got True"),
        ({"frame_cap": 0}, r"frame_cap: expected an int from 1 to .*, got 0"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MiniPacmanVectorEnv(2, **arguments)
    with pytest.raises(ValueError, match=message):
        MiniPacmanEnv(**arguments)


@pytest.mark.parametrize("viewport", [5, None])
def test_pictures(viewport: int | None) -> None:
    env = MiniPacmanVectorEnv(2, viewport=viewport, render_mode="rgb_array")
    env.reset(seed=8)
    frames = np.array(env.render())
    assert frames.dtype == np.uint8
    assert frames.shape == (2, 360, 456, 3)
    assert (frames[0] != frames[1]).any()


def test_text_maps() -> None:
    env = MiniPacmanEnv(render_mode="ansi")
    env.reset(seed=8)
    lines = str(env.render()).splitlines()
    assert len(lines) == 16
    assert [len(line) for line in lines[1:]] == [19] * 15
    assert sum(line.count("C") for line in lines[1:]) == 1
    assert sum(line.count("M") for line in lines[1:]) == 1


def test_a_single_environments_rewards_are_short_decimals() -> None:
    env = MiniPacmanEnv(mode="avoid")
    env.reset(seed=0)
    assert {env.step(0)[1] for _ in range(3)} == {0.0, 0.1}, "0.1, and not the float32 nearest to it"
