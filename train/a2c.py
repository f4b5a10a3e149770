"""A2C: a synchronous actor-critic (Mnih et al., 2016), one rollout of all lanes and one update, again and again."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from rmc_agents import losses
from rmc_agents.collect import Collector, Lanes, seed_after
from rmc_agents.config import Config, TrainConfig
from rmc_agents.envs.registry import make_vector_env
from rmc_agents.types import AgentOutput, Rollout, State, TimeStep

from . import cuda_graphs
from .learner import Learner
from .trainer import Metrics


class A2C(Learner):
    """A run in which this process plays and learns by turns. A checkpoint keeps all of it, its lanes included.

    Args:
      config: all settings.
      device: where the agent lives.
    """

    lanes: Lanes

    def __init__(self, config: Config, device: torch.device) -> None:
        graphs = config.run.cuda_graphs
        if graphs:
            cuda_graphs.check_settings(config.train)
            cuda_graphs.check_device(device)
        wanted = config.env
        env = make_vector_env(
            wanted.env,
            wanted.num_envs,
            num_workers=wanted.env_workers,
            backend=wanted.env_backend,
            env_kwargs=wanted.env_kwargs,
        )
        self.lanes = (cuda_graphs.StagedLanes if graphs else Lanes)(env, config.run.seed, device)
        super().__init__(config, self.lanes.spec, device)
        if graphs:
            self.optimizer.make_capturable()
        generator = torch.Generator(device).manual_seed(config.run.seed)
        collector = cuda_graphs.GraphedCollector if graphs else Collector
        self.collector = collector(self.agent, self.lanes, self.train.unroll_length, generator)
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
            "charts/recurrent_state_norm": state_norm(self.collector.state),
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

    @torch.no_grad()
    def _bootstrap_value(self, rollout: Rollout) -> Tensor:
        """The value of the rollout's last observation, `[B]`."""
        last = TimeStep(*(field[-1] for field in rollout.steps))
        return self.agent.step(last, self.collector.state)[0].value

    def close(self) -> None:
        """Ends the environments."""
        self.lanes.env.close()

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
        return super().get_state() | {"collector": self.collector.get_state()}

    def expected_state(self) -> dict[str, Any]:
        """As `Learner.expected_state`."""
        return super().expected_state() | {"collector": self.collector.expected_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's tree, to the bit where the environment can be saved."""
        self.check_state(state)
        if state["collector"]["lanes"] is None:
            self.lanes.reset(seed_after(self.config.run.seed, state["frames"]))
        self.collector.set_state(state["collector"])
        super().set_state(state)
        self._prepare()


class Targets(NamedTuple):
    """What a rollout says its T transitions were worth; each `[T, B]`, without gradient."""

    value: Tensor  # lambda-returns of the scaled rewards
    advantage: Tensor  # their excess over the value that was expected, normalised if so configured
    valid: Tensor  # bool: a real transition, no filler


class Transitions(NamedTuple):
    """A rollout's T transitions as returns are made of them; each `[T, B]`, without gradient."""

    v_tm1: Tensor
    v_t: Tensor
    r_t: Tensor  # scaled
    discount_t: Tensor
    lambda_t: Tensor
    valid: Tensor


def find_transitions(value: Tensor, bootstrap_value: Tensor, steps: TimeStep, config: TrainConfig) -> Transitions:
    """The transitions between time steps `[T+1, B, ...]`, of values `[T, B]` and of the last one's, `[B]`."""
    weights = losses.transition_weights(
        steps.is_first, steps.terminated, steps.truncated, config.discount, config.trace_lambda
    )
    v_tm1 = value.detach()
    v_t = torch.cat([v_tm1[1:], bootstrap_value.detach().unsqueeze(0)])
    return Transitions(v_tm1, v_t, steps.prev_reward[1:] * config.reward_scale, *weights)


def find_targets(value: Tensor, bootstrap_value: Tensor, steps: TimeStep, config: TrainConfig) -> Targets:
    """The targets of values `[T, B]`, of the first T of the time steps `[T+1, B, ...]`.

    Args:
      value: `[T, B]`.
      bootstrap_value: the value of the last time step, `[B]`.
      steps: `[T+1, B, ...]`.
      config: discounts and so on.
    """
    t = find_transitions(value, bootstrap_value, steps, config)
    target = losses.lambda_returns(t.r_t, t.discount_t, t.v_t, t.lambda_t)
    return Targets(target, normalized(target - t.v_tm1, t.valid, config), t.valid)


def normalized(advantage: Tensor, valid: Tensor, config: TrainConfig) -> Tensor:
    """Advantages `[T, B]`, brought to mean 0 and standard deviation 1 if so configured."""
    return losses.masked_normalize(advantage, valid) if config.normalize_advantages else advantage


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


def state_norm(state: State) -> Tensor:
    """Mean over lanes of the norm of everything a lane's state holds; 0 for a core without one."""
    leaves = [leaf.flatten(start_dim=1) for leaf in state]
    return torch.cat(leaves, dim=1).norm(dim=1).mean() if leaves else torch.tensor(0.0)
