"""The update as a whole: its loss against returns by definition, its schedule, its clipping."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from helpers.agents import make_agent, rollout_with_every_ending
from oracles.returns import lambda_return
from rmc_agents.agent import ActorCritic
from rmc_agents.collect import Lanes
from rmc_agents.config import Config, TrainConfig
from rmc_agents.envs.registry import make_vector_env
from rmc_agents.train.a2c import A2C, a2c_loss
from rmc_agents.types import AgentOutput, State, TimeStep

CPU = torch.device("cpu")


def loss_of(agent: ActorCritic, steps: TimeStep, state: State, config: TrainConfig) -> torch.Tensor:
    """The loss from one unroll over all T + 1 steps."""
    output, _ = agent.unroll(steps, state)
    return a2c_loss(AgentOutput(*(x[:-1] for x in output)), output.value[-1], steps, config)[0]


@pytest.mark.parametrize("normalize", [False, True])
def test_the_loss_is_that_of_returns_by_definition(normalize: bool) -> None:
    settings = {"reward_scale": 0.5, "discount": 0.9, "trace_lambda": 0.8, "entropy_cost": 0.3, "value_cost": 0.7}
    config = Config().updated(settings | {"normalize_advantages": normalize}, "test").train
    torch.manual_seed(0)
    agent, rollout = make_agent("lstm"), rollout_with_every_ending()
    steps = rollout.steps
    output, _ = agent.unroll(steps, rollout.initial_state)
    loss = loss_of(agent, steps, rollout.initial_state, config)
    log_prob = functional.log_softmax(output.policy_logits, dim=-1).detach().numpy()
    value, reward = output.value.detach().numpy(), 0.5 * steps.prev_reward.numpy()
    terms = []
    for lane, pieces in enumerate([[(0, 9)], [(0, 4), (5, 9)], [(0, 4), (5, 9)]]):
        for first, last in pieces:  # an episode's part, from its first observation in the rollout to its last
            ends_terminated = bool(steps.terminated[last, lane])
            discounts = [0.0 if ends_terminated and t == last else 0.9 for t in range(first + 1, last + 1)]
            for t in range(first, last):
                rest = reward[t + 1 : last + 1, lane], discounts[t - first :], value[t + 1 : last + 1, lane]
                target = float(lambda_return(*rest, 0.8))
                action = int(steps.prev_action[t + 1, lane])
                terms.append((target - value[t, lane], log_prob[t, lane, action], log_prob[t, lane]))
    error = np.array([term[0] for term in terms])
    advantage = (error - error.mean()) / error.std() if normalize else error
    policy = -(advantage * np.array([term[1] for term in terms])).mean()
    entropy = -np.mean([(np.exp(term[2]) * term[2]).sum() for term in terms])
    expected = policy + 0.7 * (0.5 * error**2).mean() - 0.3 * entropy
    assert loss.item() == pytest.approx(expected, abs=1e-5)


def small_trainer(**settings: object) -> A2C:
    return A2C(Config().updated({"core": "none", "num_envs": 4, "unroll_length": 5} | settings, "test"), CPU)


def test_the_learning_rate_falls_linearly_or_stays() -> None:
    for schedule, expected in (("linear", [0.4, 0.3, 0.2, 0.1]), ("constant", [0.4] * 4)):
        trainer = small_trainer(learning_rate=0.4, learning_rate_schedule=schedule, total_frames=80)
        rates = [trainer.update()["charts/learning_rate"].item() for _ in range(4)]
        assert rates == pytest.approx(expected)


def test_gradients_are_clipped_before_the_step() -> None:
    trainer = small_trainer(max_grad_norm=1e-3)
    reported = trainer.update()["losses/grad_norm"].item()
    norm = math.sqrt(sum(p.grad.square().sum().item() for p in trainer.agent.parameters() if p.grad is not None))
    assert reported > 1e-3
    assert norm == pytest.approx(1e-3, rel=1e-3)


def test_divergence_stops_before_the_weights_are_spoilt() -> None:
    trainer = small_trainer()
    trainer.agent.value.bias.data.fill_(1e30)  # its square is beyond float32
    before = [parameter.clone() for parameter in trainer.agent.parameters()]
    with pytest.raises(ValueError, match="training diverged"):
        trainer.update()
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.agent.parameters(), strict=True))


def test_an_episode_that_ends_both_ways_is_terminated() -> None:
    env = make_vector_env("CartPole-v1", 2)
    lanes = Lanes(env, seed=0, device=CPU)
    both = np.ones(2, bool)
    env.step = lambda action: (np.zeros((2, 4), np.float32), np.ones(2), both, both, {})  # type: ignore[method-assign]
    steps = lanes.step(torch.zeros(2, dtype=torch.int64))
    assert steps.terminated.all()
    assert not steps.truncated.any()


@pytest.mark.parametrize("core", ["rmc", "lstm", "gru", "rnn", "relational-rnn", "none"])
def test_learning_from_the_recording_is_learning_from_an_unroll(core: str) -> None:
    """Loss and every gradient, through three rollouts with episodes that end in them."""
    settings = {"core": core, "env": "recall", "hidden_size": 8, "head_size": 4, "encoder_sizes": [8]}
    trainer = small_trainer(**settings)
    parameters = [p for p in trainer.agent.parameters() if p.requires_grad]
    for _ in range(3):
        rollout = trainer.collector.collect()
        expected = loss_of(trainer.agent, rollout.steps, rollout.initial_state, trainer.train)
        expected_gradients = torch.autograd.grad(expected, parameters)
        bootstrap = trainer._bootstrap_value(rollout)
        loss, _ = a2c_loss(trainer.collector.replay(), bootstrap, rollout.steps, trainer.train)
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(torch.autograd.grad(loss, parameters), expected_gradients, rtol=1e-4, atol=1e-6)
        assert rollout.steps.is_first.any()
