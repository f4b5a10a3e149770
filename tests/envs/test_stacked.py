"""Stacked views against a queue per lane over the environment itself, filled by hand."""

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from helpers.runs import refused
from rmc_agents.envs.minipacman.env import MiniPacmanVectorEnv
from rmc_agents.envs.names import split_stack
from rmc_agents.envs.registry import make_vector_env
from rmc_agents.envs.stacking import StackedViews, stack_views
from rmc_agents.evaluate.episodes import PlaySettings
from rmc_agents.evaluate.video import recording
from rmc_agents.stream import Lanes
from rmc_agents.train import cli
from rmc_agents.types import AgentOutput

SCRIBBLE = 113
CPU = torch.device("cpu")


class Queues:
    """The oracle: one queue of the last K observations per lane, emptied where an episode begins."""

    def __init__(self, env: VectorEnv, num_views: int) -> None:
        self.env, self.num_views = env, num_views

    def reset(self, seed: int) -> np.ndarray:
        obs, _ = self.env.reset(seed=seed)
        self.queues: list[deque[np.ndarray]] = [deque(maxlen=self.num_views) for _ in obs]
        self.ended = [False] * len(obs)
        return self.add(obs)

    def step(self, actions: np.ndarray) -> tuple[Any, ...]:
        obs, *rest, _ = self.env.step(actions)
        for lane, ended in enumerate(self.ended):
            if ended:
                self.queues[lane].clear()
        self.ended = list(rest[1] | rest[2])
        return self.add(obs), *rest

    def add(self, obs: np.ndarray) -> np.ndarray:
        stacked = []
        for queue, view in zip(self.queues, obs, strict=True):
            queue.append(view)
            blanks = [np.zeros_like(view)] * (self.num_views - len(queue))
            stacked.append(np.concatenate([*blanks, *queue], axis=-1))
        return np.stack(stacked)


def random_actions(env: VectorEnv, steps: int) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(3)
    for _ in range(steps):
        yield rng.integers(0, env.single_action_space.n, env.num_envs)  # type: ignore[attr-defined]


@pytest.mark.parametrize("num_views", [2, 16])
@pytest.mark.parametrize(
    "name", ["minipacman", "minipacman-hunt-full", "recall", "CartPole-v1", "MiniGrid-MemoryS7-v0"]
)
def test_stacks_are_the_queues(name: str, num_views: int) -> None:
    env, oracle = make_vector_env(f"{name}-stack{num_views}", 6), Queues(make_vector_env(name, 6), num_views)
    for seed in (5, 6):
        obs, _ = env.reset(seed=seed)
        np.testing.assert_array_equal(obs, oracle.reset(seed))
        episodes = 0
        for actions in random_actions(env, 150):
            assert env.observation_space.contains(obs)
            obs[:] = SCRIBBLE
            obs, *got, _ = env.step(actions)
            expected_obs, *expected = oracle.step(actions)
            np.testing.assert_array_equal(obs, expected_obs)
            for one, other in zip(got, expected, strict=True):
                np.testing.assert_array_equal(one, other)
            episodes += int((got[1] | got[2]).sum())
        assert episodes > 0 or name.startswith("MiniGrid")


def test_lanes_reset_by_mask_restart_and_the_others_continue() -> None:
    env = stack_views(MiniPacmanVectorEnv(4), 3)
    env.reset(seed=1)
    for actions in random_actions(env, 4):
        before = env.step(actions)[0]
    mask = np.array([True, False, False, True])
    obs, _ = env.reset(options={"reset_mask": mask})
    np.testing.assert_array_equal(obs[~mask], before[~mask])
    assert (obs[mask][..., :6] == 0).all()
    assert (obs[mask][..., 6:] > 0).any()


def test_reset_mask_of_an_environment_that_takes_it_out_of_the_options() -> None:
    env = make_vector_env("CartPole-v1-stack2", 3)
    env.reset(seed=0)
    before = env.step(np.zeros(3, np.int64))[0]
    mask = np.array([False, True, False])
    obs, _ = env.reset(options={"reset_mask": mask.copy()})
    np.testing.assert_array_equal(obs[~mask], before[~mask])
    assert (obs[1, :4] == 0).all()


def test_state_round_trip_in_the_middle_of_episodes() -> None:
    first, second = (stack_views(MiniPacmanVectorEnv(32, "hunt", frame_cap=40), 4) for _ in range(2))
    first.reset(seed=2)
    actions = list(random_actions(first, 200))
    for before in actions[:100]:
        first.step(before)
    state = first.get_state()  # type: ignore[attr-defined]
    assert state["is_last"].any()
    second.set_state(state)  # type: ignore[attr-defined]
    for array in (state["stack"], state["is_last"]):
        array[...] = 1
    for after in actions[100:]:
        for one, other in zip(first.step(after)[:4], second.step(after)[:4], strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_state_that_does_not_fit_is_refused() -> None:
    env, deeper = stack_views(MiniPacmanVectorEnv(2), 2), stack_views(MiniPacmanVectorEnv(2), 3)
    with pytest.raises(ValueError, match=r"state field 'stack': expected uint8 \(2, 5, 5, 6\), got .*9\)"):
        env.set_state(deeper.get_state())  # type: ignore[attr-defined]


def test_only_what_can_be_saved_says_so() -> None:
    for name, savable in (("minipacman-stack2", True), ("CartPole-v1-stack2", False)):
        state = Lanes(make_vector_env(name, 2), seed=0, device=CPU).get_state()
        assert (state is not None) == savable


def test_a_name_may_contain_the_word() -> None:
    assert split_stack("block-stacking") == ("block-stacking", 1)
    assert split_stack("block-stacking-stack4") == ("block-stacking", 4)


@pytest.mark.parametrize("suffix", ["-stack1", "-stack0", "-stack", "-stack4x", "-stack1001"])
def test_bad_names_are_one_line(suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, cli, "--env", f"minipacman{suffix}")
    assert "expected a number from 2 to 1000 after -stack" in line
    assert "did you mean 'minipacman'" in refused(capsys, cli, "--env", "minipackman-stack4")


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="expected at least 2, got 1"):
        stack_views(MiniPacmanVectorEnv(2), 1)
    with pytest.raises(ValueError, match="NEXT_STEP"):
        StackedViews(MiniPacmanVectorEnv(2, autoreset_mode=AutoresetMode.SAME_STEP), 2)


class Uniform:
    """Plays uniformly, and keeps the observations that it is shown."""

    def __init__(self) -> None:
        self.seen: list[np.ndarray] = []

    def initial_state(self, batch_size: int) -> tuple[()]:
        return ()

    def step(self, steps: Any, state: tuple[()]) -> Any:
        self.seen.append(steps.obs[0].numpy())
        return AgentOutput(torch.zeros(1, 5), torch.zeros(1)), state


def test_videos_show_the_newest_view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[np.ndarray] = []
    compose = recording.compose
    monkeypatch.setattr(
        recording, "compose", lambda frame, view, facts: shown.append(view) or compose(frame, view, facts)
    )
    policy = Uniform()
    recording.record(policy, "minipacman-stack4", tmp_path / "a.gif", PlaySettings(0, CPU, max_steps=6), episodes=1)
    np.testing.assert_array_equal(shown[:-1], [obs[..., -3:] for obs in policy.seen])
    assert len(policy.seen) == 6


def test_tokens_are_not_stacked() -> None:
    with pytest.raises(ValueError, match="expected images or vectors to stack, got tokens"):
        make_vector_env("minipacman-map-stack2", 2)


def test_views_of_a_grey_image_become_channels() -> None:
    class Grey(gym.Env):
        observation_space, action_space = Box(0, 255, (3, 4), np.uint8), Discrete(2)

        def reset(self, **_: Any) -> tuple[np.ndarray, dict[str, Any]]:
            self.time = 1
            return np.full((3, 4), self.time, np.uint8), {}

        def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
            self.time += 1
            return np.full((3, 4), self.time, np.uint8), 0.0, False, False, {}

    env = stack_views(SyncVectorEnv([Grey] * 2), 3)
    env.reset()
    env.step(np.zeros(2, int))
    obs = env.step(np.zeros(2, int))[0]
    assert obs.shape == (2, 3, 4, 3)
    assert (obs == [1, 2, 3]).all()
    assert env.observation_space.contains(obs)
