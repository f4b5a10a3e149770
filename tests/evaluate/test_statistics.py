"""Statistics of episodes and their intervals."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from scipy.stats import binomtest, bootstrap, t, ttest_ind

from rmc_agents.evaluate.episodes import provenance_of
from rmc_agents.evaluate.statistics import (
    Episodes,
    Statistics,
    bootstrap_interval,
    interval_of_mean,
    share_text,
    student_interval,
    welch_interval,
    wilson_interval,
)
from rmc_agents.runs.saved import to_provenance


def episodes(*returns: float) -> Episodes:
    return Episodes(np.array(returns), np.full(len(returns), 3), None, None, np.zeros(len(returns), bool))


def test_statistics_known_values() -> None:
    statistics = Statistics.of(episodes(1.0, 2.0, 3.0, 10.0)._replace(successes=np.array([True, False, True, True])))
    assert (statistics.mean_return, statistics.median) == (4.0, 2.5)
    assert (statistics.min, statistics.max, statistics.mean_length) == (1.0, 10.0, 3.0)
    assert (statistics.episodes, statistics.mean_level, statistics.success_rate) == (4, None, 0.75)
    assert statistics.success_by == {}
    low, high = statistics.ci95
    assert 1.0 <= low < 4.0 < high <= 10.0


def test_the_interval_of_an_accuracy_is_one_of_shares() -> None:
    asked, right, nothing = np.array([1, 1, 1, 1000, 0]), np.array([0, 0, 1, 1000, 0]), np.zeros(5)
    played = Episodes(nothing, nothing, None, None, nothing.astype(bool), asked=asked, right=right)
    statistics = Statistics.of(played)
    assert statistics.accuracy == statistics.score == 1001 / 1003
    assert statistics.accuracy_ci95 is not None
    assert statistics.accuracy_ci95 == statistics.score_ci95
    assert 0.9 < statistics.accuracy_ci95[0] < statistics.accuracy < statistics.accuracy_ci95[1] == 1.0
    assert Statistics.of(played._replace(asked=nothing, right=nothing)).accuracy is None


def test_the_interval_of_a_score_is_not_that_of_another() -> None:
    played = episodes(0.0, 1.0, 5.0)._replace(asked=np.array([0, 1, 0]), right=np.array([0, 1, 0]))
    statistics = Statistics.of(played)
    assert (statistics.score, statistics.score_ci95) == (1.0, None)


def test_who_never_finishes_where_others_report_success_has_none() -> None:
    played = episodes(1.0, 2.0)
    finished = played._replace(successes=np.array([1.0, 0.0]))
    assert [each.success_rate for each in Statistics.of_each([finished, played])] == [0.5, 0.0]
    assert [each.success_rate for each in Statistics.of_each([played, played])] == [None, None]


def test_success_by_group_known_values() -> None:
    successes = np.array([True, False, True, True])
    groups = {"corridor_length": np.array([2, 2, 0, 2]), "num_distractors": np.full(4, 6)}
    played = episodes(1.0, 0.0, 1.0, 1.0)._replace(successes=successes, groups=groups)
    assert Statistics.of(played).success_by == {"corridor_length": {0: 1.0, 2: pytest.approx(2 / 3)}}
    assert Statistics.of(played._replace(successes=None)).success_by == {}
    fractions = {name: group + 0.5 for name, group in played.groups.items()}
    assert Statistics.of(played._replace(groups=fractions)).success_by == {}, "which have no whole numbers as names"


@pytest.mark.parametrize("count", [2, 7, 500, 2000])
def test_intervals_are_scipys(count: int) -> None:
    samples = np.random.default_rng(count).exponential(size=count) ** 2
    expected = bootstrap((samples,), np.mean, batch=1000, rng=np.random.default_rng(0)).confidence_interval
    np.testing.assert_allclose(bootstrap_interval(samples), expected, rtol=1e-9)
    for scale in (1e-120, 1e110):
        np.testing.assert_allclose(bootstrap_interval(scale * samples), scale * np.array(expected), rtol=0.02)
    half = t.ppf(0.975, count - 1) * samples.std(ddof=1) / count**0.5
    np.testing.assert_allclose(student_interval(samples), (samples.mean() - half, samples.mean() + half), rtol=1e-9)


def test_the_interval_of_a_difference_is_scipys() -> None:
    few, many = (
        np.random.default_rng(seed).normal(scale=scale, size=size) for seed, scale, size in ((0, 5, 3), (1, 1, 7))
    )
    expected = ttest_ind(few, many, equal_var=False).confidence_interval()
    for scale in (1e-100, 1.0, 1e100):
        found = welch_interval(scale * few, scale * many)
        np.testing.assert_allclose(found, (scale * expected.low, scale * expected.high), rtol=1e-9)
    assert welch_interval([7.0, 7.0], [4.0, 4.0, 5.0]) is not None


@pytest.mark.parametrize("returns", [[7.0, 7.0], [0.1, 0.1, 0.1 + 1e-17, 0.1], [0.0, 0.0], [7.0]])
def test_what_does_not_vary_has_no_interval(returns: list[float]) -> None:
    assert interval_of_mean(np.array(returns)) is None
    assert student_interval(returns) is None
    assert welch_interval(returns, [8.0, 8.0]) is None


def test_returns_of_two_values_have_wilsons_interval() -> None:
    low, high = wilson_interval(0.99, 100)
    returns = np.array([-1.0] + 99 * [1.0])
    assert interval_of_mean(returns) == pytest.approx((2 * low - 1, 2 * high - 1))


@pytest.mark.parametrize(("right", "count"), [(100, 100), (0, 12), (1, 2), (93, 100)])
def test_intervals_of_shares_are_scipys(right: int, count: int) -> None:
    outcomes = np.arange(count) < right
    expected = tuple(binomtest(right, count).proportion_ci(method="wilson"))
    played = episodes(*outcomes.astype(float))._replace(
        successes=outcomes.astype(float), asked=np.full(count, 3), right=3 * outcomes
    )
    statistics = Statistics.of(played)
    assert statistics.ci95 == (statistics.success_ci95 if 0 < right < count else None)
    for interval in (statistics.success_ci95, statistics.accuracy_ci95):
        np.testing.assert_allclose(interval, expected, rtol=1e-9, atol=1e-12)


def test_intervals_of_none_and_all_end_exactly() -> None:
    assert [wilson_interval(0.0, count)[0] for count in (3, 5, 40)] == [0.0] * 3
    assert [wilson_interval(1.0, count)[1] for count in (40, 60, 300)] == [1.0] * 3


def test_one_episode_has_no_interval() -> None:
    played = episodes(7.0)._replace(asked=np.array([4]), right=np.array([3]), nats=np.array([1.0]))
    statistics = Statistics.of(played)
    assert (statistics.ci95, statistics.accuracy_ci95, statistics.score_ci95) == (None, None, None)
    assert '"ci95": null' in json.dumps(asdict(statistics), allow_nan=False)
    assert share_text(statistics.accuracy, statistics.accuracy_ci95) == "75.0%"
    provenance = provenance_of(statistics, 5, "recall")
    assert to_provenance(provenance._asdict()) == provenance
    assert str(provenance).startswith("accuracy 75.0%, mean return 7.00 on recall over 1 episode from seed 5 when")
