"""Statistics of episodes: means with intervals. Does not import torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from rmc_agents.config import RunConfig

EVALUATION_SEED = 1_000_000  # far from the seeds of training lanes
WINDOWS = (4, 16, 64)  # steps that the memory of ablated agents reaches back; 1 is a reset at every step
WINDOW = 8  # likewise, of the agent that a replay compares with
MAX_STEPS = RunConfig.eval_max_steps  # of an episode, which may not end by itself
RESAMPLES = 9_999
MAX_RESAMPLED = 5_000_000  # numbers that the bootstrap holds in memory
GROUPS = {
    "corridor_length": "corridor of {}",  # MiniGrid memory: cells between the cue and the choice
    "solution_length": "solution of {}",  # BoxWorld: boxes on the way to the gem
    "num_distractors": "{} distractors",
    "nth": "n = {}",  # Nth Farthest: the vector asked for, 1 for the farthest
}
"""Integer infos by which success rates are grouped, and the name of a group."""


class Episodes(NamedTuple):
    """The outcomes of E finished episodes."""

    returns: np.ndarray  # [E]
    lengths: np.ndarray  # [E]
    levels: np.ndarray | None  # [E]: the level reached, if the environment reports it; NaN where it does not
    successes: np.ndarray | None  # [E] 0 or 1, if the environment reports it; 0 where cut
    cut: np.ndarray  # [E] bool: cut off by the step limit
    asked: np.ndarray | None = None  # [E]: steps at which the environment reported the correct action
    right: np.ndarray | None = None  # [E]: those at which it was taken
    nats: np.ndarray | None = None  # [E]: -log probability of the correct actions, summed over those steps
    groups: Mapping[str, np.ndarray] = MappingProxyType({})  # [E] each, by the names in `GROUPS`; NaN: not known


@dataclass(frozen=True)
class Statistics:
    """Statistics over episodes; None for what the environment does not report.

    Attributes:
      mean_return: of whole episodes, or up to the step limit.
      ci95: its 95 % interval: Wilson's if the returns have two values, else a bootstrap's (BCa); None if all are equal.
      median, min, max: of the returns.
      mean_length: in steps.
      episodes: how many.
      mean_level: the level at the end, or where the episode was cut, from `info["level"]`.
      success_rate: the fraction of episodes with `info["is_success"]`.
      episodes_cut: how many ended by the step limit; 0 in results of earlier versions, which do not say.
      accuracy: the fraction of right answers, where `info["target"]` says what is right.
      accuracy_ci95: its interval, over episodes; None for one.
      bits: the mean of -log2 of the right answers' probabilities: bits per character of a text.
      success_by: the success rate by value, for each of `GROUPS` that varies, such as the corridor's length.
      success_ci95: the success rate's interval; None for one episode.
      difference_ci95: in ablations of the memory: the 95 % interval of the mean return minus that of the intact memory,
        over pairs of episodes from one seed.
    """

    mean_return: float
    ci95: tuple[float, float] | None
    median: float
    min: float
    max: float
    mean_length: float
    episodes: int
    mean_level: float | None
    success_rate: float | None
    episodes_cut: int = 0
    accuracy: float | None = None
    accuracy_ci95: tuple[float, float] | None = None
    bits: float | None = None
    success_by: dict[str, dict[int, float]] = field(default_factory=dict)
    success_ci95: tuple[float, float] | None = None
    difference_ci95: tuple[float, float] | None = None

    @property
    def score(self) -> float:
        """The score for comparing agents: the accuracy if the environment reports targets, else the mean return."""
        return self.mean_return if self.accuracy is None else self.accuracy

    @property
    def score_ci95(self) -> tuple[float, float] | None:
        """The score's interval."""
        return self.ci95 if self.accuracy is None else self.accuracy_ci95

    @classmethod
    def of(cls, episodes: Episodes) -> "Statistics":
        """The statistics of the given episodes."""
        returns = episodes.returns
        accuracy, interval = _accuracy(episodes.right, episodes.asked)
        return cls(
            mean_return=float(returns.mean()),
            ci95=interval_of_mean(returns),
            median=float(np.median(returns)),
            min=float(returns.min()),
            max=float(returns.max()),
            mean_length=float(episodes.lengths.mean()),
            episodes=len(returns),
            mean_level=_mean_of_known(episodes.levels),
            success_rate=None if episodes.successes is None else float(episodes.successes.mean()),
            episodes_cut=int(episodes.cut.sum()),
            accuracy=accuracy,
            accuracy_ci95=interval,
            bits=_bits(episodes.nats, episodes.asked),
            success_by=_success_by(episodes),
            success_ci95=None
            if episodes.successes is None
            else interval_of_mean(episodes.successes, are_outcomes=True),
        )

    @classmethod
    def of_each(cls, sets: Sequence[Episodes]) -> "list[Statistics]":
        """The statistics of several policies' episodes in one environment.

        If one of them reports success, those of another without a report are failures: all of them were cut, or the
        environment reports only successes.
        """
        if any(episodes.successes is not None for episodes in sets):
            sets = [
                episodes._replace(successes=np.zeros(len(episodes.returns))) if episodes.successes is None else episodes
                for episodes in sets
            ]
        return [cls.of(episodes) for episodes in sets]


def _mean_of_known(numbers: np.ndarray | None) -> float | None:
    known = [] if numbers is None else numbers[~np.isnan(numbers)]
    return float(np.mean(known)) if len(known) else None


def _accuracy(
    right: np.ndarray | None, asked: np.ndarray | None
) -> tuple[float, tuple[float, float] | None] | tuple[None, None]:
    """The fraction of correct answers, and its 95 % interval over episodes."""
    if right is None or asked is None or not asked.any():
        return None, None
    rate = float(right.sum() / asked.sum())
    if rate in (0.0, 1.0) or (asked == asked[0]).all():
        return rate, interval_of_mean(right[asked > 0] / asked[asked > 0], are_outcomes=True)
    around = rate + (right - rate * asked) / asked.mean()  # [E]: their mean varies as the ratio of the two sums does
    if (interval := bootstrap_interval(around)) is None:
        return rate, None
    low, high = interval  # to first order, so that it could end outside 0 to 1
    return rate, (max(low, 0.0), min(high, 1.0))


def _bits(nats: np.ndarray | None, asked: np.ndarray | None) -> float | None:
    if nats is None or asked is None or not asked.any():
        return None
    return float(nats.sum() / asked.sum() / np.log(2))


def _success_by(episodes: Episodes) -> dict[str, dict[int, float]]:
    """Success rates by each group with more than one value, all of them whole numbers."""
    if (successes := episodes.successes) is None:
        return {}
    values = {name: (group, np.unique(group[~np.isnan(group)])) for name, group in episodes.groups.items()}
    return {
        name: {int(value): float(successes[group == value].mean()) for value in found}
        for name, (group, found) in values.items()
        if len(found) > 1 and not (found % 1).any()
    }


def interval_of_mean(samples: np.ndarray, are_outcomes: bool = False) -> tuple[float, float] | None:
    """The 95 % interval of the mean: Wilson's if the samples have two values, else a bootstrap's.

    None for one sample, and if all agree: returns of 0 may hide large ones. Samples that `are_outcomes` are known to be
    0 or 1, so that these have Wilson's. A bootstrap's is too narrow where nearly all samples agree.
    """
    values = (0, 1) if are_outcomes and np.isin(samples, (0, 1)).all() else np.unique(samples)
    if len(samples) < 2 or len(values) != 2 or not np.isfinite(values).all() or _are_equal(values):
        return bootstrap_interval(samples)
    least, most = map(float, values)
    low, high = wilson_interval(float(np.mean(samples == most)), len(samples))
    return least + low * (most - least), least + high * (most - least)


def _are_equal(samples: Sequence[float] | np.ndarray) -> bool:
    """Whether they differ by rounding alone; so does a single one, and none."""
    return np.allclose(samples, samples[:1], rtol=1e-12, atol=0)


def wilson_interval(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a share among `count` samples (Wilson, 1927)."""
    z = NormalDist().inv_cdf(0.975)
    centre, half = share + z**2 / (2 * count), z * (share * (1 - share) / count + (z / (2 * count)) ** 2) ** 0.5
    low, high = ((centre + sign * half) / (1 + z**2 / count) for sign in (-1, 1))
    return max(low, 0.0) if share > 0 else 0.0, min(high, 1.0) if share < 1 else 1.0  # beyond by rounding


def bootstrap_interval(samples: np.ndarray) -> tuple[float, float] | None:
    """The 95 % bootstrap interval of the mean, bias-corrected and accelerated (BCa: Efron, 1987).

    The resampling has a fixed seed. Equals scipy.stats.bootstrap, whose import takes longer than the rest. None if all
    samples are equal or the mean is not finite.
    """
    count, mean = len(samples), float(samples.mean())
    if not np.isfinite(mean) or _are_equal(samples):
        return None
    rng, batch = np.random.default_rng(0), max(1, MAX_RESAMPLED // count)
    sizes = [min(batch, RESAMPLES - first) for first in range(0, RESAMPLES, batch)]
    means = np.concatenate([samples[rng.integers(0, count, (size, count))].mean(axis=1) for size in sizes])
    normal = NormalDist()
    bias = normal.inv_cdf(float(np.mean(means < mean) + np.mean(means <= mean)) / 2)
    deviations = samples - mean  # proportional to the jackknife deviations
    deviations = deviations / np.abs(deviations).max()  # their third powers neither overflow nor vanish
    acceleration = (deviations**3).sum() / (6 * (deviations**2).sum() ** 1.5)
    shifted = (bias + normal.inv_cdf(share) for share in (0.025, 0.975))
    low, high = np.quantile(means, [normal.cdf(bias + z / (1 - acceleration * z)) for z in shifted])
    return float(low), float(high)


def student_interval(samples: Sequence[float], are_shares: bool = False) -> tuple[float, float] | None:
    """Student's 95 % interval of the mean, that of shares cut to 0..1; None for one, and if all are equal."""
    from scipy.special import stdtrit  # the inverse of Student's distribution

    if _are_equal(samples):
        return None
    mean = float(np.mean(samples))
    half = stdtrit(len(samples) - 1, 0.975) * float(np.std(samples, ddof=1)) / len(samples) ** 0.5
    return (max(mean - half, 0.0), min(mean + half, 1.0)) if are_shares else (mean - half, mean + half)


def welch_interval(samples: Sequence[float], others: Sequence[float]) -> tuple[float, float] | None:
    """Welch's 95 % interval of the difference of two means; None for one sample, and if neither set varies."""
    from scipy.special import stdtrit

    if min(len(samples), len(others)) < 2 or (_are_equal(samples) and _are_equal(others)):
        return None
    difference = float(np.mean(samples) - np.mean(others))
    freedom = [len(samples) - 1, len(others) - 1]
    variances = np.array([np.var(samples, ddof=1) / len(samples), np.var(others, ddof=1) / len(others)])
    shares = variances / variances.sum()
    half = float(stdtrit(1 / (shares**2 / freedom).sum(), 0.975) * variances.sum() ** 0.5)
    return difference - half, difference + half


def share_text(share: float, interval: tuple[float, float] | None) -> str:
    """A share with its interval, such as '97.0% (91.5% to 99.0%)'."""
    return f"{share:.1%}" + (f" ({interval[0]:.1%} to {interval[1]:.1%})" if interval else "")


def cut_note(result: dict[str, Any]) -> str:
    """A sentence about the episodes that were cut off in an evaluation; '' if there are none."""
    players = {"": result["episodes_cut"], " of random play": result.get("random_episodes_cut", 0)}
    limit = f"were cut off after {result['max_steps']:,} steps"
    return "; ".join(
        f"{count} of {result['episodes']} episodes{player} {limit}" for player, count in players.items() if count
    )
