"""The Mini PacMan environments against gymnasium's contracts; the rules are in test_minipacman_rules."""

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from helpers.vector_env_checker import check_vector_env
from rmc_agents.envs.minipacman.env import MiniPacmanEnv, MiniPacmanVectorEnv
from rmc_agents.envs.minipacman.state import MODES

ENV_ID = "rmc_agents.envs:MiniPacman-v0"
VIEWPORTS = (5, None)


@pytest.mark.parametrize("viewport", VIEWPORTS)
@pytest.mark.parametrize("mode", MODES)
def test_gymnasium_checker_raises_no_warning(mode: str, viewport: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("default", module="pygame")
        check_env(gym.make(ENV_ID, mode=mode, viewport=viewport).unwrapped)


@pytest.mark.parametrize("mode", ["regular", "avoid", "hunt"])
@pytest.mark.parametrize("viewport", VIEWPORTS)
def test_vector_env_is_a_sync_vector_env(mode: str, viewport: int | None) -> None:
    settings: dict[str, Any] = {"mode": mode, "viewport": viewport, "frame_cap": 30}
    check_vector_env(
        lambda autoreset_mode: MiniPacmanVectorEnv(6, autoreset_mode=autoreset_mode, **settings),
        lambda: MiniPacmanEnv(**settings),
    )


def test_lanes_are_single_envs_of_their_seeds() -> None:
    lanes, seed = 5, 40
    vector = MiniPacmanVectorEnv(lanes, mode="ambush", autoreset_mode="SAME_STEP")
    singles = [MiniPacmanEnv(mode="ambush") for _ in range(lanes)]
    observations, _ = vector.reset(seed=seed)
    expected = [env.reset(seed=seed + lane)[0] for lane, env in enumerate(singles)]
    random = np.random.default_rng(1)
    for _ in range(300):
        np.testing.assert_array_equal(observations, expected)
        actions = random.integers(0, 5, lanes)
        observations, rewards, terminated, truncated, _ = vector.step(actions)
        for lane, env in enumerate(singles):
            expected[lane], reward, *flags, _ = env.step(actions[lane])
            assert (np.float32(reward), *flags) == (rewards[lane], terminated[lane], truncated[lane])
            if any(flags):
                expected[lane] = env.reset()[0]


@pytest.mark.parametrize("autoreset_mode", ["NEXT_STEP", "same_step"])
def test_state_round_trip_in_the_middle_of_episodes(autoreset_mode: str) -> None:
    """A new environment continues exactly like the first, including lanes that wait for their reset."""
    first = MiniPacmanVectorEnv(32, "hunt", frame_cap=40, autoreset_mode=autoreset_mode)
    second = MiniPacmanVectorEnv(32, "hunt", frame_cap=40, autoreset_mode=autoreset_mode)
    first.reset(seed=2)
    actions = np.random.default_rng(2).integers(0, 5, (200, 32))
    for before in actions[:100]:
        first.step(before)
    if autoreset_mode == "NEXT_STEP":
        assert first.get_state()["needs_reset"].any()
    second.set_state(first.get_state())
    for after in actions[100:]:
        for one, other in zip(first.step(after)[:4], second.step(after)[:4], strict=True):
            np.testing.assert_array_equal(one, other)
    for name, value in first.get_state().items():
        np.testing.assert_array_equal(second.get_state()[name], value)


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
        ("power", np.array([1, 0], np.int64)),
        ("power", [0, 0]),
        ("level", np.array([9, 1], np.int32)),
        ("food", np.ones((2, 137), bool)),
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


def test_missing_and_unknown_state_fields_are_refused() -> None:
    env = MiniPacmanEnv()
    state = env.get_state()
    state["speed"] = state.pop("key")
    with pytest.raises(ValueError, match=r"missing \['key'\], unknown \['speed'\]"):
        env.set_state(state)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "chase"}, "mode: expected one of regular, avoid, hunt, ambush, rush; got 'chase'"),
        ({"viewport": 4}, "viewport: expected an odd int, or None for the whole map, got 4"),
        ({"viewport": True}, "viewport: .* got True"),
        ({"frame_cap": 0}, r"frame_cap: expected an int from 1 to .*, got 0"),
        ({"render_mode": "svg"}, "render_mode: expected None or one of .*; got 'svg'"),
        ({"autoreset_mode": "later"}, "autoreset_mode: expected one of NEXT_STEP, .*; got 'later'"),
        ({"num_envs": 0}, "num_envs: expected an int of at least 1, got 0"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MiniPacmanVectorEnv(**{"num_envs": 2, **arguments})
    if not {"autoreset_mode", "num_envs"} & set(arguments):
        with pytest.raises(ValueError, match=message):
            MiniPacmanEnv(**arguments)


@pytest.mark.parametrize("actions", [[0, 5], [-1, 0], [0], [0.0, 1.0], [[0, 1]], [True, False]])
def test_wrong_actions_are_refused(actions: list[Any]) -> None:
    env = MiniPacmanVectorEnv(2)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"actions: expected .* got"):
        env.step(actions)


@pytest.mark.parametrize("action", [5, -1, 1.0, None])
def test_a_wrong_action_is_refused(action: Any) -> None:
    env = MiniPacmanEnv()
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"action: expected an int in 0\.\.4, got"):
        env.step(action)


def test_wrong_seeds_and_masks_are_refused() -> None:
    env = MiniPacmanVectorEnv(2)
    with pytest.raises(ValueError, match="expected True for every lane that was never reset"):
        env.reset(options={"reset_mask": np.array([True, False])})
    with pytest.raises(ValueError, match="expected an int or a sequence of 2, got 3 seeds"):
        env.reset(seed=[1, 2, 3])
    for mask in ([True, True], np.array([1, 0]), np.array([True]), np.zeros(2, bool)):
        with pytest.raises(ValueError, match="reset_mask: expected"):
            env.reset(options={"reset_mask": mask})


def test_steps_without_a_game_are_refused() -> None:
    single = MiniPacmanEnv(frame_cap=1)
    vector = MiniPacmanVectorEnv(2, frame_cap=1, autoreset_mode=AutoresetMode.DISABLED)
    with pytest.raises(ResetNeeded):
        single.step(0)
    with pytest.raises(ResetNeeded):
        vector.step([0, 0])
    single.reset(seed=0)
    vector.reset(seed=0)
    single.step(0)
    vector.step([0, 0])
    with pytest.raises(ResetNeeded):
        single.step(0)
    with pytest.raises(ResetNeeded, match=r"lanes \[0, 1\]"):
        vector.step([0, 0])


def test_unseeded_environments_differ() -> None:
    keys = [MiniPacmanVectorEnv(3) for _ in range(2)]
    for env in keys:
        env.reset()
    assert len(np.unique(np.concatenate([env.get_state()["key"] for env in keys]))) == 6


@pytest.mark.parametrize("viewport", VIEWPORTS)
def test_pictures(viewport: int | None) -> None:
    single = MiniPacmanEnv(viewport=viewport, render_mode="rgb_array")
    vector = MiniPacmanVectorEnv(2, viewport=viewport, render_mode="rgb_array")
    with pytest.raises(ResetNeeded):
        single.render()
    single.reset(seed=8)
    vector.reset(seed=8)
    frames = vector.render()
    assert isinstance(frames, tuple)
    assert len(frames) == 2
    for frame in frames:
        assert isinstance(frame, np.ndarray)
        assert frame.dtype == np.uint8
        assert frame.shape == (360, 456, 3)
    np.testing.assert_array_equal(single.render(), frames[0])
    assert (frames[0] != frames[1]).any()


def test_text_maps() -> None:
    single = MiniPacmanEnv(render_mode="ansi")
    vector = MiniPacmanVectorEnv(2, render_mode="ansi")
    single.reset(seed=8)
    vector.reset(seed=8)
    frames = vector.render()
    assert frames is not None
    assert frames[0] == single.render()
    lines = str(frames[0]).splitlines()
    assert len(lines) == 16
    assert [len(line) for line in lines[1:]] == [19] * 15
    assert sum(line.count("C") for line in lines[1:]) == 1
    assert sum(line.count("M") for line in lines[1:]) == 1


def test_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    env = MiniPacmanEnv(render_mode="human")
    env.reset(seed=1)
    env.step(1)
    assert env.render() is None
    env.close()
    env.close()


@pytest.mark.parametrize("vectorization_mode", [None, "vector_entry_point", "sync"])
def test_make_vec_by_id(vectorization_mode: str | None) -> None:
    env = gym.make_vec(ENV_ID, num_envs=8, vectorization_mode=vectorization_mode, mode="rush", viewport=None)
    assert isinstance(env.unwrapped, MiniPacmanVectorEnv) == (vectorization_mode != "sync")
    observations, infos = env.reset(seed=1)
    assert observations.shape == (8, 15, 19, 3)
    assert infos["level"].tolist() == [1] * 8
    env.close()


def test_make_by_id_adds_no_time_limit() -> None:
    env = gym.make(ENV_ID, mode="hunt", viewport=None)
    assert isinstance(env.unwrapped, MiniPacmanEnv)
    assert env.spec is not None
    assert env.spec.max_episode_steps is None
    assert env.observation_space.shape == (15, 19, 3)
