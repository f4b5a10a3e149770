"""Losses of a user's own, in the training loop."""

import re
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

import rmc_agents as rmc
from helpers.agents import small_trainer
from rmc_agents import plugins
from rmc_agents.registry import NotRegistered
from rmc_agents.train import cli
from rmc_agents.train.algorithms import make_trainer
from rmc_agents.types import at

QUIET = Console(quiet=True)
SETTINGS = {"env": "recall", "core": "gru", "hidden_size": 8, "encoder_sizes": [8], "num_envs": 4, "unroll_length": 5}
SETTINGS |= {"eval_episodes": 0, "video": False}


def ppo_as_own(agent: rmc.ActorCritic, rollout: rmc.Rollout, targets: Any, *, entropy_cost: float = 0.03) -> Any:
    """PPO's loss; the agent is unrolled as by a loss that reads the core's outputs."""
    steps = at(rollout.steps, slice(-1))
    encoded = agent.encode(steps)
    memory, _ = agent.core.unroll(encoded, steps.is_first, rollout.initial_state)
    output = agent.heads(memory, encoded, steps.action_mask)
    return rmc.losses.clipped_actor_critic(
        output, rollout, targets, clip=0.2, value_cost=0.5, entropy_cost=entropy_cost
    )


@pytest.fixture(autouse=True)
def _registered() -> None:
    rmc.register_loss("own", ppo_as_own)


@pytest.mark.parametrize("settings", [{}, {"entropy_cost": 0.5}], ids=str)
def test_ppo_written_as_an_own_loss_is_ppo(settings: dict[str, float]) -> None:
    trainers = [
        small_trainer("ppo", "gru", ppo_minibatches=2, **settings),
        small_trainer("ppo", "gru", ppo_minibatches=2, loss="own", loss_args=settings),
    ]
    metrics = []
    for trainer in trainers:
        trainer.update()
        metrics.append(trainer.update())
    auto, own = (trainer.agent.state_dict() for trainer in trainers)
    assert all(torch.equal(auto[name], own[name]) for name in auto)
    assert set(metrics[1]) - set(metrics[0]) == {"losses/loss"}


def test_a_run_resumes_exactly_and_is_evaluated_without_the_loss(tmp_path: Path) -> None:
    settings = SETTINGS | {"loss": "own", "loss_args": {"entropy_cost": 0.1}, "learning_rate_schedule": "constant"}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    rmc.train(settings | {"total_frames": 80}, run_dir=whole, console=QUIET)
    rmc.train(settings | {"total_frames": 40}, run_dir=parts, console=QUIET)
    del plugins.registered["loss"]["own"]
    with pytest.raises(ValueError, match=r"there is no loss 'own'.* rmc.register_loss\('own', build\)"):
        rmc.resume(parts, {"total_frames": 80}, console=QUIET)
    assert rmc.evaluate(rmc.load(parts), episodes=2, max_steps=10).episodes == 2
    rmc.register_loss("own", ppo_as_own)
    rmc.resume(parts, {"total_frames": 80}, console=QUIET)
    ends = [rmc.load(run).agent.state_dict() for run in (whole, parts)]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_a_command_imports_the_module_of_the_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("whose.py").write_text("def half(agent, rollout, targets):\n    return 0.5 * agent.value.bias.sum()\n")
    flags = [word for name, value in SETTINGS.items() if name not in ("video", "encoder_sizes") for word in
             (f"--{name.replace('_', '-')}", str(value))]  # fmt: skip
    flags += ["--no-video", "--encoder-sizes", "8", "--total-frames", "20", "--run-dir", "run"]
    assert cli.main([*flags, "--loss", "whose:half"]) == 0
    assert plugins.flags() == ["--import", "whose:half"]
    resume = ["--resume", "run", "--total-frames", "40"]
    assert cli.main(resume) == 2  # no file imports code
    assert cli.main([*resume, "--import", "whose"]) == 2  # nor calls any function
    assert cli.main([*resume, "--import", "whose:half"]) == 0


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda agent, rollout, targets: 3, "own: expected a scalar tensor, or one and a dict of metrics, got int"),
        (lambda agent, rollout, targets: (agent.value.bias.sum(), [1]), r"got shape \[\] and list"),
        (lambda agent, rollout, targets: targets.value, r"got shape \[7, 6\]"),
        (lambda agent, rollout, targets: targets.value.mean(), "expected a loss that depends on the agent's weights"),
        (lambda agent, *_: agent.value.bias.sum().log(), "own: expected a finite loss, got -inf in its first call"),
        (lambda agent, rollout, targets: (agent.value.bias.sum(), {"x": "y"}), "metric x: expected a scalar, got str"),
        (lambda agent, *_: (agent.value.bias.sum(), {"a": 1, 2: 1}), r"metrics with texts as names, got \['a', 2\]"),
        (lambda agent, *_: (agent.value.bias.sum(), {"charts/SPS": 1}), "the training itself has a metric charts/SPS"),
        (lambda agent, *_: (agent.value.bias.sum(), {"time/x": 1}), "the training itself has a metric time/x"),
        (
            lambda agent, *_: (agent.value.bias.sum(), {"losses/loss": 1}),
            "the training itself has a metric losses/loss",
        ),
        (
            lambda agent, *_: setattr(agent, "aux", nn.Linear(2, 1)),
            "got aux.bias in addition, which would not be trained",
        ),
        (lambda agent, rollout: 3, r"cannot be called as own\(agent, rollout, targets, \*\*loss_args\): too many"),
    ],
)
def test_other_results_are_refused(loss: Any, message: str) -> None:
    rmc.register_loss("own", loss)
    with pytest.raises(ValueError, match=message):
        small_trainer(loss="own").update()


def test_it_may_return_what_cross_entropy_returns() -> None:
    calls = []

    def imitation(agent: rmc.ActorCritic, rollout: rmc.Rollout, targets: Any) -> Any:
        calls.append(1)
        output, _ = agent.unroll(rollout.steps, rollout.initial_state)
        actions = rollout.steps.prev_action[1:]
        return rmc.losses.cross_entropy(output.policy_logits[:-1], actions if len(calls) % 2 else actions * 0 - 1)

    rmc.register_loss("own", imitation)
    metrics = small_trainer("ppo", ppo_minibatches=2, loss="own").update()
    assert 0 <= metrics["charts/accuracy"] <= 1, "the minibatch that asks for nothing does not count"
    assert metrics["losses/loss"] == metrics["losses/cross_entropy"] / 2


def test_metrics_may_not_change_between_calls() -> None:
    calls = []

    def changing(agent: rmc.ActorCritic, rollout: rmc.Rollout, targets: Any) -> Any:
        calls.append(1)
        return agent.value.bias.sum(), {f"call_{len(calls)}": 1.0}

    rmc.register_loss("own", changing)
    trainer = small_trainer(loss="own")
    assert trainer.update()["call_1"] == 1.0
    with pytest.raises(ValueError, match="own: expected the metrics of the first call, call_1, got call_2"):
        trainer.update()


def test_a_loss_may_follow_the_progress_of_the_training() -> None:
    seen = []

    def scheduled(agent: rmc.ActorCritic, rollout: rmc.Rollout, targets: Any, *, progress: float = -1.0) -> Any:
        seen.append(progress)
        return agent.value.bias.sum()

    rmc.register_loss("own", scheduled)
    trainer = small_trainer(loss="own", total_frames=420)  # an update has 42 frames
    trainer.update()
    trainer.update()
    small_trainer(loss="own", loss_args={"progress": 0.5}).update()  # of the settings
    assert seen == [0.0, 0.1, 0.5]


def test_names_and_algorithms() -> None:
    with pytest.raises(NotRegistered, match="there is no loss 'owm'; did you mean 'own'"):
        small_trainer(loss="owm")
    with pytest.raises(ValueError, match="got an unexpected keyword argument 'entropy'"):
        small_trainer(loss="own", loss_args={"entropy": 1})
    config = small_trainer(loss="own").config
    for algo in ("supervised", "impala"):
        with pytest.raises(ValueError, match=re.escape(f"loss: expected algo a2c or ppo for own, got {algo}")):
            make_trainer(config.updated({"algo": algo}), torch.device("cpu"))
    assert "entropy_cost" in config.unused()
    assert "loss_args" not in config.unused()


def test_after_outputs_that_are_not_finite_a_new_run_is_advised(tmp_path: Path) -> None:
    console = Console(file=(out := StringIO()), width=1000)
    settings = {"env": "recall", "algo": "a2c", "optimizer": "adam", "learning_rate": 1e15, "core": "none"}
    settings |= {"num_envs": 4, "unroll_length": 5, "encoder_sizes": [8, 8, 8], "total_frames": 100}
    with pytest.raises(ValueError, match="the policy's outputs are not finite"):
        rmc.train(settings | {"eval_episodes": 0, "video": False}, run_dir=tmp_path / "run", console=console)
    assert "a resume would diverge again" in out.getvalue()


def test_after_a_divergence_a_new_run_is_advised(tmp_path: Path) -> None:
    def diverging(agent: rmc.ActorCritic, rollout: rmc.Rollout, targets: Any, progress: float) -> torch.Tensor:
        return agent.value.bias.sum() * (float("nan") if progress > 0 else 1.0)

    rmc.register_loss("own", diverging)
    console = Console(file=(out := StringIO()), width=1000)
    settings = {"env": "recall", "core": "none", "num_envs": 4, "unroll_length": 5, "encoder_sizes": [8]}
    settings |= {"loss": "own", "total_frames": 100, "eval_episodes": 0, "video": False}
    with pytest.raises(ValueError, match="training diverged after"):
        rmc.train(settings, run_dir=tmp_path / "run", console=console)
    assert "a resume would diverge again" in out.getvalue()
    assert f"--init-from {tmp_path / 'run'}" in out.getvalue()
