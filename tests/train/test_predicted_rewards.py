"""The reward head: its loss by definition, and that it changes nothing else."""

from pathlib import Path

import pytest
import torch
from gymnasium.spaces import Box
from rich.console import Console

from helpers.agents import LANES, LENGTH, SPEC, make_agent, rollout_with_every_ending, small_trainer
from rmc_agents import losses
from rmc_agents.agent import ActorCritic
from rmc_agents.envs.registry import make_vector_env
from rmc_agents.evaluate import cli as evaluate_cli
from rmc_agents.runs import checkpoint
from rmc_agents.runs.saved import load
from rmc_agents.spaces import SpaceSpec
from rmc_agents.train import cli
from rmc_agents.train.run import train
from rmc_agents.types import AgentOutput, OutputWithRewards, at

HEADS = [(), (7,)]


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("loss_of", [losses.a2c, losses.ppo, losses.vtrace])
def test_the_loss_by_definition(loss_of, heads):
    torch.manual_seed(0)
    agent, rollout = make_agent("lstm", predict_rewards=True, head_sizes=heads), rollout_with_every_ending()
    steps = rollout.steps
    output, _ = agent.unroll(steps, rollout.initial_state)
    errors = []
    for t in range(LENGTH):
        for lane in range(LANES):
            if not steps.is_first[t + 1, lane]:  # not from one episode's end to the next
                reward = min(1.0, max(-1.0, float(steps.prev_reward[t + 1, lane])))
                errors.append((reward - float(output.reward.detach()[t, lane, steps.prev_action[t + 1, lane]])) ** 2)
    expected = sum(errors) / len(errors)
    without, _ = loss_of(AgentOutput(*output[:2]), rollout, discount=0.9)
    loss, metrics = loss_of(output, rollout, discount=0.9, reward_cost=3.0)
    assert float(metrics["losses/reward_loss"]) == pytest.approx(expected, rel=1e-5)
    assert (loss - without).item() == pytest.approx(3 * expected, rel=1e-4)
    loss.backward()
    assert agent.reward.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("heads", HEADS)
def test_policy_and_value_are_those_of_an_agent_without(heads):
    rollout = rollout_with_every_ending()
    agents = []
    for predicts in (False, True):
        torch.manual_seed(0)
        agents.append(make_agent("lstm", predict_rewards=predicts, head_sizes=heads))
    outputs = [agent.unroll(rollout.steps, rollout.initial_state)[0] for agent in agents]
    steps = [agent.step(at(rollout.steps, 0), rollout.initial_state)[0] for agent in agents]
    assert [type(output) for output in (*outputs, *steps)] == [AgentOutput, OutputWithRewards, AgentOutput, AgentOutput]
    assert outputs[1].reward.shape == (LENGTH + 1, LANES, SPEC.num_actions)
    for one, other in (outputs, steps):
        torch.testing.assert_close(one.policy_logits, other.policy_logits)
        torch.testing.assert_close(one.value, other.value)


def test_a_trainer_takes_its_cost_from_the_settings():
    trainers = [small_trainer(predict_rewards=True, reward_cost=cost, max_grad_norm=1e6) for cost in (0.0, 2.0)]
    for trainer in trainers:
        rollout = trainer.collector.collect()
        for loss, _, _ in trainer.minibatch_losses(rollout):
            loss.backward()
            break
    gradients = [trainer.agent.reward.weight.grad.abs().sum() for trainer in trainers]
    assert gradients[0] == 0 < gradients[1]


@pytest.mark.parametrize("algo", ["a2c", "impala"])
def test_a_run_is_trained_resumed_and_evaluated(algo, tmp_path: Path):
    run = tmp_path / "run"
    flags = ["--core", "gru", "--hidden-size", "8", "--encoder-sizes", "8", "--num-envs", "4", "--no-video"]
    flags += ["--unroll-length", "5", "--eval-episodes", "0", "--algo", algo, "--predict-rewards"]
    flags += ["--actors", "2", "--lanes-per-actor", "2"] if algo == "impala" else []
    assert cli.main([*flags, "--total-frames", "40", "--run-dir", str(run)]) == 0
    before = checkpoint.load(next((run / "checkpoints").glob("*2.safetensors")))["agent"]["reward.weight"]
    assert cli.main(["--resume", str(run), "--total-frames", "80"]) == 0
    assert not torch.equal(load(run).agent.reward.weight, before)
    assert evaluate_cli.main([str(run), "--episodes", "2", "--max-steps", "20"]) == 0


@pytest.mark.parametrize("predicts", [False, True])
def test_init_from_a_supervised_agent_needs_the_same_head(predicts, tmp_path: Path):
    settings = {"env": "nth-farthest", "core": "gru", "encoder_sizes": (8,), "num_envs": 4, "video": False}
    settings |= {"total_frames": 80, "eval_episodes": 0, "predict_rewards": predicts}
    quiet = Console(quiet=True)
    run = train(settings | {"algo": "supervised"}, run_dir=tmp_path / "run", console=quiet)
    other = settings | {"predict_rewards": not predicts, "init_from": run}
    with pytest.raises(ValueError, match=rf"needs other settings: predict_rewards {predicts} \(got {not predicts}\)"):
        train(other, run_dir=tmp_path / "other", console=quiet)


def test_only_discrete_actions_have_predicted_rewards():
    spec = SpaceSpec.of(make_vector_env("Pendulum-v1", 1))
    assert isinstance(make_vector_env("Pendulum-v1", 1).single_action_space, Box)
    with pytest.raises(ValueError, match=r"predict_rewards: expected Discrete actions, each with its reward, got obs"):
        ActorCritic(spec, "gru", predict_rewards=True)


def test_where_it_has_no_effect_it_is_said():
    config = small_trainer().config
    assert "reward_cost" in config.unused()
    assert not {"reward_cost", "predict_rewards"} & config.updated({"predict_rewards": True}, "test").unused()
    for algo in ("supervised", "recurrent-ppo"):
        assert {"reward_cost", "predict_rewards"} <= config.updated({"algo": algo}, "test").unused()
