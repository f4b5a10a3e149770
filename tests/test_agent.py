"""Encoder, agent and collector: what flows where, and what must not."""

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, Sequence, Text, Tuple

from helpers import zoo  # noqa: F401  # registers environments with other spaces
from helpers.agents import SPEC, make_agent, random_steps
from rmc_agents import losses
from rmc_agents.agent import ActorCritic
from rmc_agents.collect import Collector
from rmc_agents.config import AgentConfig, Config, CoreConfig
from rmc_agents.cores import LSTM, Core
from rmc_agents.distributions import Categorical
from rmc_agents.encoders import Encoder
from rmc_agents.envs.registry import make_vector_env
from rmc_agents.kernels.modes import eval_mode
from rmc_agents.spaces import SpaceSpec
from rmc_agents.stream import Lanes
from rmc_agents.types import TimeStep, at, map_leaves

CPU = torch.device("cpu")
CORES = ("rmc", "lstm", "gru", "mingru", "rnn", "relational-rnn", "transformer", "none")


ALL_FIRST = torch.ones(2, dtype=torch.bool)


@pytest.mark.parametrize(("core", "skip"), [*((core, True) for core in CORES), ("lstm", False)])
def test_unroll_is_steps(core: str, skip: bool) -> None:
    torch.manual_seed(0)  # the tolerance is that of float32, which a few of all weights exceed
    agent = make_agent(core, core_skip=skip)
    steps = random_steps(7, 3)
    outputs, final = agent.unroll(steps, agent.initial_state(3))
    state = agent.initial_state(3)
    for t in range(7):
        output, state = agent.step(at(steps, t), state)
        torch.testing.assert_close(output.policy_logits, outputs.policy_logits[t])
        torch.testing.assert_close(output.value, outputs.value[t])
    torch.testing.assert_close(tuple(final), tuple(state))
    assert outputs.policy_logits.shape == (7, 3, 5)
    assert outputs.value.shape == (7, 3)


@pytest.mark.parametrize("core", ["rmc", "lstm", "mingru", "relational-rnn", "transformer", "none"])
def test_stepping_is_step(core: str) -> None:
    torch.manual_seed(0)
    agent = make_agent(core)
    steps = random_steps(4, 3)
    expected_state = state = agent.initial_state(3)
    with agent.stepping(state) as step:
        for t in range(4):
            expected, expected_state = agent.step(at(steps, t), expected_state)
            output, state = step(at(steps, t), state)
            torch.testing.assert_close(output, expected)
    torch.testing.assert_close(tuple(state), tuple(expected_state))
    assert not output.value.requires_grad


def test_acting_calls_an_overridden_step() -> None:
    class Still(ActorCritic):
        def step(self, steps: TimeStep, state: Any) -> Any:
            output, state = super().step(steps, state)
            return output._replace(value=output.value * 0), state

    class Silent(LSTM):
        def step(self, *arguments: Any) -> Any:
            output, state = super().step(*arguments)
            return output * 0, state

        def unroll(self, *arguments: Any) -> Any:
            outputs, state = super().unroll(*arguments)
            return outputs * 0, state

    spec = SpaceSpec.of(make_vector_env("minipacman", 2))
    for agent in (Still(spec, LSTM), ActorCritic(spec, Silent, core_skip=False)):
        rollout = Collector(agent, make_vector_env("minipacman", 2), unroll_length=3).collect()
        assert (rollout.value == 0).all()
        assert not rollout.value.requires_grad


def test_an_overridden_step_may_ignore_the_mask_and_is_checked() -> None:
    class Own(ActorCritic):
        forgets_state = False

        def step(self, steps: TimeStep, state: Any) -> Any:
            output, state = super().step(steps._replace(action_mask=None), state)
            output = output._replace(policy_logits=torch.zeros_like(output.policy_logits))
            return output if self.forgets_state else (output, state)

    env = make_vector_env("Zoo-MaskInfo-v0", 3)
    agent = Own(SpaceSpec.of(env), "none")
    collector = Collector(agent, env, 20)
    collector.collect()  # the environment refuses forbidden actions
    agent.forgets_state = True
    with pytest.raises(ValueError, match=r"Own.step: expected \(AgentOutput .*, next state\), got AgentOutput"):
        collector.collect()


def test_acting_and_learning_take_overridden_heads() -> None:
    class Shifted(ActorCritic):
        def heads(self, *arguments: Any) -> Any:
            output = super().heads(*arguments)
            return output._replace(value=output.value + 1)

    agent = Shifted(SpaceSpec.of(make_vector_env("minipacman", 2)), LSTM, predict_rewards=True)
    rollout = Collector(agent, make_vector_env("minipacman", 2), unroll_length=3).collect()
    output, _ = agent.unroll(rollout.steps, rollout.initial_state)
    torch.testing.assert_close(rollout.value, output.value[:3].detach())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_probabilities_and_values_are_float32_under_autocast(dtype: torch.dtype) -> None:
    agent = make_agent("lstm", head_sizes=(8,))
    steps = random_steps(4)._replace(action_mask=torch.tensor([[True, False, True, True, True]] * 4))
    with torch.autocast("cpu", dtype):
        output, _ = agent.step(steps, agent.initial_state(4))
    assert output.policy_logits.dtype == output.value.dtype == torch.float32
    assert torch.isfinite(Categorical(output.policy_logits).entropy()).all()  # a forbidden -inf would give NaN


def test_previous_action_and_reward_are_forgotten_at_a_boundary() -> None:
    encoder = Encoder(SPEC)
    steps = random_steps(4)._replace(is_first=torch.tensor([True, True, False, False]))
    other = steps._replace(prev_action=(steps.prev_action + 1) % 5, prev_reward=steps.prev_reward + 1.0)
    same = (encoder(steps) == encoder(other)).all(dim=1)
    assert same.tolist() == [True, True, False, False]


def test_the_skip_gives_the_heads_both_outputs() -> None:
    agent = make_agent("lstm")
    assert agent.policy.in_features == 16 + 128
    assert make_agent("lstm", core_skip=False).policy.in_features == 16
    assert make_agent("none").policy.in_features == 128
    steps, state = random_steps(2), agent.initial_state(2)
    encoded = agent.encoder(steps)
    output, _ = agent.core.step(encoded, steps.is_first, state)
    expected = agent.policy(torch.cat([output * agent.core_gain, encoded], dim=1))
    torch.testing.assert_close(agent.step(steps, state)[0].policy_logits, expected)


def test_layers_between_core_and_heads() -> None:
    """Against the layers one by one; without them an agent is bitwise what it was."""
    agent = make_agent("lstm", head_sizes=[24, 20])
    steps, state = random_steps(3, 2), agent.initial_state(2)
    encoded = agent.encode(steps)
    outputs, _ = agent.core.unroll(encoded, steps.is_first, state)
    hidden = torch.cat([outputs * agent.core_gain, encoded], dim=-1)
    for layer in agent.head_layers:
        hidden = torch.relu(layer(hidden))
    output, _ = agent.unroll(steps, state)
    torch.testing.assert_close(output.policy_logits, agent.policy(hidden))
    torch.testing.assert_close(output.value, agent.value(hidden).squeeze(-1))
    assert (agent.policy.in_features, len(agent.head_layers)) == (20, 2)
    assert not any("head_layers" in name for name in make_agent("lstm").state_dict())


@pytest.mark.parametrize(("name", "sizes"), [("head_sizes", (0,)), ("encoder_sizes", (16.0,)), ("encoder_sizes", 16)])
def test_widths_that_are_no_positive_integers_are_refused(name: str, sizes: Any) -> None:
    with pytest.raises(ValueError, match=f"{name}: expected a sequence of positive integers, got"):
        ActorCritic(SPEC, LSTM, **{name: sizes})


def test_widths_are_checked_before_a_warning_of_large_observations_names_them() -> None:
    with pytest.raises(ValueError, match="encoder_sizes: expected a sequence of positive integers, got 16"):
        Encoder(SpaceSpec((100, 100), "float32", 1.0, 3), "mlp", 16)  # type: ignore[arg-type]


@pytest.mark.parametrize("part", ["policy", "encoder.layers.0"])
def test_hooks_that_would_not_run_are_refused(part: str) -> None:
    agent = make_agent("lstm")
    torch.nn.utils.spectral_norm(agent.get_submodule(part))
    with pytest.raises(ValueError, match="has hooks, which do not run"):
        agent.unroll(random_steps(3, 2), agent.initial_state(2))


def test_without_layers_the_core_reads_the_observation_itself() -> None:
    agent = make_agent("lstm", encoder_sizes=[])
    steps = random_steps(2)._replace(is_first=ALL_FIRST)
    encoded = agent.encode(steps)
    torch.testing.assert_close(encoded[:, :75], steps.obs.flatten(1) / 255)
    assert encoded.shape == (2, 75 + 5 + 1)  # beside it, the previous action and reward


def test_a_core_is_a_name_a_function_or_a_module() -> None:
    """Bitwise: the weights are drawn in the same order."""
    config = Config().updated({"core": "lstm", "hidden_size": 16}, "test")
    torch.manual_seed(3)
    expected = ActorCritic.from_config(SPEC, config.core, config.agent).state_dict()
    torch.manual_seed(3)
    found = ActorCritic(SPEC, partial(LSTM, hidden_size=16)).state_dict()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    core = LSTM(128, hidden_size=16)
    assert ActorCritic(SPEC, core).core is core
    assert isinstance(ActorCritic(SPEC, "lstm").core, LSTM)
    assert [float(ActorCritic(SPEC, name).core_gain) for name in ("rmc", "lstm")] == [0.5, 1.0]
    assert float(ActorCritic(SPEC, "rmc", core_gain=0.25).core_gain) == 0.25
    with pytest.raises(ValueError, match="core: expected input size"):
        ActorCritic(SPEC, LSTM(7))
    with pytest.raises(ValueError, match="did you mean 'lstm'"):
        ActorCritic(SPEC, "lstn")
    with pytest.raises(ValueError, match="core: Half lacks cell, which a Core has to define"):
        ActorCritic(SPEC, type("Half", (Core,), {"initial_leaves": lambda self: ()}))


def test_spaces_that_cannot_be_encoded_are_named() -> None:
    box = Box(0, 255, (5, 5, 3), np.uint8)
    assert SpaceSpec.from_spaces(box, Discrete(5)) == SPEC
    assert SpaceSpec.from_spaces(Box(0, 1, (4,), np.uint8), Discrete(2)).obs_scale == 1.0
    assert SpaceSpec.from_spaces(Box(-9, 9, (4,), np.float32), Discrete(2)).obs_scale == 1.0
    for observation, action, expected in (
        (box, Box(-1, np.inf, (2,)), "actions: expected a Box with finite bounds"),
        (box, Box(-3e38, 3e38, (2,)), "actions: expected a Box with finite bounds and ranges"),
        (box, Tuple((Discrete(2), Box(0, np.inf, (2,)))), "actions, part 1: expected a Box with finite bounds"),
        (box, Dict({"a": Discrete(2)}), "actions: expected a Discrete, MultiDiscrete .* got Dict"),
        (
            Dict({"a": box, "b": Tuple((box, Sequence(box)))}),
            Discrete(2),
            "observation 'b/1': expected numbers in a Box",
        ),
        (Dict({"a": Text(5)}), Discrete(2), "expected at least one part of numbers"),
        (Discrete(10**6), Discrete(2), "at most 65,536 categories, got 1,000,000"),
    ):
        with pytest.raises(ValueError, match=expected):
            SpaceSpec.from_spaces(observation, action)


class CountingEnv(gym.Env):
    """Observes the time since the episode began; ends by itself after `length` steps, truncated in odd episodes."""

    observation_space = Box(0, 255, (1,), np.float32)
    action_space = Discrete(3)

    def __init__(self, length: int) -> None:
        self.length, self.episode = length, 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.time = 0
        self.episode += 1
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.time += 1
        ended, odd = self.time == self.length, self.episode % 2 == 1
        return np.full(1, self.time, np.float32), float(action), ended and not odd, ended and odd, {}


def counting_lanes() -> Lanes:
    env = gym.vector.SyncVectorEnv([lambda n=n: CountingEnv(n) for n in (2, 3, 5)])
    return Lanes(env, seed=0, device=CPU)


def test_rollouts_join_without_loss_or_doubling() -> None:
    lanes = counting_lanes()
    config = CoreConfig(core="lstm", hidden_size=4)
    agent = ActorCritic.from_config(lanes.spec, config, AgentConfig(encoder_sizes=(8,)))
    collector = Collector(agent, lanes, 4)
    time = torch.zeros(3)
    previous_last = None
    for _ in range(5):
        rollout = collector.collect()
        steps = rollout.steps
        if previous_last is not None:
            for before, now in zip(previous_last[:6], steps[:6], strict=True):
                assert torch.equal(before, now[0])
        previous_last = map_leaves(torch.clone, at(steps, -1))
        first = 0 if time.sum() == 0 else 1
        for t in range(first, 5):
            time = torch.where(steps.is_first[t], 0.0, time + 1)
            assert torch.equal(steps.obs[t].squeeze(1), time), "is_first says where an episode begins"
            ended = time == torch.tensor([2.0, 3.0, 5.0])
            assert torch.equal(steps.terminated[t] | steps.truncated[t], ended)
            assert torch.equal(steps.prev_reward[t], torch.where(steps.is_first[t], 0.0, steps.prev_action[t].float()))
        output, state = agent.unroll(at(steps, slice(None, -1)), rollout.initial_state)
        torch.testing.assert_close(output.policy_logits, rollout.policy_logits)
        torch.testing.assert_close(output.value, rollout.value)
        torch.testing.assert_close(tuple(state), tuple(collector.state))
    lengths = [episode.length for episode in lanes.take_episodes()]
    assert sorted(set(lengths)) == [2, 3, 5]
    assert lanes.take_episodes() == []


def test_the_loss_ignores_what_happens_on_filler_steps() -> None:
    lanes = counting_lanes()
    agent = ActorCritic.from_config(lanes.spec, CoreConfig(core="lstm", hidden_size=4), AgentConfig(encoder_sizes=(8,)))
    rollout = Collector(agent, lanes, 8).collect()
    steps = rollout.steps
    assert steps.is_first[1:].any()
    changed = steps._replace(
        prev_action=torch.where(steps.is_first, 2 - steps.prev_action, steps.prev_action),
        prev_reward=torch.where(steps.is_first, 100.0, steps.prev_reward),
    )
    found = []
    for seen in (steps, changed):
        output, _ = agent.unroll(seen, rollout.initial_state)
        found.append(losses.a2c(output, rollout._replace(steps=seen), discount=0.99)[0])
    assert torch.equal(*found)


def test_lanes_demand_next_step_autoreset() -> None:
    mode = gym.vector.AutoresetMode.SAME_STEP
    env = gym.vector.SyncVectorEnv([lambda: CountingEnv(2)], autoreset_mode=mode)
    with pytest.raises(ValueError, match="NEXT_STEP"):
        Lanes(env, seed=0, device=CPU)


def test_environments_by_name() -> None:
    for name, shape in (
        ("minipacman", (5, 5, 3)),
        ("minipacman-full", (15, 19, 3)),
        ("minipacman-rush", (5, 5, 3)),
        ("rmc_agents.envs:MiniPacman-v0", (5, 5, 3)),
        ("MiniGrid-MemoryS7-v0", (7 * 7 * 3 + 1,)),
        ("CliffWalking-v1", (48,)),
        ("CartPole-v1", (4,)),
    ):
        env = make_vector_env(name, 2)
        obs, _ = env.reset(seed=0)
        assert obs.shape == (2, *shape)
        assert Lanes(env, seed=0, device=CPU).spec.obs_shape == shape
        env.close()
    for name, expected in (
        ("minipacmen", "did you mean 'minipacman'"),
        ("MiniGrid-MemoryS8-v0", "did you mean 'MiniGrid-MemoryS7-v0'|did you mean 'MiniGrid-MemoryS9-v0'"),
        ("zzz", r"short names are .* your own is module:Class"),
        ("nowhere:X-v0", "importing nowhere failed"),
    ):
        with pytest.raises(ValueError, match=expected):
            make_vector_env(name, 1)


def test_recall_asks_for_the_cue_it_showed() -> None:
    env = gym.make("rmc_agents.envs:Recall-v0", num_cues=3, delay=2)
    for seed in range(6):
        obs, _ = env.reset(seed=seed)
        cue = int(obs[:3].argmax())
        assert obs.tolist() == np.eye(4)[cue].tolist()
        for _ in range(2):
            obs, reward, terminated, _, _ = env.step(0)
            assert not obs.any()
            assert (reward, terminated) == (0, False)
        obs, *_ = env.step(0)
        assert obs.tolist() == [0, 0, 0, 1]
        answer = seed % 3
        _, reward, terminated, _, info = env.step(answer + 1)
        assert (reward, terminated, info["is_success"]) == (float(answer == cue), True, answer == cue)
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step(1)
    assert (reward, terminated, info["is_success"]) == (-1, True, False)
    with pytest.raises(ValueError, match="num_cues: expected an int of at least 2, got 1"):
        gym.make("rmc_agents.envs:Recall-v0", num_cues=1)


def test_eval_mode_gives_each_part_its_own_mode_back() -> None:
    module = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Dropout().eval())
    with eval_mode(module):
        assert not any(part.training for part in module.modules())
    assert [part.training for part in module.modules()] == [True, True, False]
