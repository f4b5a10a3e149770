"""Vector environments as those of Stable-Baselines3, and the other way round."""

import csv
import json
import sys
from functools import partial
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("sb3_contrib", reason="Stable-Baselines3 is not installed: pip install rmc-agents[sb3]")

from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import TimeLimit, TransformReward
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from stable_baselines3.common.monitor import Monitor, get_monitor_files
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecEnv,
    VecFrameStack,
    VecMonitor,
    VecVideoRecorder,
)

from rmc_agents.envs.making import make_env
from rmc_agents.envs.minipacman.env import MiniPacmanEnv, MiniPacmanVectorEnv
from rmc_agents.envs.processes import EnvError, WorkerError
from rmc_agents.envs.recall import RecallEnv
from rmc_agents.envs.registry import make_vector_env
from rmc_agents.sb3 import from_sb3, make_sb3_env, to_sb3

LANES, STEPS, CAP = 5, 60, 9  # the cap cuts episodes short; ghosts end others


def native(autoreset_mode: str) -> MiniPacmanVectorEnv:
    return MiniPacmanVectorEnv(LANES, mode="hunt", frame_cap=CAP, autoreset_mode=autoreset_mode)


def single() -> MiniPacmanEnv:
    return MiniPacmanEnv(mode="hunt", frame_cap=CAP)


def play_sb3(env: VecEnv) -> list[Any]:
    """All outputs of an environment, step by step."""
    env.seed(11)
    generator, output = np.random.default_rng(0), [env.reset()]
    for _ in range(STEPS):
        obs, rewards, dones, infos = env.step(generator.integers(5, size=LANES))
        output += [obs, rewards, dones]
        for lane in np.flatnonzero(dones):
            info = infos[lane]
            output += [info["terminal_observation"], *(info[n] for n in ("TimeLimit.truncated", "level", "power"))]
    return output


def play_gymnasium(env: VectorEnv) -> list[Any]:
    generator = np.random.default_rng(0)
    output: list[Any] = [env.reset(seed=11)[0]]
    for _ in range(STEPS):
        obs, rewards, terminated, truncated, infos = env.step(generator.integers(5, size=LANES))
        output += [obs, rewards, terminated, truncated, infos["level"], infos["power"]]
    return output


def assert_equal(output: list[Any], expected: list[Any]) -> None:
    assert len(output) == len(expected)
    for one, other in zip(output, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize("autoreset_mode", ["next_step", "same_step", "disabled"])
def test_native_lanes_are_sb3s_own_vector_environment(autoreset_mode: str) -> None:
    output = play_sb3(to_sb3(native(autoreset_mode)))
    expected = play_sb3(DummyVecEnv([single] * LANES))
    assert_equal(output, expected)
    truncations = [entry for entry in output if isinstance(entry, bool)]
    assert True in truncations
    assert False in truncations


def test_lanes_of_gymnasium_are_sb3s_own_vector_environment() -> None:
    env = to_sb3(SyncVectorEnv([single] * LANES))
    assert_equal(play_sb3(env), play_sb3(DummyVecEnv([single] * LANES)))


def test_sb3s_vector_environment_is_the_native_one_in_next_step() -> None:
    assert_equal(play_gymnasium(from_sb3(DummyVecEnv([single] * LANES))), play_gymnasium(native("next_step")))


def test_a_process_that_ended_is_one_line() -> None:
    lanes = SubprocVecEnv([RecallEnv], start_method="fork")
    env = from_sb3(lanes)
    env.reset(seed=1)
    assert env.step(np.zeros(1, np.int64))[0].shape == (1, 4)
    lanes.processes[0].kill()
    lanes.processes[0].join()
    with pytest.raises(WorkerError, match="lane 0: the environment's process has ended"):
        env.step(np.zeros(1, np.int64))
    env.close()


class Outside(RecallEnv):
    """A reward that is no number."""

    def step(self, action: int) -> Any:
        obs, _, *others = super().step(action)
        return obs, "1.5", *others


def test_what_an_environment_returns_is_checked() -> None:
    env = from_sb3(DummyVecEnv([Outside]))
    env.reset(seed=1)
    with pytest.raises(EnvError, match="lane 0 of a DummyVecEnv"):
        env.step(np.zeros(1, np.int64))


def test_there_and_back_is_the_environment_itself() -> None:
    env = native("next_step")
    assert from_sb3(VecMonitor(to_sb3(env))) is env


def test_stacked_views_restart_with_the_episode() -> None:
    env = make_sb3_env("minipacman-stack2", 2, seed=0)
    obs, dones = env.reset(), np.zeros(2, bool)
    while not dones.any():
        obs, _, dones, infos = env.step(np.zeros(2, np.int64))
    lane = int(np.argmax(dones))
    older, newest = np.split(obs[lane], 2, axis=-1)
    assert not older.any()
    assert newest.any()
    assert np.split(infos[lane]["terminal_observation"], 2, axis=-1)[0].any()


def test_arrays_are_new_and_running_lanes_have_no_info() -> None:
    env = to_sb3(native("next_step"))
    obs = env.reset()
    kept = obs.copy()
    _, rewards, dones, infos = env.step(np.ones(LANES, np.int64))
    rewards += 1
    assert np.array_equal(obs, kept)
    assert not dones.any()
    assert infos == [{}] * LANES
    assert rewards.dtype == np.float32
    infos[0]["kept"] = True
    assert env.step(np.ones(LANES, np.int64))[3] == [{}] * LANES


def test_seeds_and_infos_of_a_reset() -> None:
    env = to_sb3(native("same_step"))
    env.seed(4)
    first = env.reset()
    second = env.reset()  # seeds are used once
    env.seed(4)
    assert np.array_equal(env.reset(), first)
    assert not np.array_equal(second, first)
    assert env.reset_infos[0] == {"level": 1, "power": 0}


class Clocks(VectorEnv):
    """Lanes that count their steps up to 2, 3, ... in one array, with infos of odd kinds."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012
    single_observation_space, single_action_space = Box(0, 99, (1,), np.float32), Discrete(2)

    def __init__(self, num_envs: int) -> None:
        self.num_envs, self.time = num_envs, np.zeros((num_envs, 1), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.time[(options or {}).get("reset_mask", np.ones(self.num_envs, bool))] = 0
        return self.time, {0: "no name", "of_all": 1.5, "listed": list(range(self.num_envs))}

    def step(self, actions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict]:
        self.time += 1
        ends = self.time[:, 0] == np.arange(2, 2 + self.num_envs)
        return self.time, np.ones(self.num_envs), ends, np.zeros_like(ends), {0: "no name", "of_all": 1.5}


def test_a_vector_environment_of_ones_own() -> None:
    env = to_sb3(Clocks(2))
    env.seed(4)  # gymnasium's own vector environments take an int alone
    seen, infos = [env.reset()], []
    for _ in range(3):
        obs, _, _, info = env.step(np.zeros(2, np.int64))
        seen.append(obs)
        infos.append(info)
    assert [obs[:, 0].tolist() for obs in seen] == [[0, 0], [1, 1], [0, 2], [1, 0]]
    assert [each["terminal_observation"].item() for info in infos for each in info if each] == [2, 3]
    assert env.reset_infos == [{"listed": 0}, {"listed": 1}]


class Reusing(gym.Env):
    """Counts up to 3 in one array, which each reset sets to 0."""

    observation_space, action_space = Box(0, 99, (1,), np.float32), Discrete(2)

    def __init__(self) -> None:
        self.time = np.zeros(1, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.time[:] = 0
        return self.time, {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.time += 1
        return self.time, 1.0, False, self.time[0] == 3, {}


def test_a_last_observation_is_not_overwritten_by_the_reset() -> None:
    env = make_sb3_env(Reusing, 2)
    env.reset()
    for _ in range(3):
        obs, _, _, infos = env.step(np.zeros(2, np.int64))
    assert [info["terminal_observation"].item() for info in infos] == [3, 3]
    assert obs.tolist() == [[0], [0]]


@pytest.mark.parametrize("mode", AutoresetMode)
def test_gymnasiums_statistics_of_lanes_that_end_at_different_times(mode: AutoresetMode) -> None:
    made = [partial(TimeLimit, Reusing(), max_episode_steps=steps) for steps in (2, 3)]
    env = to_sb3(RecordEpisodeStatistics(SyncVectorEnv(made, autoreset_mode=mode)))
    env.reset()
    infos = [info for _ in range(6) for info in env.step(np.zeros(2, np.int64))[3]]
    assert [info["episode"]["r"] for info in infos if info] == [2, 3, 2, 2, 3]


@pytest.mark.parametrize(
    "infos", [{"final_obs": [np.zeros(1)] * 2}, {"final_obs": np.zeros((2, 1)), "final_info": np.array([{}, {}])}]
)
def test_infos_of_same_step_in_another_form_are_refused(infos: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks(2)
    env = to_sb3(clocks)
    env.autoreset_mode = AutoresetMode.SAME_STEP
    ones = np.ones(2, bool)
    monkeypatch.setattr(clocks, "step", lambda actions: (clocks.time, np.ones(2), ones, ~ones, infos))
    with pytest.raises(ValueError, match=r"'Clocks' has autoreset_mode SAME_STEP: expected infos with final_obs"):
        env.step(np.zeros(2, np.int64))


def test_an_environment_that_resets_all_lanes_is_refused() -> None:
    env = to_sb3(gym.make_vec("CartPole-v1", num_envs=4, vectorization_mode="vector_entry_point"))
    env.seed(0)  # with other seeds the lanes may fall at once
    env.reset()
    steps = iter(partial(env.step, np.ones(4, np.int64)), None)
    with pytest.raises(ValueError, match=r"the environment 'CartPole-v1' resets all lanes: expected reset"):
        list(islice(steps, 20))  # always to the right: all fall, not all at once


def test_the_monitor_counts_episodes() -> None:
    env = make_sb3_env("recall", 2, seed=0)
    env.reset()
    for _ in range(5):
        _, _, dones, infos = env.step(np.zeros(2, np.int64))  # waits at the signal too
    assert dones.all()
    for info in infos:
        assert (info["episode"]["r"], info["episode"]["l"]) == (-1.0, 5)
        assert not info["is_success"]
        assert not info["TimeLimit.truncated"]


def test_attributes_and_methods_of_an_engine() -> None:
    env = to_sb3(MiniPacmanVectorEnv(3, render_mode="rgb_array"))
    env.reset()
    assert env.get_attr("viewport") == [5, 5, 5]
    assert env.get_attr("observation_space", 1) == [env.observation_space]
    assert not env.has_attr("no_such_thing")
    assert env.env_method("get_wrapper_attr", "viewport", indices=[1]) == [5]
    assert env.env_method("has_wrapper_attr", "no_such_thing") == [False] * 3
    with pytest.raises(AttributeError, match="no_such_thing"):
        env.env_method("get_wrapper_attr", "no_such_thing")
    assert [frame.shape for frame in env.env_method("render", indices=[0, 2])] == [(360, 456, 3)] * 2
    assert len(env.env_method("get_state")) == 3
    assert env.env_is_wrapped(VecMonitor) == [False] * 3
    with pytest.raises(ValueError, match="mode: cannot be set later; pass it when MiniPacmanVectorEnv is created"):
        env.set_attr("mode", "hunt")
    with pytest.raises(ValueError, match="'set_state' can only be called for all lanes"):
        env.env_method("set_state", {}, indices=[0])


@pytest.mark.parametrize("made", ["minipacman", "memory-s7", "recall-stack2", "recall", RecallEnv])
def test_an_environment_by_name_or_class_is_made_again_for_gymnasium(made: Any) -> None:
    env_kwargs = {"delay": 2} if made is RecallEnv or made.startswith("recall") else {}
    env = from_sb3(make_sb3_env(made, 3, env_kwargs=env_kwargs))
    expected = make_env(made, 3, env_kwargs=env_kwargs)
    assert env.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
    generator = np.random.default_rng(0)
    assert np.array_equal(env.reset(seed=7)[0], expected.reset(seed=7)[0])
    for _ in range(20):
        actions = generator.integers(3, size=3)
        for one, other in zip(env.step(actions)[:4], expected.step(actions)[:4], strict=True):
            np.testing.assert_array_equal(one, other)


def test_arguments_wrappers_and_monitors_of_an_environment(tmp_path: Path) -> None:
    options = {"seed": 0, "env_kwargs": {"frame_cap": CAP}}
    native = make_sb3_env("minipacman", 2, monitor_dir=tmp_path / "logs", **options)
    twice = {"wrapper_class": TransformReward, "wrapper_kwargs": {"func": lambda reward: 2 * reward}}
    wrapped = make_sb3_env("minipacman", 2, **twice, **options)
    assert native.get_attr("frame_cap") == wrapped.get_attr("frame_cap") == [CAP, CAP]
    assert wrapped.env_is_wrapped(TransformReward) == [True, True]
    assert np.array_equal(native.reset(), wrapped.reset())
    for _ in range(CAP):
        obs, rewards, dones, infos = native.step(np.ones(2, np.int64))
        other_obs, other_rewards, _, _ = wrapped.step(np.ones(2, np.int64))
        assert np.array_equal(obs, other_obs)
        np.testing.assert_allclose(2 * rewards, other_rewards, rtol=0, atol=1e-6)
    assert dones.all()
    with Path(get_monitor_files(str(tmp_path / "logs"))[0]).open() as file:
        assert json.loads(file.readline().removeprefix("#"))["env_id"] == "MiniPacman-v0"
        logged = [float(line["r"]) for line in csv.DictReader(file)]
    assert logged == pytest.approx([info["episode"]["r"] for info in infos])


@pytest.mark.parametrize("name", ["minipacman", "memory-s7", "recall"])
def test_wrong_arguments_of_an_environment_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"(takes no|unexpected keyword argument) 'no_such'"):
        make_sb3_env(name, env_kwargs={"no_such": 1})


def test_missing_attributes_do_not_end_asynchronous_lanes() -> None:
    lanes = AsyncVectorEnv([partial(wrapped_recall, delay) for delay in (1, 2)])
    env = to_sb3(lanes)
    env.reset()
    assert not env.has_attr("no_such")
    assert env.has_attr("get_state") == hasattr(RecallEnv, "get_state")
    for ask in (partial(env.get_attr, "no_such"), partial(env.env_method, "no_such")):
        with pytest.raises(AttributeError, match="'no_such'"):
            ask()
    with pytest.raises(AttributeError, match="'no_such'"):
        env.env_method("get_wrapper_attr", "no_such")
    assert env.get_attr("delay") == env.env_method("get_wrapper_attr", "delay") == [1, 2]
    assert env.env_method("get_wrapper_attr", name="delay", indices=[1]) == [2]
    env.set_attr("delay", 7, indices=[1])
    assert env.get_attr("delay") == [1, 7]
    assert env.env_is_wrapped(Monitor) == [True, False]
    assert env.env_is_wrapped(TransformReward, indices=[0]) == [False]
    assert env.step(np.zeros(2, np.int64))[0].shape == (2, 4)
    env.close()


def wrapped_recall(delay: int) -> gym.Env:
    """In a Monitor where the delay is 1."""
    env = RecallEnv(delay=delay)
    return TimeLimit(Monitor(env), 9) if delay == 1 else env


def test_attributes_and_methods_of_single_environments() -> None:
    env = to_sb3(SyncVectorEnv([partial(RecallEnv, delay=delay) for delay in (1, 2)]))
    env.reset()
    assert env.get_attr("delay") == [1, 2]
    env.set_attr("delay", 7, indices=[1])
    assert env.get_attr("delay") == [1, 7]
    assert env.env_method("get_wrapper_attr", "num_cues", indices=1) == [3]


def test_videos_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clips = []

    class Clip:  # in place of moviepy's, which needs an older pillow
        def __init__(self, frames: list[np.ndarray], fps: int) -> None:
            clips.append((np.stack(frames), fps))

        def write_videofile(self, path: str) -> None:
            Path(path).touch()

    for name in ("moviepy", "moviepy.video", "moviepy.video.io", "moviepy.video.io.ImageSequenceClip"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules["moviepy.video.io.ImageSequenceClip"], "ImageSequenceClip", Clip, raising=False)
    lanes = make_sb3_env("minipacman", 2, seed=0, render_mode="rgb_array")
    env = VecVideoRecorder(lanes, str(tmp_path), lambda step: step == 0, video_length=3)
    env.reset()
    for _ in range(4):
        env.step(np.ones(2, np.int64))
    env.close()
    ((frames, fps),) = clips
    assert frames.shape == (4, 720, 456, 3)  # one lane above the other
    assert fps == 10
    assert any(tmp_path.iterdir())


def test_what_cannot_be_brought_over_is_refused() -> None:
    with pytest.raises(ValueError, match="got VecFrameStack; wrap the environments inside it"):
        from_sb3(VecFrameStack(DummyVecEnv([single]), 2))
    with pytest.raises(ValueError, match="or a NEXT_STEP environment by to_sb3"):
        from_sb3(to_sb3(native("same_step")))
    env = make_vector_env("minipacman", 2)
    env.metadata = {}
    with pytest.raises(ValueError, match="autoreset_mode"):
        to_sb3(env)


def test_fractions_are_no_choices() -> None:
    env = to_sb3(native("same_step"))
    env.reset()
    with pytest.raises(ValueError, match="actions: expected ints"):
        env.step(np.full(LANES, 0.5))


def test_nested_observations_go_with_any_actions() -> None:
    class Nested(Echo):
        observation_space = gym.spaces.Dict({"a": Echo.observation_space})  # type: ignore[assignment]

    env = to_sb3(SyncVectorEnv([lambda: Nested(Box(0, 5, (1,), np.int8))]))
    assert list(env.observation_space) == ["a"]


def test_options_of_a_reset_are_for_all_lanes() -> None:
    env = to_sb3(native("next_step"))
    env.set_options([{}] * (LANES - 1) + [{"some": "thing"}])
    with pytest.raises(ValueError, match="the same options for all lanes"):
        env.reset()


class Echo(gym.Env):
    """Rewards the number of the action; Stable-Baselines3 knows only numbers from 0."""

    observation_space = Box(0, 1, (1,), np.float32)

    def __init__(self, action_space: gym.Space) -> None:
        self.action_space = action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert self.action_space.contains(action)
        assert action.dtype == self.action_space.dtype
        return np.zeros(1, np.float32), float(np.sum(action)), False, False, {}


@pytest.mark.parametrize(
    ("space", "action", "expected"),
    [
        (Discrete(3, start=5), np.array([0, 2]), [5, 7]),
        (Discrete(3, start=2, dtype=np.int32), np.array([0, 2]), [2, 4]),
        (Discrete(3, dtype=np.uint8), np.array([0, 2]), [0, 2]),
        (MultiDiscrete([2, 3], start=[1, 4]), np.array([[0, 0], [1, 2]]), [5, 8]),
        (MultiDiscrete([200, 200], dtype=np.uint8), np.array([[0, 1], [9, 2]]), [1, 11]),
        (MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [0, 2]]), np.array([[0, 1, 2, 3], [1, 2, 3, 4]]), [9, 13]),
        (MultiBinary((2, 2)), np.float32([[0, 1, 1, 1], [0, 0, 0, 1]]), [3, 1]),
        (Box(-1, 1, (2,), np.float16), np.float32([[0.5, 1], [-1, 0.25]]), [1.5, -0.75]),
    ],
)
def test_actions_are_vectors_from_zero_and_the_environment_gets_its_own(
    space: gym.Space, action: np.ndarray, expected: list[float]
) -> None:
    env = to_sb3(SyncVectorEnv([lambda: Echo(space)] * 2))
    assert env.action_space.shape == action.shape[1:]
    assert env.action_space.contains(action[0].astype(space.dtype))
    env.reset()
    assert env.step(action)[1].tolist() == expected


class Low(Echo):
    """Shows categories that do not count from 0; every episode lasts one step."""

    def __init__(self, observation_space: gym.Space) -> None:
        super().__init__(Discrete(2))
        self.observation_space = observation_space
        self.shown = np.asarray(observation_space.start) + 1  # type: ignore[attr-defined]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.shown.copy(), {}

    def step(self, action: Any) -> Any:
        return self.shown.copy(), 0.0, True, False, {}


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("space", [Discrete(5, start=-3), MultiDiscrete([5, 5], start=[10, 20])])
def test_observed_categories_count_from_zero(space: gym.Space, mode: AutoresetMode) -> None:
    env = to_sb3(SyncVectorEnv([lambda: Low(space)] * 2, autoreset_mode=mode))
    ones = np.ones((2, *space.shape)).tolist()
    assert env.observation_space.contains(np.asarray(env.reset())[0])
    obs, _, dones, infos = env.step(np.zeros(2, np.int64))
    assert np.asarray(obs).tolist() == ones
    assert dones.all()
    assert [info["terminal_observation"].tolist() for info in infos] == ones
