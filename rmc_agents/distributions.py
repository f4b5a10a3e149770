"""Distributions of actions, from a network's outputs: `[..., P]` parameters for each step.

All have the same methods (see `types.Distribution`). Log-probabilities, entropies and divergences are `[...]`, in nats.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rmc_agents.types import Distribution

LOG_2_PI = math.log(2 * math.pi)
FORBIDDEN = -1e9
"""Logit of a forbidden action: finite, so that no sum overflows, and with probability 0."""


class NotFinite(ValueError):
    """Numbers of an agent are infinite or NaN: its outputs or, in training, its gradient or state."""


def forbid(logits: Tensor, allowed: Tensor | None) -> Tensor:
    """Mask the logits `[..., A]` by the allowed actions `[..., A]` bool; None: all are allowed."""
    return logits if allowed is None else torch.where(allowed, logits, FORBIDDEN)


class Categorical:
    """One of A actions, with logits `[..., A]`; actions are `[...]` int64, counted from 0."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    def sample(self, generator: torch.Generator) -> Tensor:
        """Sampled actions. Raises NotFinite if the policy has diverged."""
        cumulative = self.logits.softmax(dim=-1).cumsum(dim=-1)
        total = _finite(cumulative[..., -1:])
        drawn = torch.rand(total.shape, generator=generator, device=total.device)  # at most 1 - 2 ** -24, so that
        return (cumulative <= total * drawn).sum(dim=-1)  # total * drawn < total, also rounded: the sum is an action

    def mode(self) -> Tensor:
        """The most likely actions. Raises NotFinite if the policy has diverged."""
        action = self.logits.argmax(dim=-1)
        _finite(self.logits.gather(-1, action.unsqueeze(-1)))  # argmax takes a NaN for the largest
        return action

    def log_prob(self, action: Tensor) -> Tensor:
        """Log-probabilities of actions `[...]`. Raises ValueError for another shape, which torch would cut to fit."""
        if action.shape != self.logits.shape[:-1]:
            raise ValueError(f"actions: expected {list(self.logits.shape[:-1])}, got {list(action.shape)}")
        return functional.log_softmax(self.logits, dim=-1).gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """At most log A."""
        log_prob = functional.log_softmax(self.logits, dim=-1)
        return -(log_prob.exp() * log_prob).sum(dim=-1)

    def kl(self, other: "Categorical") -> Tensor:
        """KL(self, other)."""
        own = self.logits.log_softmax(dim=-1)
        return (own.exp() * (own - other.logits.log_softmax(dim=-1))).sum(dim=-1)

    def canonical(self) -> Tensor:
        """Probabilities `[..., A]`."""
        return self.logits.softmax(dim=-1)


class Bernoulli:
    """K independent bits, with logits `[..., K]` of the value 1; actions are `[..., K]` int64."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    def sample(self, generator: torch.Generator) -> Tensor:
        """Sampled bits. Raises NotFinite if the policy has diverged."""
        probability = _finite(self.logits).sigmoid()
        drawn = torch.rand(probability.shape, generator=generator, device=probability.device)
        return (drawn < probability).long()

    def mode(self) -> Tensor:
        """The more likely value of each bit. Raises NotFinite if the policy has diverged."""
        return (_finite(self.logits) > 0).long()

    def log_prob(self, action: Tensor) -> Tensor:
        """Log-probabilities of bits `[..., K]`, summed over the bits."""
        return (action * self.logits - functional.softplus(self.logits)).sum(dim=-1)

    def entropy(self) -> Tensor:
        """At most K log 2."""
        return (functional.softplus(self.logits) - self.logits * self.logits.sigmoid()).sum(dim=-1)

    def kl(self, other: "Bernoulli") -> Tensor:
        """KL(self, other)."""
        difference = self.logits.sigmoid() * (self.logits - other.logits)
        return (difference - functional.softplus(self.logits) + functional.softplus(other.logits)).sum(dim=-1)

    def canonical(self) -> Tensor:
        """Probabilities of 1, `[..., K]`."""
        return self.logits.sigmoid()


class Gaussian:
    """D independent normal variables, with means and log standard deviations `[..., D]`."""

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        self.mean, self.log_std = mean, log_std

    def sample(self, generator: torch.Generator) -> Tensor:
        """Sampled numbers, without gradient. Raises NotFinite if the policy has diverged."""
        noise = torch.randn(self.mean.shape, generator=generator, device=self.mean.device)
        return _finite(self.mean.detach() + self.log_std.detach().exp() * noise)

    def mode(self) -> Tensor:
        """The means. Raises NotFinite if the policy has diverged."""
        return _finite(self.mean)

    def log_prob(self, action: Tensor) -> Tensor:
        """Log-density of numbers `[..., D]`, summed over D."""
        deviations = (action - self.mean) * (-self.log_std).exp()
        return (-0.5 * deviations.square() - self.log_std - 0.5 * LOG_2_PI).sum(dim=-1)

    def entropy(self) -> Tensor:
        """Differential entropy: it can be negative."""
        return (self.log_std + 0.5 * (1 + LOG_2_PI)).sum(dim=-1)

    def kl(self, other: "Gaussian") -> Tensor:
        """KL(self, other)."""
        log_ratio = self.log_std - other.log_std
        distance = (self.mean - other.mean) * (-other.log_std).exp()
        return (0.5 * ((2 * log_ratio).exp() + distance.square() - 1) - log_ratio).sum(dim=-1)

    def canonical(self) -> Tensor:
        """Means and standard deviations, `[..., 2 D]`."""
        return torch.cat([self.mean, self.log_std.exp()], dim=-1)


class Joint:
    """Independent parts with actions concatenated to `[..., W]`; a `Categorical` has one column.

    Actions are int64, or floating-point if there is a Gaussian.

    Args:
      parts: the distributions.
      widths: columns of each.
    """

    def __init__(self, parts: Sequence[Distribution], widths: Sequence[int]) -> None:
        self.parts, self.widths = parts, widths

    def sample(self, generator: torch.Generator) -> Tensor:
        """Samples of all parts, in order."""
        return self._side_by_side([part.sample(generator) for part in self.parts])

    def mode(self) -> Tensor:
        """The modes of all parts."""
        return self._side_by_side([part.mode() for part in self.parts])

    def log_prob(self, action: Tensor) -> Tensor:
        """Log-probabilities of actions `[..., W]`, summed over the parts."""
        columns = action.split(list(self.widths), dim=-1)
        return self._sum([part.log_prob(_action_of(part, x)) for part, x in zip(self.parts, columns, strict=True)])

    def entropy(self) -> Tensor:
        """The sum over the parts."""
        return self._sum([part.entropy() for part in self.parts])

    def kl(self, other: "Joint") -> Tensor:
        """KL(self, other)."""
        return self._sum([mine.kl(theirs) for mine, theirs in zip(self.parts, other.parts, strict=True)])

    def canonical(self) -> Tensor:
        """Those of all parts, in order."""
        return torch.cat([part.canonical() for part in self.parts], dim=-1)

    def _side_by_side(self, actions: list[Tensor]) -> Tensor:
        columns = (
            action.unsqueeze(-1) if isinstance(part, Categorical) else action
            for part, action in zip(self.parts, actions, strict=True)
        )
        return torch.cat(list(columns), dim=-1)

    def _sum(self, terms: list[Any]) -> Tensor:
        return torch.stack(terms).sum(dim=0)


def _action_of(part: Distribution, columns: Tensor) -> Tensor:
    return columns.squeeze(-1).long() if isinstance(part, Categorical) else columns


def _finite(parameters: Tensor) -> Tensor:
    if not math.isfinite(parameters.sum(dtype=torch.float64).item()):  # finite numbers do not overflow in float64
        raise NotFinite(
            "the policy's outputs are not finite: training diverged (try a smaller --learning-rate), or a custom core "
            "or encoder returned NaN"
        )
    return parameters
