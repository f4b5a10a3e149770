"""Losses of a user's own, by name: the settings `loss` and `loss_args`."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from rmc_agents.agent import ActorCritic
from rmc_agents.config import LOSSES, TrainConfig
from rmc_agents.losses import Metrics, Targets
from rmc_agents.registry import Registry
from rmc_agents.types import Rollout

from . import distributed

Loss = Callable[..., Tensor | tuple[Tensor, Mapping[str, Any]]]
"""`loss(agent, rollout, targets, **loss_args)`: see `register_loss`."""
GROUPS = ("actors/", "charts/", "curriculum/", "diagnostics/", "evaluation/", "final/", "time/")
NAMES = ("losses/loss", "losses/grad_norm")
"""Beginnings of the metric names that a training uses itself, and other names that it uses."""
OF_CROSS_ENTROPY = ("charts/accuracy", "charts/target_fraction")  # `losses.cross_entropy` returns them
_registry = Registry("loss", LOSSES)


def register_loss(name: str, loss: Loss) -> None:
    """Register a loss under a name, for the setting `loss` of A2C and PPO.

    It is called as `loss(agent, rollout, targets, **loss_args)` for each minibatch: an `ActorCritic`; T steps of some
    lanes, a `Rollout`; and their `losses.Targets`, each `[T, B]`, which the settings determine (`discount`,
    `trace_lambda`, `reward_scale`, `normalize_advantages`). It returns a scalar, or one and a dict of metrics, also
    scalars, by their TensorBoard names: the same ones in every call, none that begins with actors/, charts/ (except
    those of `losses.cross_entropy`), curriculum/, diagnostics/, evaluation/, final/ or time/, nor losses/loss or
    losses/grad_norm, which the training has itself. If all are means over the steps at which `targets.valid` is True,
    several learners compute what one does.

    Args:
      name: the loss's name; registering it again replaces it.
      loss: the function. Further keyword arguments come from the setting `loss_args`. One called `progress` that is
        not among them is the share of `total_frames` trained so far, between 0 and 1, for schedules.

    Raises:
      ValueError: for a built-in name, or a `loss` that cannot be called.
    """
    _registry.register(name, loss)


class OwnLoss:
    """The loss that the settings name.

    Raises:
      NotRegistered: for a name that is not registered; the message suggests the nearest.
      ValueError: if it does not take the arguments.
    """

    def __init__(self, settings: TrainConfig) -> None:
        self.name, self.arguments = settings.loss, settings.loss_args
        self.function = _registry.find(self.name)
        self.metric_names: set[str] | None = None
        try:
            signature = inspect.signature(self.function)
            self.takes_progress = "progress" in signature.parameters and "progress" not in self.arguments
            signature.bind(None, None, None, **self.arguments, **self._schedule(0.0))
        except TypeError as error:
            expected = f"{self.name}(agent, rollout, targets, **loss_args)"
            raise ValueError(f"loss: cannot be called as {expected}: {error}") from None

    def _schedule(self, progress: float) -> dict[str, float]:
        return {"progress": progress} if self.takes_progress else {}

    def __call__(
        self, agent: ActorCritic, rollout: Rollout, targets: Targets, progress: float
    ) -> tuple[Tensor, Metrics]:
        """The loss of some lanes, and its metrics. Raises ValueError for other results."""
        before = agent.state_dict().keys() if self.metric_names is None else None
        result = self.function(agent, rollout, targets, **self.arguments, **self._schedule(progress))
        if before is not None and (added := agent.state_dict().keys() - before):
            raise ValueError(
                f"loss: {self.name}: expected to leave the agent's layers as they are, got {min(added)} in addition, "
                "which would not be trained; make it in your own core or encoder"
            )
        loss, metrics = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
        if not (isinstance(loss, Tensor) and loss.ndim == 0 and isinstance(metrics, Mapping)):
            got = f"shape {list(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            got += "" if isinstance(metrics, Mapping) else f" and {type(metrics).__name__}"
            raise ValueError(f"loss: {self.name}: expected a scalar tensor, or one and a dict of metrics, got {got}")
        if torch.is_grad_enabled() and not loss.requires_grad:
            raise ValueError(f"loss: {self.name}: expected a loss that depends on the agent's weights, got a constant")
        if not all(isinstance(name, str) for name in metrics):
            raise ValueError(f"loss: {self.name}: expected metrics with texts as names, got {[*metrics]}")
        if self.metric_names is None:
            self.metric_names = set(metrics)
            with distributed.failing_together():
                if not loss.isfinite():  # later, the training may have diverged
                    raise ValueError(f"loss: {self.name}: expected a finite loss, got {loss.item()} in its first call")
                for names in distributed.gather([sorted(metrics)]):
                    self._check_names(names)
        self._check_names(metrics)
        own_loss = {"losses/loss": loss} | dict(sorted(metrics.items()))
        return loss, {name: _scalar(self.name, name, value, loss.device) for name, value in own_loss.items()}

    def _check_names(self, names: Iterable[str]) -> None:
        """Raises ValueError for metrics with other names than in the first call, or names of the training itself."""
        own = [name for name in names if name not in OF_CROSS_ENTROPY]
        if taken := [name for name in own if name.startswith(GROUPS) or name in NAMES]:
            raise ValueError(f"loss: {self.name}: the training itself has a metric {taken[0]}; expected another name")
        if set(names) != self.metric_names:
            expected, got = (", ".join(sorted(each)) or "none" for each in (self.metric_names or (), names))
            raise ValueError(f"loss: {self.name}: expected the metrics of the first call, {expected}, got {got}")


def _scalar(loss: str, name: str, value: Any, device: torch.device) -> Tensor:
    """A metric as a tensor without gradient, on the loss's device. Raises ValueError unless it is one number."""
    try:
        return torch.as_tensor(value).detach().to(device, torch.float32).reshape(())
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"loss: {loss}: metric {name}: expected a scalar, got {type(value).__name__}") from None
