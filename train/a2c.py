"""A2C: a synchronous actor-critic (Mnih et al., 2016), one rollout of all lanes and one update, again and again."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rmc_agents import checkpoint, losses
from rmc_agents.acting import Collector, Lanes
from rmc_agents.agent import ActorCritic
from rmc_agents.config import Config, TrainConfig
from rmc_agents.envs.factory import make_vector_env
from rmc_agents.types import AgentOutput, Rollout, State, TimeStep

from . import cuda_graphs
from .optimizers import make_optimizer
from .trainer import Metrics, describe


class A2C:
    """The whole of a training run that a checkpoint keeps: agent, optimizer, lanes and counters.

    Args:
      config: all settings.
      device: where the agent lives.

    Attributes:
      backend: which code runs the core's scan.
      frames: environment steps so far, over all lanes.
      updates: calls of `update` so far.
      trust_flag: see `Trainer`.
    """

    trust_flag = ""

    def __init__(self, config: Config, device: torch.device) -> None:
        self.config, self.train = config, config.train
        torch.manual_seed(config.run.seed)
        graphs = config.run.cuda_graphs
        if graphs:
            cuda_graphs.check_settings(self.train)
            cuda_graphs.check_device(device)
        workers, backend = config.env.env_workers, config.env.env_backend
        env = make_vector_env(config.env.env, config.env.num_envs, num_workers=workers, backend=backend)
        self.lanes = (cuda_graphs.StagedLanes if graphs else Lanes)(env, config.run.seed, device)
        self.agent = ActorCritic(self.lanes.spec, config.core, config.agent).to(device)
        self.agent.core.backend, self.agent.core.precision = config.run.backend, config.run.precision
        self.backend = self.agent.core.chosen_scan().backend
        self.optimizer = make_optimizer(self.agent, self.train)
        if graphs:
            self.optimizer.make_capturable()
        generator = torch.Generator(device).manual_seed(config.run.seed)
        collector = cuda_graphs.GraphedCollector if graphs else Collector
        self.collector = collector(self.agent, self.lanes, self.train.unroll_length, generator)
        self.frames = 0
        self.updates = 0
        self._prepare()

    def _prepare(self) -> None:
        """Anew where the optimizer's state has been replaced: graphs hold on to the tensors they were captured with."""
        self._gradients, self._step = self._find_gradients, self.optimizer.step
        if self.config.run.cuda_graphs:
            self._gradients = cuda_graphs.graphed(self._find_gradients)
            self._step = cuda_graphs.graphed(self.optimizer.step)

    def update(self) -> Metrics:
        """Collect one rollout and learn from it once. Returns scalars that name what happened."""
        return self.learn(self.collector.collect())

    def learn(self, rollout: Rollout) -> Metrics:
        """Learn from the rollout that was collected last."""
        learning_rate = self._learning_rate()
        self.optimizer.set_learning_rate(learning_rate)
        metrics = self._optimize(rollout)
        self.frames += self.train.unroll_length * self.lanes.num_lanes
        self.updates += 1
        return metrics | {
            "charts/learning_rate": torch.tensor(learning_rate),
            "charts/recurrent_state_norm": _state_norm(self.collector.state),
        }

    def _optimize(self, rollout: Rollout) -> Metrics:
        """One step of the optimizer."""
        metrics = self._gradients(rollout)
        metrics = dict(zip(metrics, torch.stack([*metrics.values()]), strict=True))  # a replay overwrites its own
        self._check_finite(metrics)
        self._step()
        return metrics

    def _find_gradients(self, rollout: Rollout) -> Metrics:
        """Sets the parameters' gradients, clipped, to those of the rollout collected last; returns its scalars."""
        output = self.collector.replay()
        return self._backward(*a2c_loss(output, self._bootstrap_value(rollout), rollout.steps, self.train))

    def _backward(self, loss: Tensor, metrics: Metrics) -> Metrics:
        """Sets the parameters' gradients, clipped, to those of the loss; adds their norm to its scalars."""
        self.optimizer.zero_grad()
        loss.backward()
        grad_norm = nn.utils.clip_grad_norm_(self.agent.parameters(), self.train.max_grad_norm)
        return metrics | {"losses/grad_norm": grad_norm}

    def _check_finite(self, metrics: Metrics) -> None:
        """Raises ValueError before the step that would spoil the weights."""
        grad_norm = metrics["losses/grad_norm"]
        if not torch.isfinite(grad_norm):
            raise ValueError(
                f"training diverged after {self.frames:,} frames (the gradient's norm is {grad_norm.item()}): try a "
                "smaller --learning-rate; the checkpoints saved before are sound"
            )

    @torch.no_grad()
    def _bootstrap_value(self, rollout: Rollout) -> Tensor:
        """The value of the rollout's last observation, `[B]`."""
        last = TimeStep(*(field[-1] for field in rollout.steps))
        return self.agent.step(last, self.collector.state)[0].value

    def _learning_rate(self) -> float:
        if self.train.learning_rate_schedule == "constant":
            return self.train.learning_rate
        return self.train.learning_rate * max(0.0, 1.0 - self.frames / self.train.total_frames)

    def describe(self) -> list[str]:
        """What a run's first lines say of it."""
        return [describe(self, self.agent.core)]

    def save(self, run_dir: Path, seconds: float) -> Path:
        """Save a checkpoint in a run's folder, after so many seconds of training."""
        tree = self.get_state() | {"seconds": seconds}
        return checkpoint.save_numbered(run_dir, self.updates, tree, self.config.run.keep_checkpoints)

    def resume_notes(self, state: dict[str, Any]) -> list[str]:
        """Why the run does not go on exactly from a checkpoint's tree; nothing if it does."""
        notes = []
        if state["collector"]["device"] != self.lanes.device.type:
            notes.append("the device is another: the draws of actions start anew, so the resume is not exact")
        if state["config"].get("cuda_graphs", False) != self.config.run.cuda_graphs:
            notes.append("with graphs the optimizer rounds otherwise than without, so the resume is not exact")
        if state["collector"]["lanes"] is None:
            notes.append(
                "this environment's state cannot be saved: its episodes start anew, so the resume is not exact"
            )
        return notes

    def get_state(self) -> dict[str, Any]:
        """The tree of a checkpoint (see `checkpoint`)."""
        return {
            "config": self.config.to_mapping(),
            "spec": self.lanes.spec,
            "frames": self.frames,
            "updates": self.updates,
            "agent": self.agent.state_dict(),
            "optimizer": self.optimizer.get_state(),
            "collector": self.collector.get_state(),
            "torch_rng": torch.get_rng_state(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's tree, to the bit where the environment can be saved."""
        self.agent.load_state_dict(state["agent"])
        self.optimizer.set_state(state["optimizer"])
        self._prepare()
        if state["collector"]["lanes"] is None:
            self.lanes.reset(self.config.run.seed + state["frames"])  # other episodes than those at the run's start
        self.collector.set_state(state["collector"])
        torch.set_rng_state(state["torch_rng"])
        self.frames, self.updates = state["frames"], state["updates"]


class Targets(NamedTuple):
    """What a rollout says its T transitions were worth; each `[T, B]`, without gradient."""

    value: Tensor  # lambda-returns of the scaled rewards
    advantage: Tensor  # their excess over the value that was expected, normalised if so configured
    valid: Tensor  # bool: a real transition, no filler


def find_targets(value: Tensor, bootstrap_value: Tensor, steps: TimeStep, config: TrainConfig) -> Targets:
    """The targets of values `[T, B]`, of the first T of the time steps `[T+1, B, ...]`.

    Args:
      value: `[T, B]`.
      bootstrap_value: the value of the last time step, `[B]`.
      steps: `[T+1, B, ...]`.
      config: discounts and so on.
    """
    weights = losses.transition_weights(
        steps.is_first, steps.terminated, steps.truncated, config.discount, config.trace_lambda
    )
    reward = steps.prev_reward[1:] * config.reward_scale
    value = value.detach()
    next_value = torch.cat([value[1:], bootstrap_value.unsqueeze(0)])
    target = losses.lambda_returns(reward, weights.discount_t, next_value, weights.lambda_t)
    advantage = target - value
    if config.normalize_advantages:
        advantage = losses.masked_normalize(advantage, weights.valid)
    return Targets(target, advantage, weights.valid)


def a2c_loss(
    output: AgentOutput, bootstrap_value: Tensor, steps: TimeStep, config: TrainConfig
) -> tuple[Tensor, Metrics]:
    """The actor-critic loss of one rollout, a mean over its transitions, and the scalars worth watching.

    Args:
      output: what the agent says to the first T time steps, `[T, B, ...]`; the loss's gradient flows into it.
      bootstrap_value: the value of the last one, `[B]`.
      steps: `[T+1, B, ...]`.
      config: costs, discounts and so on.
    """
    targets = find_targets(output.value, bootstrap_value, steps, config)
    policy_loss = losses.policy_gradient_loss(
        output.policy_logits, steps.prev_action[1:], targets.advantage, targets.valid
    )
    return actor_critic_loss(policy_loss, output, targets, config)


def actor_critic_loss(
    policy_loss: Tensor, output: AgentOutput, targets: Targets, config: TrainConfig
) -> tuple[Tensor, Metrics]:
    """The policy's loss with those of value and entropy, and the scalars worth watching."""
    value_loss = losses.value_loss(output.value, targets.value, targets.valid)
    entropy = losses.masked_mean(losses.entropy(output.policy_logits), targets.valid)
    loss = policy_loss + config.value_cost * value_loss - config.entropy_cost * entropy
    return loss, {
        "losses/policy_loss": policy_loss.detach(),
        "losses/value_loss": value_loss.detach(),
        "losses/entropy": entropy.detach(),
        "losses/explained_variance": losses.explained_variance(output.value.detach(), targets.value, targets.valid),
    }


def _state_norm(state: State) -> Tensor:
    """Mean over lanes of the norm of everything a lane's state holds; 0 for a core without one."""
    leaves = [leaf.flatten(start_dim=1) for leaf in state]
    return torch.cat(leaves, dim=1).norm(dim=1).mean() if leaves else torch.tensor(0.0)
