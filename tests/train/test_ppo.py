"""PPO: its loss by definition, its minibatches, and that one pass over everything is A2C."""

import itertools

import numpy as np
import pytest
import torch

from helpers.agents import LANES, LENGTH, rollout_with_every_ending, tiny_trainer
from rmc_agents import losses
from rmc_agents.config import Config
from rmc_agents.train.a2c import A2C, Targets
from rmc_agents.train.ppo import PPO, _lanes_of, _minibatches, ppo_loss
from rmc_agents.types import AgentOutput

CPU = torch.device("cpu")


@pytest.mark.parametrize("core", ["rmc", "lstm", "gru", "none"])
def test_one_pass_over_all_lanes_is_a2c(core: str) -> None:
    """Weights after five rollouts, with episodes that end in them: at a ratio of 1 nothing is clipped."""
    a2c, ppo = tiny_trainer(A2C, core), tiny_trainer(PPO, core, algo="ppo", ppo_epochs=1, ppo_minibatches=1)
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
    targets = Targets(torch.randn(LENGTH, LANES), torch.randn(LENGTH, LANES), valid)
    train = Config().train
    loss, _ = ppo_loss(AgentOutput(logits, value), rollout, targets, train)
    loss.backward()
    for leaf in (logits, value):
        assert leaf.grad is not None
        assert not leaf.grad[~valid].any()
        assert leaf.grad[valid].any()
    poisoned = Targets(*(torch.where(valid, x, torch.nan) for x in targets[:2]), valid)
    assert torch.equal(ppo_loss(AgentOutput(logits, value), rollout, poisoned, train)[0], loss)


def test_the_ratio_is_to_the_policy_that_acted() -> None:
    torch.manual_seed(0)
    rollout = rollout_with_every_ending()
    rollout = rollout._replace(policy_logits=torch.randn_like(rollout.policy_logits))
    output = AgentOutput(torch.randn_like(rollout.policy_logits), torch.zeros(LENGTH, LANES))
    valid = ~rollout.steps.is_first[1:]
    targets = Targets(torch.zeros(LENGTH, LANES), torch.randn(LENGTH, LANES), valid)
    config = Config().train
    policy_loss, ratios = [], []
    for t, lane in np.ndindex(LENGTH, LANES):
        if valid[t, lane]:
            action = int(rollout.steps.prev_action[t + 1, lane])
            now, then = (logits[t, lane].softmax(-1)[action].item() for logits in (output[0], rollout.policy_logits))
            ratios.append(now / then)
            clipped = min(max(ratios[-1], 1 - config.ppo_clip), 1 + config.ppo_clip)
            policy_loss.append(-min(ratios[-1] * targets.advantage[t, lane], clipped * targets.advantage[t, lane]))
    _, metrics = ppo_loss(output, rollout, targets, config)
    assert metrics["losses/policy_loss"].item() == pytest.approx(float(np.mean(policy_loss)), rel=1e-4)
    assert metrics["losses/clipfrac"].item() == pytest.approx(np.mean(np.abs(np.array(ratios) - 1) > config.ppo_clip))
    assert metrics["losses/approx_kl"].item() == pytest.approx(np.mean([r - 1 - np.log(r) for r in ratios]), rel=1e-4)


def test_every_pass_takes_every_lane_once() -> None:
    parts = list(_minibatches(num_lanes=10, epochs=3, minibatches=4))
    assert [len(part) for part in parts] == [3, 3, 2, 2] * 3
    assert [len(part) for part in _minibatches(num_lanes=2, epochs=1, minibatches=4)] == [1, 1]
    for first in range(0, 12, 4):
        assert torch.cat(parts[first : first + 4]).sort().values.tolist() == list(range(10))


def test_every_pass_puts_other_lanes_together() -> None:
    torch.manual_seed(0)
    passes = [{frozenset(part.tolist()) for part in _minibatches(64, epochs=1, minibatches=4)} for _ in range(3)]
    assert all(not one & other for one, other in itertools.combinations(passes, 2))
    assert frozenset(range(16)) not in passes[0]


def test_lanes_of_a_rollout_are_whole_sequences_with_their_own_state() -> None:
    trainer = tiny_trainer(PPO, "lstm", algo="ppo")
    trainer.update()
    rollout = trainer.collector.collect()
    lanes = torch.tensor([4, 1])
    part = _lanes_of(rollout, lanes)
    for field, whole in zip(part.steps, rollout.steps, strict=True):
        assert torch.equal(field, torch.stack([whole[:, 4], whole[:, 1]], dim=1))
    assert torch.equal(part.initial_state.hidden, rollout.initial_state.hidden[lanes])
    assert torch.equal(part.value, rollout.value[:, lanes])
    assert torch.equal(part.policy_logits, rollout.policy_logits[:, lanes])


def test_the_rollout_holds_what_the_agent_said() -> None:
    """Logits and values as an unroll from the stored state gives them: the ratio of the first pass is 1."""
    trainer = tiny_trainer(PPO, "rmc", algo="ppo")
    for _ in range(3):
        rollout = trainer.collector.collect()
        steps = type(rollout.steps)(*(field[:-1] for field in rollout.steps))
        output, _ = trainer.agent.unroll(steps, rollout.initial_state)
        torch.testing.assert_close(rollout.policy_logits, output.policy_logits, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(rollout.value, output.value, rtol=1e-4, atol=1e-5)


def test_graphs_are_refused() -> None:
    with pytest.raises(ValueError, match="expected algo a2c with optimizer adam, got ppo with muon"):
        tiny_trainer(PPO, "none", algo="ppo", cuda_graphs=True)


def test_acting_uses_the_same_buffers_in_every_rollout() -> None:
    trainer = tiny_trainer(PPO, "rmc", algo="ppo")
    trainer.update()
    taken = []
    for _ in range(3):
        rollout = trainer.collector.collect()
        taken.append(trainer.collector._recording._core._tape)
        trainer.learn(rollout)
    assert taken[0] is not None
    assert taken[0] is taken[1] is taken[2]
