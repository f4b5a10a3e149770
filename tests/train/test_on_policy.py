"""A2C and PPO: their losses by definition, their update, and that one pass over everything is the same in both."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from helpers.agents import LANES, LENGTH, make_agent, rollout_with_every_ending, small_trainer
from oracles.returns import lambda_return
from rmc_agents import losses
from rmc_agents.config import Config
from rmc_agents.cores import LSTM, Core
from rmc_agents.cores.registry import register_core
from rmc_agents.envs.registry import make_vector_env
from rmc_agents.stream import Lanes
from rmc_agents.train import learner
from rmc_agents.train.distributed.shares import split_lanes
from rmc_agents.train.impala.actors import Actor
from rmc_agents.train.on_policy import minibatches
from rmc_agents.types import AgentOutput

COSTS = {"clip": 0.2, "value_cost": 0.5, "entropy_cost": 0.03}
CPU = torch.device("cpu")


@pytest.mark.parametrize("normalize", [False, True])
def test_the_loss_is_that_of_returns_by_definition(normalize: bool) -> None:
    settings = {"reward_scale": 0.5, "discount": 0.9, "trace_lambda": 0.8, "entropy_cost": 0.3, "value_cost": 0.7}
    torch.manual_seed(0)
    agent, rollout = make_agent("lstm"), rollout_with_every_ending()
    steps = rollout.steps
    output, _ = agent.unroll(steps, rollout.initial_state)
    loss, _ = losses.a2c(output, rollout, normalize_advantages=normalize, **settings)
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


def test_the_learning_rate_falls_linearly_or_stays() -> None:
    schedules: list[tuple[dict[str, Any], list[float]]] = [
        ({}, [0.4, 0.3, 0.2, 0.1]),
        ({"decay_start": 0.5}, [0.4, 0.4, 0.4, 0.2]),
        ({"learning_rate_schedule": "constant"}, [0.4] * 4),
    ]
    for schedule, expected in schedules:
        trainer = small_trainer(num_envs=4, unroll_length=5, learning_rate=0.4, total_frames=80, **schedule)
        rates = [trainer.update()["charts/learning_rate"].item() for _ in range(4)]
        assert rates == pytest.approx(expected)


def test_gradients_are_clipped_before_the_step() -> None:
    trainer = small_trainer(max_grad_norm=1e-3)
    reported = trainer.update()["losses/grad_norm"].item()
    norm = math.sqrt(sum(p.grad.square().sum().item() for p in trainer.agent.parameters() if p.grad is not None))
    assert reported > 1e-3
    assert norm == pytest.approx(1e-3, rel=1e-3)


def test_buffers_of_own_parts_are_shared_after_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    shared: list[Any] = []
    monkeypatch.setattr(learner.distributed, "share_buffers", shared.append)
    register_core("shared", LSTM)
    for core, times in (("lstm", 0), ("shared", 2)):
        trainer = small_trainer("ppo", core, ppo_minibatches=2)
        trainer.update()
        assert shared == [trainer.agent] * times


def test_gradients_of_an_update_are_forgotten_in_the_next() -> None:
    trainer = small_trainer(learning_rate=1e-12, max_grad_norm=1e9)
    rollout = trainer.collector.collect()
    first, second = (trainer.learn(rollout)["losses/grad_norm"].item() for _ in range(2))
    assert second == pytest.approx(first, rel=1e-3)


def test_divergence_leaves_the_weights_unchanged() -> None:
    trainer = small_trainer()
    trainer.agent.value.bias.data.fill_(1e30)  # its square is beyond float32
    before = [parameter.clone() for parameter in trainer.agent.parameters()]
    with pytest.raises(ValueError, match="training diverged"):
        trainer.update()
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.agent.parameters(), strict=True))


@pytest.mark.parametrize("algo", ["ppo", "impala"])
def test_a_state_that_becomes_nan_ends_the_training(algo: str) -> None:
    class Flag(Core):
        first, later = 0.0, math.inf

        def initial_leaves(self) -> Any:
            return (torch.full((1, 1), self.first),)

        def cell(self, x: torch.Tensor, state: Any) -> Any:
            return x, (torch.full_like(state[0], self.later),)

    def update() -> None:
        if algo == "ppo":
            small_trainer(algo, "flag").update()
        else:
            settings = {"algo": algo, "env": "recall", "core": "flag", "unroll_length": 3, "lanes_per_actor": 2}
            Actor(Config().updated(settings).settled(), 0).act(0.0)

    register_core("flag", Flag)
    update()
    Flag.later = math.nan
    with pytest.raises(ValueError, match=r"training diverged .* \(the core's state is NaN\): try a smaller"):
        update()
    Flag.first = math.nan
    update()


def test_an_episode_that_ends_both_ways_is_terminated() -> None:
    env = make_vector_env("CartPole-v1", 2)
    lanes = Lanes(env, seed=0, device=CPU)
    both = np.ones(2, bool)
    env.step = lambda action: (np.zeros((2, 4), np.float32), np.ones(2), both, both, {})  # type: ignore[method-assign]
    steps = lanes.step(torch.zeros(2, dtype=torch.int64))
    assert steps.terminated.all()
    assert not steps.truncated.any()


@pytest.mark.parametrize("core", ["lstm", "none"])
def test_one_pass_over_all_lanes_is_a2c(core: str) -> None:
    """Weights after five rollouts, with episodes that end in them: at a ratio of 1 nothing is clipped."""
    a2c, ppo = small_trainer("a2c", core), small_trainer("ppo", core, ppo_epochs=1, ppo_minibatches=1)
    for _ in range(5):
        expected, found = a2c.update(), ppo.update()
        for name in expected.keys() - {"losses/policy_loss"}:  # of which only the gradients are alike
            torch.testing.assert_close(found[name], expected[name], rtol=1e-3, atol=1e-5)
    for one, other in zip(a2c.agent.parameters(), ppo.agent.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_the_clipped_loss_and_its_gradient_by_definition() -> None:
    torch.manual_seed(0)
    log_ratio = torch.randn(LENGTH, LANES).mul(0.3).requires_grad_()
    advantage, valid = torch.randn(LENGTH, LANES), torch.rand(LENGTH, LANES) < 0.7
    expected, gradient = [], np.zeros((LENGTH, LANES))
    for t, lane in np.ndindex(LENGTH, LANES):
        ratio, a = float(log_ratio[t, lane].detach().exp()), float(advantage[t, lane])
        if not valid[t, lane]:
            continue
        expected.append(-min(ratio * a, min(max(ratio, 0.8), 1.2) * a))
        moves = ratio < 1.2 if a > 0 else ratio > 0.8
        gradient[t, lane] = -ratio * a if moves else 0.0
    loss = losses.clipped_policy_loss(log_ratio, advantage, valid, 0.2)
    loss.backward()
    assert loss.item() == pytest.approx(np.mean(expected), rel=1e-5)
    np.testing.assert_allclose(log_ratio.grad, gradient / len(expected), rtol=1e-5, atol=1e-7)


def test_filler_steps_enter_neither_loss_nor_gradient() -> None:
    rollout = rollout_with_every_ending()
    valid = ~rollout.steps.is_first[1:]
    assert not valid.all()
    logits = torch.randn_like(rollout.policy_logits).requires_grad_()
    value = torch.randn(LENGTH, LANES).requires_grad_()
    targets = losses.Targets(torch.randn(LENGTH, LANES), torch.randn(LENGTH, LANES), valid)
    loss, _ = losses.clipped_actor_critic(AgentOutput(logits, value), rollout, targets, **COSTS)
    loss.backward()
    for leaf in (logits, value):
        assert leaf.grad is not None
        assert not leaf.grad[~valid].any()
        assert leaf.grad[valid].any()
    poisoned = losses.Targets(*(torch.where(valid, x, torch.nan) for x in targets[:2]), valid)
    assert torch.equal(losses.clipped_actor_critic(AgentOutput(logits, value), rollout, poisoned, **COSTS)[0], loss)


@pytest.mark.parametrize("algo", ["a2c", "ppo"])
def test_without_any_step_nothing_is_learned(algo: str) -> None:
    """Though the optimizer has momentum from an update before."""
    trainer = small_trainer(algo, ppo_minibatches=2)
    trainer.update()
    rollout, before = trainer.collector.collect(), [p.clone() for p in trainer.agent.parameters()]
    rollout.steps.is_first[1:] = True
    assert trainer.learn(rollout).keys() == {"charts/recurrent_state_norm"}
    assert all(map(torch.equal, before, trainer.agent.parameters()))
    rollout.steps.is_first[1:, 0] = False  # one lane of six, so one minibatch of two
    metrics = trainer.learn(rollout)
    assert all(value.isfinite() for value in metrics.values())
    assert not all(map(torch.equal, before, trainer.agent.parameters()))
    assert trainer.updates == 3


def test_the_ratio_is_to_the_policy_that_acted() -> None:
    torch.manual_seed(0)
    rollout = rollout_with_every_ending()
    rollout = rollout._replace(policy_logits=torch.randn_like(rollout.policy_logits))
    output = AgentOutput(torch.randn_like(rollout.policy_logits), torch.zeros(LENGTH, LANES))
    valid = ~rollout.steps.is_first[1:]
    targets = losses.Targets(torch.zeros(LENGTH, LANES), torch.randn(LENGTH, LANES), valid)
    clip = COSTS["clip"]
    policy_loss, ratios = [], []
    for t, lane in np.ndindex(LENGTH, LANES):
        if valid[t, lane]:
            action = int(rollout.steps.prev_action[t + 1, lane])
            now, then = (logits[t, lane].softmax(-1)[action].item() for logits in (output[0], rollout.policy_logits))
            ratios.append(now / then)
            clipped = min(max(ratios[-1], 1 - clip), 1 + clip)
            policy_loss.append(-min(ratios[-1] * targets.advantage[t, lane], clipped * targets.advantage[t, lane]))
    _, metrics = losses.clipped_actor_critic(output, rollout, targets, **COSTS)
    assert metrics["losses/policy_loss"].item() == pytest.approx(float(np.mean(policy_loss)), rel=1e-4)
    assert metrics["losses/clipfrac"].item() == pytest.approx(np.mean(np.abs(np.array(ratios) - 1) > clip))
    assert metrics["losses/approx_kl"].item() == pytest.approx(np.mean([r - 1 - np.log(r) for r in ratios]), rel=1e-4)


def test_every_pass_takes_every_lane_once() -> None:
    parts = [part for (part,) in minibatches(split_lanes(10, learners=1), epochs=3, parts=4)]
    assert [len(part) for part in parts] == [3, 3, 2, 2] * 3
    assert [len(part) for (part,) in minibatches(split_lanes(2, learners=1), epochs=1, parts=4)] == [1, 1]
    for first in range(0, 12, 4):
        assert torch.cat(parts[first : first + 4]).sort().values.tolist() == list(range(10))


def test_a_checkpoint_from_before_there_was_a_generator_of_the_shuffling() -> None:
    trainer, other = small_trainer("ppo"), small_trainer("ppo", seed=1)
    state = trainer.get_state()
    older = {name: part for name, part in state.items() if name != "shuffling"} | {"torch_rng": state["shuffling"]}
    random = torch.get_rng_state()
    other.set_state(older)
    torch.set_rng_state(random)
    assert [*map(str, trainer._minibatches())] == [*map(str, other._minibatches())]


def test_every_pass_puts_other_lanes_together() -> None:
    torch.manual_seed(0)
    whole = split_lanes(64, learners=1)
    passes = [{frozenset(part.tolist()) for (part,) in minibatches(whole, epochs=1, parts=4)} for _ in range(3)]
    assert all(not one & other for one, other in itertools.combinations(passes, 2))
    assert frozenset(range(16)) not in passes[0]


def test_lanes_of_a_rollout_are_whole_sequences_with_their_own_state() -> None:
    trainer = small_trainer("ppo", "lstm")
    trainer.update()
    rollout = trainer.collector.collect()
    rollout = rollout._replace(targets=torch.arange(rollout.value.numel()).view_as(rollout.value))
    lanes = torch.tensor([4, 1])
    part = rollout.lanes(lanes)
    for field, whole in zip(part.steps[:6], rollout.steps[:6], strict=True):
        assert torch.equal(field, torch.stack([whole[:, 4], whole[:, 1]], dim=1))
    assert torch.equal(part.initial_state.hidden, rollout.initial_state.hidden[lanes])
    assert torch.equal(part.value, rollout.value[:, lanes])
    assert torch.equal(part.policy_logits, rollout.policy_logits[:, lanes])
    assert part.targets is not None
    assert torch.equal(part.targets, rollout.targets[:, lanes])


def test_with_the_weights_that_acted_all_three_losses_are_one() -> None:
    """In their gradients; and PPO takes its values from the rollout, where they are the same."""
    agent, rollout = make_agent("lstm"), rollout_with_every_ending()
    parameters = [parameter for parameter in agent.parameters() if parameter.requires_grad]
    with torch.no_grad():
        acted, _ = agent.unroll(rollout.steps, rollout.initial_state)
    rollout = rollout._replace(policy_logits=acted.policy_logits[:-1], value=acted.value[:-1])
    gradients = []
    for loss in (losses.a2c, losses.ppo, losses.vtrace):
        output, _ = agent.unroll(rollout.steps, rollout.initial_state)
        gradients.append(torch.autograd.grad(loss(output, rollout, discount=0.9)[0], parameters))
    for found in gradients[1:]:
        torch.testing.assert_close(found, gradients[0], rtol=1e-4, atol=1e-6)


def test_the_norm_of_a_state_is_that_of_its_real_and_complex_numbers_without_counters() -> None:
    assert learner.state_norm((torch.full((2, 1), 3 + 4j), torch.full((2, 2, 2), 6.0))) == 13.0
    assert learner.state_norm((torch.tensor([3.0, 5.0]), torch.tensor([300, 300]))) == 4.0
