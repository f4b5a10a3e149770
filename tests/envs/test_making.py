"""make_env: names, classes, functions and objects become vector environments."""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Box, Dict, Discrete, Sequence
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import TimeLimit
from gymnasium.wrappers.vector import TransformObservation

from helpers.noise import Noise
from rmc_agents.envs.making import make_env
from rmc_agents.envs.processes import EnvError
from rmc_agents.envs.recall import RecallEnv
from rmc_agents.envs.sequences.programs import ProgramEnv
from rmc_agents.stream import Lanes


class Unfinished(VectorEnv):
    """A vector environment without its attributes."""


class Scalar(gym.Env):
    """Discrete observations, which become one-hot; the size is an argument."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, size: int = 2) -> None:
        self.observation_space = gym.spaces.Discrete(size)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict]:
        super().reset(seed=seed)
        return int(self.np_random.integers(self.observation_space.n)), {}


def make_lanes(num_envs: int, delay: int = 1) -> VectorEnv:
    return SyncVectorEnv([partial(RecallEnv, delay=delay)] * num_envs)


@pytest.mark.parametrize(
    ("env", "options", "shape"),
    [
        ("recall", {"env_kwargs": {"num_cues": 5}}, (3, 6)),
        (RecallEnv, {}, (3, 4)),
        (Scalar, {"env_kwargs": {"size": 7}}, (3, 7)),
        (lambda: TimeLimit(Noise(), 5), {}, (3, 3)),
        (make_lanes, {"env_kwargs": {"delay": 2}}, (3, 4)),
        (partial(gym.make_vec, "CartPole-v1"), {}, (3, 4)),
        (Noise, {"wrapper": partial(TimeLimit, max_episode_steps=5), "render_mode": "rgb_array"}, (3, 3)),
    ],
)
def test_whatever_makes_environments_makes_lanes(env: Any, options: dict[str, Any], shape: tuple[int, ...]) -> None:
    lanes = make_env(env, 3, **options)
    obs, _ = lanes.reset(seed=0)
    assert (obs.shape, lanes.num_envs) == (shape, 3)
    assert lanes.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
    assert lanes.render_mode == options.get("render_mode")
    lanes.close()


def test_lane_i_starts_from_seed_plus_i() -> None:
    obs, _ = make_env(Noise, 3).reset(seed=4)
    assert np.array_equal(obs[2], Noise().reset(seed=6)[0])


class WithoutSpaces(Noise):
    """Has its spaces from the first reset on."""

    @property
    def observation_space(self) -> Any:  # type: ignore[override]
        return self.space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        self.space = Noise.observation_space
        return super().reset(seed=seed)


def test_objects_are_taken_as_they_are() -> None:
    lanes = make_lanes(2)
    assert make_env(lanes) is lanes
    assert make_env(lanes, 2) is lanes
    obs, _ = make_env(Noise()).reset(seed=4)
    assert np.array_equal(obs[0], Noise().reset(seed=4)[0])


@pytest.mark.slow
def test_a_function_may_go_to_workers() -> None:
    lanes = make_env(RecallEnv, 2, num_workers=2, env_kwargs={"delay": 0})
    assert lanes.reset(seed=0)[0].shape == (2, 4)
    lanes.close()


@pytest.mark.parametrize("entry", [Noise, "helpers.noise:Noise"])
def test_a_registration_of_the_module_keeps_its_time_limit(entry: Any) -> None:
    gym.registry["Noise"] = EnvSpec("Noise", entry_point=entry, max_episode_steps=2)
    try:
        make_env("helpers.noise:Noise", 1)
        assert gym.registry["Noise"].max_episode_steps == 2
    finally:
        del gym.registry["Noise"]


@pytest.mark.parametrize(
    "changes", [{"max_episode_steps": 2}, {"additional_wrappers": (TimeLimit.wrapper_spec(max_episode_steps=2),)}]
)
def test_a_limit_that_is_registered_for_an_environment_with_an_engine_is_kept(changes: dict[str, Any]) -> None:
    native = gym.registry["MiniPacman-v0"]
    gym.registry["Short"] = EnvSpec(
        "Short", entry_point=native.entry_point, vector_entry_point=native.vector_entry_point, **changes
    )
    try:
        env = make_env("Short", 2)
        env.reset(seed=0)
        env.step(np.zeros(2, np.int64))
        assert env.step(np.zeros(2, np.int64))[3].all()
    finally:
        del gym.registry["Short"]


def test_what_minigrid_takes_beside_the_native_engine_is_taken() -> None:
    assert make_env("memory-s9", 2, env_kwargs={"tile_size": 8}).reset(seed=0)[0].shape == (2, 148)


def test_an_ended_recall_is_restored_as_ended() -> None:
    env, restored = RecallEnv(), RecallEnv()
    env.reset(seed=0)
    assert env.step(1)[2]
    restored.set_state(env.get_state())
    with pytest.raises(ResetNeeded, match="after the episode's end"):
        restored.step(0)


def test_recall_waits_for_a_reset_and_takes_its_own_actions_alone() -> None:
    env = RecallEnv(render_mode="rgb_array")
    for call in (lambda: env.step(0), env.render, env.get_state):
        with pytest.raises(ResetNeeded, match="was called before reset"):
            call()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="action: expected an int from 0 to 3, got 4"):
        env.step(4)
    assert env.step(1)[2]
    with pytest.raises(ResetNeeded, match="after the episode's end"):
        env.step(0)


def test_memory_that_runs_out_is_not_the_environments_fault() -> None:
    def convert(*_: Any) -> None:
        raise torch.OutOfMemoryError("2 GiB")

    lanes = Lanes(make_env(Noise, 1), 0, torch.device("cpu"))
    lanes._to_steps = convert  # type: ignore[assignment]
    with pytest.raises(torch.OutOfMemoryError):
        lanes.reset(0)


class Ragged(Noise):
    observation_space = Dict(cards=Sequence(Discrete(2)), table=Box(0, 1, (2,)))


def test_a_wrapper_around_a_native_environment_is_checked() -> None:
    scaled = TransformObservation(make_env("minipacman", 2), lambda obs: obs / 255)  # its space stays that of uint8
    with pytest.raises(EnvError, match=r"expected an observation .* of uint8"):
        make_env(lambda num_envs: scaled, 2).reset(seed=0)


def test_programs_have_one_space_by_name_and_by_class() -> None:
    assert make_env(ProgramEnv).single_observation_space == make_env("program").single_observation_space


def test_seeds_may_be_numpys() -> None:
    lanes = make_env(Noise, 2)
    assert np.array_equal(lanes.reset(seed=np.int64(3))[0], lanes.reset(seed=3)[0])  # type: ignore[arg-type]


def test_a_fault_of_a_wrapper_is_reported_as_such() -> None:
    def wrapper(env: gym.Env) -> gym.Env:
        raise RuntimeError("no display")

    for lanes in (1, 2):
        with pytest.raises(ValueError, match="'Noise' failed in its wrapper: RuntimeError: no display"):
            make_env(Noise, lanes, wrapper=wrapper)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: make_env("recal"), "did you mean 'recall'"),
        (lambda: make_env("recall", 0), "num_envs: expected an int of at least 1, got 0"),
        (lambda: make_env(Noise, 2.0), "num_envs: expected an int of at least 1, got 2.0"),  # type: ignore[arg-type]
        (lambda: make_env("recall", backend="fast"), "expected one of auto, native, minigrid; got 'fast'"),  # type: ignore[arg-type]
        (lambda: make_env("MINIPACMAN"), "did you mean 'minipacman'"),
        (lambda: make_env("recall", env_kwargs={"delay": 2.5}), "delay: expected an int of at least 0, got 2.5"),
        (lambda: make_env("minipacman", env_kwargs={"viewprt": 3}), "takes no 'viewprt'; did you mean 'viewport'"),
        (lambda: make_env("recall", env_kwargs={"autoreset_mode": 1}), "no 'autoreset_mode'; expected num_cues, delay"),
        (lambda: make_env("memory-s7", env_kwargs={"autoreset_mode": 1}), "'memory-s7' takes no 'autoreset_mode'"),
        (lambda: make_env("memory-s7", env_kwargs={"num_envs": 2}), "'memory-s7' takes no 'num_envs'"),
        (lambda: make_env("memory-s7", env_kwargs={"sise": 9}), "takes no 'sise'; did you mean 'size'"),
        (lambda: make_env("memory-s7", env_kwargs={"tile_sise": 9}), "takes no 'tile_sise'; did you mean 'tile_size'"),
        (
            lambda: make_env("memory-s7", backend="native", env_kwargs={"tile_size": 9}),
            "env_backend: the native engine takes no tile_size; expected auto",
        ),
        (lambda: make_env("recall", env_kwargs={1: 2}), "'recall' takes no 1; expected num_cues"),  # type: ignore[dict-item]
        (lambda: make_env(Unfinished()), "expected a VectorEnv with the attribute num_envs"),
        (lambda: make_env(Ragged), r"observation 'cards': expected numbers, got Sequence\(Discrete"),
        (lambda: make_env("text:nowhere", env_kwargs={"unti": "words"}), "takes no 'unti'; did you mean 'unit'"),
        (lambda: make_env("recall", 2, num_workers=True), "num_workers: expected an int of at least 0, got True"),
        (lambda: make_env("recall", 2, env_kwargs=["delay"]), "env_kwargs: expected a mapping, such as"),  # type: ignore[arg-type]
        (lambda: make_env("recall", 2, autoreset_mode="next"), "autoreset_mode: expected one of NEXT_STEP"),  # type: ignore[arg-type]
        (lambda: make_env(WithoutSpaces, 2), "expected an environment with an observation_space, set in its class or"),
        (lambda: make_env(Noise, env_kwargs={"size": 3}), "takes no 'size'; expected no arguments"),
        (lambda: make_env(3), "expected a name, a class, a function or an object, got int"),  # type: ignore[arg-type]
        (lambda: make_env(Noise(), 2), "Noise: expected num_envs 1 for one environment object, got 2; pass its class"),
        (lambda: make_env(Noise(), render_mode="rgb_array"), "do not apply to an environment object"),
        (lambda: make_env(make_lanes(2), 3), "SyncVectorEnv: expected 3 lanes, got 2"),
        (lambda: make_env(lambda num_envs: make_lanes(1), 3), "expected 3 lanes, got 1"),
        (lambda: make_env(lambda num_envs: Noise(), 3), "expected a gymnasium VectorEnv, got Noise"),
        (
            lambda: make_env(lambda num_envs: Unfinished(), 3),
            "expected a VectorEnv with the attribute num_envs",
        ),
        (
            lambda: make_env(lambda: make_lanes(1)),
            "got SyncVectorEnv; for a vector environment, add an argument num_envs",
        ),
        (lambda: make_env(make_lanes, 4, num_workers=2), "num_workers: expected 0 for make_lanes"),
        (lambda: make_env(make_lanes, wrapper=lambda env: env), "wrapper: expected none"),
        (lambda: make_env(Noise, backend="native"), "backend: expected auto for Noise"),
    ],
)
def test_what_cannot_be_made_is_named(make: Callable[[], Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_functions_of_this_package_are_no_environments() -> None:
    """A checkpoint may name modules of this package, without --import."""
    with pytest.raises(ValueError, match="there is no environment 'rmc_agents:make_env'"):
        make_env("rmc_agents:make_env", env_kwargs={"env": "recall"})


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "popgym", None)
    with pytest.raises(ValueError, match=r"importing popgym failed: .*; pip install 'rmc-agents\[popgym\]'"):
        make_env("popgym:popgym-RepeatPreviousEasy-v0")
