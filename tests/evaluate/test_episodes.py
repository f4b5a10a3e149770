"""Episodes of an evaluation: one per lane, each from its own seed."""

from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, Tuple
from gymnasium.vector import SyncVectorEnv

import rmc_agents as rmc
from helpers.runs import events_of
from rmc_agents.envs.making import make_env, with_arguments
from rmc_agents.evaluate import episodes as evaluation
from rmc_agents.evaluate.episodes import MAX_LANES, PlaySettings, UniformPolicy, check_fits, env_spec, play
from rmc_agents.evaluate.statistics import EVALUATION_SEED, Statistics
from rmc_agents.stream import Lanes
from rmc_agents.train import cli as train_cli
from rmc_agents.types import AgentOutput, State, TimeStep

CPU = torch.device("cpu")
LONG = 20


class ParityEnv(gym.Env):
    """Reward 1 a step; an episode lasts 1 step from an even seed, LONG from an odd one, and 1 without a seed."""

    observation_space = Box(0.0, 1.0, (1,), np.float32)
    action_space = Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        self.left = LONG if seed is not None and seed % 2 else 1
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.left -= 1
        return np.zeros(1, np.float32), 1.0, False, self.left == 0, {}


class GroupedEnv(ParityEnv):
    """As `ParityEnv`; reports a corridor's length, and its success and level only from an odd seed."""

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        is_long = self.left > 1
        *rest, _ = super().step(action)
        return *rest, {"corridor_length": 7 if is_long else 2} | ({"level": 5} if is_long else {})  # type: ignore[return-value]


def test_groups_and_levels_count_episodes_that_were_cut() -> None:
    played = play(UniformPolicy(env_spec(GroupedEnv)), GroupedEnv, 4, PlaySettings(0, CPU, max_steps=2))
    assert played.cut.tolist() == [False, True, False, True]
    assert played.groups["corridor_length"].tolist() == [2, 7, 2, 7]
    np.testing.assert_array_equal(played.levels, [np.nan, 5, np.nan, 5])


class MaskedEnv(ParityEnv):
    """As `ParityEnv`; one of the two actions is allowed, alternating step by step."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        return super().reset(seed=seed)[0], self.mask()

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert self.mask()["action_mask"][action]
        return *super().step(action)[:4], self.mask()

    def mask(self) -> dict[str, np.ndarray]:
        return {"action_mask": np.arange(2) == self.left % 2}


class SeedEnv(gym.Env):
    """Episodes of `seed % 3 + 1` steps that return the seed; `level` is the episode's number since the last seed.

    The first one is a success from seed 4 on; failures are not reported.
    """

    observation_space = Box(0.0, 1.0, (1,), np.float32)
    action_space = Discrete(2)
    seeds: ClassVar[list[int]] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        self.episode = 1 if seed is not None else self.episode + 1
        if seed is not None:
            self.seed = seed
            self.seeds.append(seed)
        self.left = self.seed % 3 + 1
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.left -= 1
        if self.left:
            return np.zeros(1, np.float32), 0.0, False, False, {}
        success = {"is_success": True} if self.seed >= 4 and self.episode == 1 else {}
        return np.zeros(1, np.float32), float(self.seed), True, False, {"level": self.episode, **success}


for env_id, entry_point in {"Parity-v0": ParityEnv, "Masked-v0": MaskedEnv, "Seed-v0": SeedEnv}.items():
    if env_id not in gym.registry:
        gym.register(env_id, entry_point)


def test_boxworld_successes_are_grouped_by_the_level() -> None:
    policy = UniformPolicy(env_spec("boxworld-tiny"))
    played = play(policy, "boxworld-tiny", 40, PlaySettings(0, CPU, max_steps=500))
    levels = make_env("boxworld-tiny", 40)
    _, infos = levels.reset(seed=0)
    assert set(played.groups) == {"solution_length", "num_distractors"}
    assert all((values == infos[name]).all() for name, values in played.groups.items())


def test_each_lane_plays_exactly_one_episode() -> None:
    count = MAX_LANES + 44
    played = play(UniformPolicy(env_spec("Parity-v0")), "Parity-v0", count, PlaySettings(0, CPU))
    expected = np.where(np.arange(count) % 2, LONG, 1)
    np.testing.assert_array_equal(played.returns, expected)
    np.testing.assert_array_equal(played.lengths, expected)
    assert played.levels is None


def test_infos_of_a_vector_environment_may_be_lists() -> None:
    class Listing(SyncVectorEnv):
        def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict]:
            *rest, infos = super().step(actions)
            others = {"nth": ["gold"] * self.num_envs, "solution_length": np.zeros((self.num_envs, 2))}
            return *rest, infos | {"is_success": [True] * self.num_envs} | others

    played = play(
        UniformPolicy(env_spec("Parity-v0")), lambda num_envs: Listing([ParityEnv] * num_envs), 4, PlaySettings(0, CPU)
    )
    np.testing.assert_array_equal(played.successes, np.ones(4))
    assert played.groups == {}  # names that we use, too, with another meaning


def test_numpys_flags_are_successes() -> None:
    class Flagged(ParityEnv):
        def step(self, action: int) -> Any:
            *rest, _ = super().step(action)
            return *rest, {"is_success": np.bool_(self.left == 0)}

    played = play(UniformPolicy(env_spec("Parity-v0")), Flagged, 4, PlaySettings(0, CPU))
    np.testing.assert_array_equal(played.successes, np.ones(4))


def test_every_episode_has_its_own_seed_and_only_a_lanes_first_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "MAX_LANES", 4)
    played = play(UniformPolicy(env_spec("Seed-v0")), "Seed-v0", 10, PlaySettings(0, CPU))
    np.testing.assert_array_equal(played.returns, np.arange(10))
    np.testing.assert_array_equal(played.lengths, np.arange(10) % 3 + 1)
    np.testing.assert_array_equal(played.levels, np.ones(10))
    assert played.successes is not None, "some lanes report it, though none of the first four"
    np.testing.assert_array_equal(played.successes, np.arange(10) >= 4)
    assert not played.cut.any()


class Echo(ParityEnv):
    """The reward is the action, a number."""

    action_space = Box(0.0, 1.0, (1,), np.float32)  # type: ignore[assignment]

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:  # type: ignore[override]
        return np.zeros(1, np.float32), float(action[0]), True, False, {}


def test_random_numbers_differ_between_parts_and_between_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "MAX_LANES", 2)
    policy = UniformPolicy(env_spec(Echo))
    returns = [play(policy, Echo, 4, PlaySettings(seed, CPU)).returns for seed in (0, 0, 9)]
    assert len(set(returns[0].tolist())) == 4
    assert (returns[0] == returns[1]).all()
    assert not set(returns[0].tolist()) & set(returns[2].tolist())


class OneActionPolicy(UniformPolicy):
    """Always the same number."""

    def step(self, steps: TimeStep, state: State) -> tuple[AgentOutput, State]:
        output, state = super().step(steps, state)
        output.policy_logits[:, 0] = 0.25
        return output, state


def test_a_subclass_of_random_play_is_the_policy_that_plays() -> None:
    returns = play(OneActionPolicy(env_spec(Echo)), Echo, 4, PlaySettings(0, CPU)).returns
    assert len(set(returns.tolist())) == 1


class Agreement(ParityEnv):
    """The reward is 1 if a choice and a number, both drawn, are on the same side of the middle."""

    action_space = Tuple([Discrete(2), Box(0.0, 1.0, (1,), np.float32)])  # type: ignore[assignment]

    def step(self, action: tuple[int, np.ndarray]) -> tuple[np.ndarray, float, bool, bool, dict]:  # type: ignore[override]
        return np.zeros(1, np.float32), float(action[0] == (action[1][0] > 0.5)), True, False, {}


def test_random_choices_and_numbers_are_independent() -> None:
    returns = play(UniformPolicy(env_spec(Agreement)), Agreement, MAX_LANES, PlaySettings(0, CPU)).returns
    assert 0.4 < returns.mean() < 0.6


def test_an_episode_without_an_end_is_cut() -> None:
    told: list[int] = []
    policy = UniformPolicy(env_spec("Parity-v0"))
    played = play(policy, "Parity-v0", 4, PlaySettings(0, CPU, max_steps=LONG - 1), on_progress=told.append)
    assert told == [2, 2]
    np.testing.assert_array_equal(played.cut, [False, True, False, True])
    np.testing.assert_array_equal(played.returns, [1, LONG - 1, 1, LONG - 1])
    whole = play(UniformPolicy(env_spec("Parity-v0")), "Parity-v0", 4, PlaySettings(0, CPU, max_steps=LONG))
    assert not whole.cut.any()


class CountingPolicy:
    """A policy that records the number of lanes in every call."""

    def __init__(self, agent: rmc.ActorCritic) -> None:
        self.agent, self.lanes = agent, []
        self.initial_state = agent.initial_state

    def step(self, steps: TimeStep, state: Any) -> Any:
        self.lanes.append(len(steps.is_first))
        return self.agent.step(steps, state)


def test_the_policy_is_not_asked_for_lanes_whose_episode_has_ended() -> None:
    agent = rmc.ActorCritic(env_spec("memory-s7"), partial(rmc.LSTM, hidden_size=8), encoder_sizes=(8,))
    policy = CountingPolicy(agent)
    played = play(policy, "memory-s7", 24, PlaySettings(3, CPU))
    wanted = [(played.lengths > time).sum() for time in range(played.lengths.max())]
    assert all(few <= many <= few * 8 / 7 for few, many in zip(wanted, policy.lanes, strict=True))

    lanes, state = Lanes(make_env("memory-s7", 24), 3, CPU), agent.initial_state(24)
    generator, returns, playing = torch.Generator().manual_seed(3), np.zeros(24), np.ones(24, bool)
    with torch.no_grad():
        while playing.any():
            output, state = agent.step(lanes.steps, state)
            steps = lanes.step(lanes.spec.distribution(output.policy_logits).sample(generator))
            returns += playing * steps.prev_reward.numpy()
            playing &= ~(steps.terminated | steps.truncated).numpy()
    np.testing.assert_array_equal(np.float32(played.returns), returns)  # the reward of success, or 0
    assert 0 < returns.mean() < 1


def test_lanes_whose_episode_has_ended_take_allowed_actions() -> None:
    agent = rmc.ActorCritic(env_spec("Masked-v0"), "none", encoder_sizes=(8,))
    np.testing.assert_array_equal(play(agent, "Masked-v0", 4, PlaySettings(0, CPU)).lengths, [1, LONG, 1, LONG])


def test_cut_episodes_count_with_their_level_and_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "MAX_LANES", 2)
    played = play(UniformPolicy(env_spec("Seed-v0")), "Seed-v0", 8, PlaySettings(0, CPU, max_steps=2))
    np.testing.assert_array_equal(played.cut, np.arange(8) % 3 == 2)  # both parts with an uncut episode and without
    assert Statistics.of(played).mean_level == 1


def train_on_seeds(run_dir: Path, *flags: str) -> None:
    sizes = "--env Seed-v0 --core none --encoder-sizes 8 --num-envs 4 --unroll-length 5 --total-frames 40 --no-video"
    assert train_cli.main([*sizes.split(), "--run-dir", str(run_dir), *flags]) == 0


def test_episodes_without_a_word_of_success_are_failures_where_others_have_one(tmp_path: Path) -> None:
    train_on_seeds(tmp_path / "run", "--eval-episodes", "0", "--seed", "4", "--log-every", "1e-9")
    events = events_of(tmp_path / "run")
    first, second = (point.value for point in events.Scalars("charts/success_rate"))
    assert 0 < first < 1
    assert second == 0


def test_no_episode_of_an_evaluation_was_trained_on(tmp_path: Path) -> None:
    SeedEnv.seeds.clear()
    train_on_seeds(tmp_path / "run", "--eval-episodes", "3")
    trained, evaluated = SeedEnv.seeds[:4], SeedEnv.seeds[4:]
    assert evaluated == 2 * [EVALUATION_SEED + i for i in range(3)], "three by the agent, three at random"
    assert min(trained) > 2**31 > max(evaluated)


def test_runs_of_different_seeds_share_no_episode(tmp_path: Path) -> None:
    SeedEnv.seeds.clear()
    for seed in range(3):
        train_on_seeds(tmp_path / f"{seed}", "--eval-episodes", "0", "--seed", f"{seed}")
    assert len(set(SeedEnv.seeds)) == len(SeedEnv.seeds) == 3 * 4


@pytest.mark.parametrize("env", ["recall", "minipacman"])
def test_equal_seeds_give_equal_episodes(env: str) -> None:
    policy = UniformPolicy(env_spec(env))
    first, again, other = (play(policy, env, 20, PlaySettings(seed, CPU)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.returns, again.returns)
    assert not np.array_equal(first.lengths, other.lengths)
    assert (first.levels is None, first.successes is None) == ((True, False) if env == "recall" else (False, True))


def test_refuses_an_agent_of_other_spaces() -> None:
    with pytest.raises(ValueError, match=r"\(4,\) of float32 .* got observations \(5, 5, 3\) of uint8"):
        check_fits(env_spec("recall"), "minipacman")


def test_a_text_is_not_read_twice(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(64))
    env = with_arguments(f"text:{tmp_path / 'a'}", {"part": "all", "steps": 21})
    assert play(UniformPolicy(env_spec(env)), env, 10, PlaySettings(0, CPU)).lengths.tolist() == [21, 21, 21]
