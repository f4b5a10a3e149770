"""Distributions of actions against scipy's, and against their own draws."""

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch

from rmc_agents.distributions import Bernoulli, Categorical, Gaussian, Joint, NotFinite
from rmc_agents.types import Distribution

DRAWS = 40_000
SIZES = (3, 2)


def parameters(size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(4, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def make(kind: str, x: torch.Tensor) -> Distribution:
    """Of parameters `[..., 6]`."""
    if kind == "categorical":
        return Categorical(x)
    if kind == "bernoulli":
        return Bernoulli(x)
    if kind == "gaussian":
        return Gaussian(x[..., :3], x[..., 3:])
    parts = [*map(Categorical, x[..., :5].split(SIZES, dim=-1)), Gaussian(x[..., 5:], x[..., :1])]
    return Joint(parts, [1, 1, 1])


def oracles(kind: str, x: np.ndarray) -> list[tuple[Any, float]]:
    """scipy's independent distributions of one lane, each of one column of an action, and their entropies."""

    def category(logits: np.ndarray) -> Any:
        p = np.exp(logits - np.logaddexp.reduce(logits))
        return scipy.stats.rv_discrete(values=(np.arange(len(p)), p / p.sum()))

    if kind == "categorical":
        columns = [category(x)]
    elif kind == "bernoulli":
        columns = [scipy.stats.bernoulli(1 / (1 + np.exp(-logit))) for logit in x]
    elif kind == "gaussian":
        columns = [scipy.stats.norm(mean, np.exp(log_std)) for mean, log_std in zip(x[:3], x[3:], strict=True)]
    else:
        columns = [category(x[:3]), category(x[3:5]), scipy.stats.norm(x[5], np.exp(x[0]))]
    return [(column, float(column.entropy())) for column in columns]


KINDS = ("categorical", "bernoulli", "gaussian", "joint")


@pytest.mark.parametrize("kind", KINDS)
def test_log_probabilities_and_entropies_are_scipys(kind: str) -> None:
    x = parameters(6)
    policy = make(kind, x)
    for action in (policy.sample(torch.Generator().manual_seed(1)), policy.mode()):
        log_prob, entropy = policy.log_prob(action), policy.entropy()
        for lane in range(len(x)):
            columns = oracles(kind, x[lane].numpy())
            values = np.ravel(action[lane].numpy())
            expected = sum(
                float(c.logpdf(v))
                if isinstance(getattr(c, "dist", None), scipy.stats.rv_continuous)
                else float(c.logpmf(v))
                for (c, _), v in zip(columns, values, strict=True)
            )
            assert log_prob[lane].item() == pytest.approx(expected, abs=1e-9)
            assert entropy[lane].item() == pytest.approx(sum(each for _, each in columns), abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_the_mode_is_the_most_likely_and_draws_have_the_entropy_and_divergence(kind: str) -> None:
    one, other = (make(kind, parameters(6, seed)[:1].expand(DRAWS, -1)) for seed in (0, 1))
    drawn = one.sample(torch.Generator().manual_seed(0))
    log_prob = one.log_prob(drawn)
    assert (log_prob <= one.log_prob(one.mode()) + 1e-9).all()
    assert -log_prob.mean().item() == pytest.approx(one.entropy()[0].item(), abs=0.02)
    ratio = log_prob - other.log_prob(drawn)
    error = 4 * float(ratio.std()) / math.sqrt(DRAWS)
    assert ratio.mean().item() == pytest.approx(one.kl(other)[0].item(), abs=error)
    assert one.kl(one)[0].item() == pytest.approx(0, abs=1e-12)


def test_known_values() -> None:
    assert Categorical(torch.zeros(5)).entropy().item() == pytest.approx(math.log(5))
    assert Categorical(torch.tensor([100.0, 0.0])).entropy().item() == pytest.approx(0.0, abs=1e-6)
    assert Categorical(torch.tensor([[0.0, 5.0, 1.0], [3.0, 0.0, 1.0]])).mode().tolist() == [1, 0]
    certain, other = (Categorical(torch.tensor([200.0, 0.0]).roll(i)) for i in range(2))
    assert certain.kl(other).item() == pytest.approx(200)


@pytest.mark.parametrize("kind", ["gaussian", "joint"])
def test_draws_have_no_gradient(kind: str) -> None:
    """One through a draw would cancel that of its log-probability; choices and bits cannot have any."""
    assert not make(kind, parameters(6).requires_grad_()).sample(torch.Generator()).requires_grad


@pytest.mark.parametrize("kind", KINDS)
def test_a_diverged_policy_is_one_line(kind: str) -> None:
    with pytest.raises(ValueError, match=r"training diverged \(try a smaller --learning-rate\)"):
        make(kind, torch.full((2, 6), torch.nan)).sample(torch.Generator())


def test_actions_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"actions: expected \[5, 8\], got \[5, 2\]"):
        Categorical(torch.zeros(5, 8, 3)).log_prob(torch.zeros(5, 2, dtype=torch.int64))


@pytest.mark.parametrize("kind", ["categorical", "bernoulli", "gaussian", "joint"])
def test_what_has_diverged_takes_no_action(kind: str) -> None:
    policy = make(kind, parameters(6).fill_(torch.nan))
    for act in (policy.mode, lambda: policy.sample(torch.Generator())):
        with pytest.raises(NotFinite):
            act()
