"""Evaluation: figures that are right, one episode per lane, and commands that fail in one line."""

import json
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from scipy.stats import bootstrap, norm, t
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

import rmc_agents as rmc
from helpers import wandering  # noqa: F401  # registers an environment that cannot render
from helpers.runs import refused, save_agent
from rmc_agents.config import Config
from rmc_agents.envs.making import make_env
from rmc_agents.evaluate import cli, curves, plot, watch
from rmc_agents.evaluate import episodes as evaluation
from rmc_agents.evaluate.episodes import MOST_LANES, UniformPolicy, check_fits, env_spec, evaluate, play
from rmc_agents.evaluate.statistics import (
    EVALUATION_SEED,
    Episodes,
    Statistics,
    bootstrap_interval,
    student_interval,
)
from rmc_agents.runs.folder import TIME_TAG
from rmc_agents.stream import Lanes
from rmc_agents.train import cli as train_cli
from rmc_agents.types import TimeStep

CPU = torch.device("cpu")
LONG = 20


class ParityEnv(gym.Env):
    """Reward 1 a step; an episode lasts 1 step from an even seed, LONG from an odd one, and 1 without a seed."""

    observation_space = Box(0.0, 1.0, (1,), np.float32)
    action_space = Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        self.left = LONG if seed is not None and seed % 2 else 1
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.left -= 1
        return np.zeros(1, np.float32), 1.0, False, self.left == 0, {}


class MaskedEnv(ParityEnv):
    """As `ParityEnv`; of the two actions one is allowed, another at every step."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        return super().reset(seed=seed)[0], self.mask()

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert self.mask()["action_mask"][action]
        return *super().step(action)[:4], self.mask()

    def mask(self) -> dict[str, np.ndarray]:
        return {"action_mask": np.arange(2) == self.left % 2}


class SeedEnv(gym.Env):
    """Episodes of `seed % 3 + 1` steps that return the seed; `level` is the episode's number since the last seed.

    The first one is a success from seed 4 on; failures are not reported.
    """

    observation_space = Box(0.0, 1.0, (1,), np.float32)
    action_space = Discrete(2)
    seeds: ClassVar[list[int]] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        self.episode = 1 if seed is not None else self.episode + 1
        if seed is not None:
            self.seed = seed
            self.seeds.append(seed)
        self.left = self.seed % 3 + 1
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.left -= 1
        if self.left:
            return np.zeros(1, np.float32), 0.0, False, False, {}
        success = {"is_success": True} if self.seed >= 4 and self.episode == 1 else {}
        return np.zeros(1, np.float32), float(self.seed), True, False, {"level": self.episode, **success}


for env_id, entry_point in {"Parity-v0": ParityEnv, "Masked-v0": MaskedEnv, "Seed-v0": SeedEnv}.items():
    if env_id not in gym.registry:
        gym.register(env_id, entry_point)


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


def test_success_by_group_known_values() -> None:
    successes = np.array([True, False, True, True])
    groups = {"corridor_length": np.array([2, 2, 0, 2]), "num_distractors": np.full(4, 6)}
    played = episodes(1.0, 0.0, 1.0, 1.0)._replace(successes=successes, groups=groups)
    assert Statistics.of(played).success_by == {"corridor_length": {0: 1.0, 2: pytest.approx(2 / 3)}}
    assert Statistics.of(played._replace(successes=None)).success_by == {}


def test_boxworld_successes_are_grouped_by_the_level() -> None:
    played = play(UniformPolicy(env_spec("boxworld-tiny")), "boxworld-tiny", 40, 0, torch.device("cpu"), max_steps=500)
    levels = make_env("boxworld-tiny", 40)
    _, infos = levels.reset(seed=0)
    assert set(played.groups) == {"solution_length", "num_distractors"}
    assert all((values == infos[name]).all() for name, values in played.groups.items())


def test_interval_covers_the_mean_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    intervals = [bootstrap_interval(rng.exponential(1.0, 40)) for _ in range(60)]
    assert sum(low <= 1.0 <= high for low, high in intervals) >= 50


def test_interval_is_corrected_for_bias_and_skewness() -> None:
    """Efron (1987), computed here from draws of its own: of skewed samples it lies higher than percentiles do."""
    rng = np.random.default_rng(2)
    samples = rng.exponential(size=40) ** 2
    means = rng.choice(samples, (40_000, 40)).mean(axis=1)
    without_one = (samples.sum() - samples) / 39
    skew = without_one.mean() - without_one
    acceleration = (skew**3).sum() / (6 * (skew**2).sum() ** 1.5)
    bias = norm.ppf((means < samples.mean()).mean())
    z = bias + norm.ppf([0.025, 0.975])
    expected = np.quantile(means, norm.cdf(bias + z / (1 - acceleration * z)))
    low, high = bootstrap_interval(samples)
    np.testing.assert_allclose((low, high), expected, rtol=0.03)
    assert (np.array([low, high]) > 1.06 * np.quantile(means, [0.025, 0.975])).all()


@pytest.mark.parametrize("count", [2, 7, 500, 2000])
def test_intervals_are_scipys(count: int) -> None:
    samples = np.random.default_rng(count).exponential(size=count) ** 2
    expected = bootstrap((samples,), np.mean, batch=1000, rng=np.random.default_rng(0)).confidence_interval
    np.testing.assert_allclose(bootstrap_interval(samples), expected, rtol=1e-9)
    half = t.ppf(0.975, count - 1) * samples.std(ddof=1) / count**0.5
    np.testing.assert_allclose(student_interval(samples), (samples.mean() - half, samples.mean() + half), rtol=1e-9)


@pytest.mark.parametrize("returns", [[7.0], [7.0, 7.0], [0.1, 0.1, 0.1 + 1e-17, 0.1]])
def test_interval_of_what_does_not_vary_is_a_point(returns: list[float]) -> None:
    low, high = bootstrap_interval(np.array(returns))
    assert low == high == pytest.approx(returns[0])


def test_interval_is_repeatable_and_takes_many_samples() -> None:
    samples = np.random.default_rng(0).normal(size=2000)
    assert bootstrap_interval(samples) == bootstrap_interval(samples)


def test_each_lane_plays_exactly_one_episode() -> None:
    count = MOST_LANES + 44
    played = play(UniformPolicy(env_spec("Parity-v0")), "Parity-v0", count, seed=0, device=CPU)
    expected = np.where(np.arange(count) % 2, LONG, 1)
    np.testing.assert_array_equal(played.returns, expected)
    np.testing.assert_array_equal(played.lengths, expected)
    assert played.levels is None


def test_every_episode_has_its_own_seed_and_only_a_lanes_first_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "MOST_LANES", 4)
    played = play(UniformPolicy(env_spec("Seed-v0")), "Seed-v0", 10, seed=0, device=CPU)
    np.testing.assert_array_equal(played.returns, np.arange(10))
    np.testing.assert_array_equal(played.lengths, np.arange(10) % 3 + 1)
    np.testing.assert_array_equal(played.levels, np.ones(10))
    assert played.successes is not None, "some lanes report it, though none of the first four"
    np.testing.assert_array_equal(played.successes, np.arange(10) >= 4)
    assert not played.cut.any()


def test_an_episode_without_an_end_is_cut() -> None:
    told: list[int] = []
    policy = UniformPolicy(env_spec("Parity-v0"))
    played = play(policy, "Parity-v0", 4, seed=0, device=CPU, max_steps=LONG - 1, tell=told.append)
    assert told == [2, 2]
    np.testing.assert_array_equal(played.cut, [False, True, False, True])
    np.testing.assert_array_equal(played.returns, [1, LONG - 1, 1, LONG - 1])
    whole = play(UniformPolicy(env_spec("Parity-v0")), "Parity-v0", 4, seed=0, device=CPU, max_steps=LONG)
    assert not whole.cut.any()


class Counting:
    """A policy that notes how many lanes it is asked for."""

    def __init__(self, agent: rmc.ActorCritic) -> None:
        self.agent, self.lanes = agent, []
        self.initial_state = agent.initial_state

    def step(self, steps: TimeStep, state: Any) -> Any:
        self.lanes.append(len(steps.is_first))
        return self.agent.step(steps, state)


def test_the_policy_is_not_asked_for_lanes_whose_episode_has_ended() -> None:
    agent = rmc.ActorCritic(env_spec("minipacman"), "lstm", encoder_sizes=(8,))
    policy = Counting(agent)
    played = play(policy, "minipacman", 24, seed=3, device=CPU)
    wanted = [(played.lengths > time).sum() for time in range(played.lengths.max())]
    assert all(few <= many <= few * 8 / 7 for few, many in zip(wanted, policy.lanes, strict=True))

    lanes, state = Lanes(make_env("minipacman", 24), 3, CPU), agent.initial_state(24)
    generator, returns, playing = torch.Generator().manual_seed(3), np.zeros(24), np.ones(24, bool)
    with torch.no_grad():
        while playing.any():
            output, state = agent.step(lanes.steps, state)
            steps = lanes.step(lanes.spec.distribution(output.policy_logits).sample(generator))
            returns += playing * steps.prev_reward.numpy()
            playing &= ~(steps.terminated | steps.truncated).numpy()
    np.testing.assert_array_equal(played.returns, returns)


def test_lanes_whose_episode_has_ended_take_allowed_actions() -> None:
    agent = rmc.ActorCritic(env_spec("Masked-v0"), "none", encoder_sizes=(8,))
    np.testing.assert_array_equal(play(agent, "Masked-v0", 4, seed=0, device=CPU).lengths, [1, LONG, 1, LONG])


def test_cut_episodes_have_no_level_and_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "MOST_LANES", 2)
    played = play(UniformPolicy(env_spec("Seed-v0")), "Seed-v0", 8, seed=0, device=CPU, max_steps=2)
    np.testing.assert_array_equal(played.cut, np.arange(8) % 3 == 2)  # both parts with an uncut episode and without
    assert Statistics.of(played).mean_level == 1
    none = play(UniformPolicy(env_spec("minipacman")), "minipacman", 2, seed=0, device=CPU, max_steps=1)
    assert Statistics.of(none).mean_level is None
    room = play(UniformPolicy(env_spec("memory-s13-random")), "memory-s13-random", 12, seed=0, device=CPU, max_steps=20)
    assert room.cut.any()
    assert "corridor_length" not in room.groups or np.isnan(room.groups["corridor_length"][room.cut]).all()
    Statistics.of(room)


def train_on_seeds(run_dir: Path, *flags: str) -> None:
    sizes = "--env Seed-v0 --core none --encoder-sizes 8 --num-envs 4 --unroll-length 5 --total-frames 40 --no-video"
    assert train_cli.main([*sizes.split(), "--run-dir", str(run_dir), *flags]) == 0


def test_episodes_without_a_word_of_success_are_failures_where_others_have_one(tmp_path: Path) -> None:
    train_on_seeds(tmp_path / "run", "--eval-episodes", "0", "--seed", "4", "--log-every", "1e-9")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    first, second = (point.value for point in events.Scalars("charts/success_rate"))
    assert 0 < first < 1
    assert second == 0


def test_no_episode_of_an_evaluation_was_trained_on(tmp_path: Path) -> None:
    SeedEnv.seeds.clear()
    train_on_seeds(tmp_path / "run", "--eval-episodes", "3")
    assert SeedEnv.seeds[:4] == [0, 1, 2, 3]
    evaluated = SeedEnv.seeds[4:]
    assert len(evaluated) == 6, "three by the agent, three at random"
    assert min(evaluated) >= EVALUATION_SEED > 10_000, "lanes train on seeds from --seed on"


@pytest.mark.parametrize("env", ["recall", "minipacman"])
def test_equal_seeds_give_equal_episodes(env: str) -> None:
    policy = UniformPolicy(env_spec(env))
    first, again, other = (play(policy, env, 20, seed, CPU) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.returns, again.returns)
    assert not np.array_equal(first.lengths, other.lengths)
    assert (first.levels is None, first.successes is None) == ((True, False) if env == "recall" else (False, True))


def test_refuses_an_agent_of_other_spaces() -> None:
    with pytest.raises(ValueError, match=r"\(4,\) of float32 .* got observations \(5, 5, 3\) of uint8"):
        check_fits(env_spec("recall"), "minipacman")


def test_command_writes_what_it_measures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, target = save_agent(tmp_path), tmp_path / "evaluation.json"
    assert cli.main([str(tmp_path), "--episodes", "12", "--seed", "5", "--json", str(target)]) == 0
    result = json.loads(target.read_text())
    keys = {"mean_return", "ci95", "median", "min", "max", "mean_length", "episodes", "random_mean_return"}
    assert keys | {"success_rate", "checkpoint", "frames", "seed"} <= result.keys()
    assert (result["episodes"], result["frames"], result["checkpoint"]) == (12, 1200, str(path))
    assert "uniform random" in capsys.readouterr().out
    assert cli.main([str(path), "--episodes", "12", "--seed", "5", "--json", str(target)]) == 0
    assert json.loads(target.read_text()) == result


def test_evaluate_is_plain_json() -> None:
    result = evaluate(UniformPolicy(env_spec("recall")), "recall", 30, 0, CPU)
    assert json.loads(json.dumps(result, allow_nan=False))["mean_return"] == result["random_mean_return"]


def test_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, foreign, damaged = tmp_path / "run", tmp_path / "foreign", tmp_path / "damaged.safetensors"
    saved = save_agent(run)
    foreign.write_text("no checkpoint")
    content = bytearray(saved.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    for argv, message in (
        ([tmp_path / "none"], "there is no checkpoint"),
        ([tmp_path], "holds no checkpoint"),
        ([foreign], "not a checkpoint"),
        ([damaged], "is damaged"),
        ([run, "--json", tmp_path], "is a folder"),
        ([run, "--json", tmp_path / "none" / "x.json"], "there is no folder"),
        ([run, "--env", "minipacman"], "does not fit environment 'minipacman'"),
        ([run, "--env", "minipackman"], "did you mean 'minipacman'"),
        ([run, "--episodes", "0"], "--episodes: expected at least 1"),
        ([run, "--max-steps", "0"], "--max-steps: expected at least 1"),
    ):
        line = refused(capsys, cli, *argv)
        assert message in line
        assert line.startswith("rmc-evaluate: ")
        assert line.count("\n") == 1
    assert "--bogus" in refused(capsys, cli, run, "--bogus")
    assert ".mp4, .gif, .html or .png" in refused(capsys, watch, run, "--out", tmp_path / "a.avi")
    save_agent(tmp_path / "silent", "Wanderer-v0")
    assert "cannot be recorded" in refused(capsys, watch, tmp_path / "silent")


def test_watch_records_into_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_agent(tmp_path, "minipacman")
    assert watch.main([str(tmp_path), "--max-steps", "5", "--seed", "4"]) == 0
    assert (tmp_path / "videos" / "update-000000003-seed4.mp4").stat().st_size > 1000
    output = capsys.readouterr().out
    assert "seed 4: return" in output
    assert "update-000000003-seed4.mp4" in output


def write_events(run_dir: Path, points: dict[int, float], purge_step: int | None = None, late: float = 0.0) -> None:
    writer = SummaryWriter(str(run_dir / "tensorboard"), purge_step=purge_step)
    for frames, value in points.items():
        writer.add_scalar("charts/episodic_return", value, frames)
        writer.add_scalar(TIME_TAG, frames / 5 + late, frames)
    writer.close()


def test_plot_reads_a_resumed_run(tmp_path: Path) -> None:
    write_events(tmp_path, {10: 1.0, 20: 2.0, 30: 99.0})
    write_events(tmp_path, {30: 3.0, 40: 4.0}, purge_step=25, late=1.5)
    curve = curves.read_curve(tmp_path)
    assert curve.frames.tolist() == [10, 20, 30, 40]
    assert curve.values.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert curve.seconds.tolist() == [2.0, 4.0, 7.5, 9.5]


def test_plot_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [tmp_path / name for name in ("a", "b")]
    for i, run in enumerate(runs):
        save_agent(run)
        write_events(run, {10: 1.0 + i, 20: 3.0 + i})
    out = tmp_path / "curves.png"
    assert plot.main([*map(str, runs), "--out", str(out), "--mark", "random=0.5", "--against", "both"]) == 0
    assert out.read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    (tmp_path / "empty").mkdir()
    assert plot.main([str(runs[0]), "--out", str(out), "--smooth", "1"]) == 0
    assert capsys.readouterr().out == f"{out} (curves not smoothed)\n"
    assert "holds no TensorBoard events" in refused(capsys, plot, tmp_path / "empty")
    assert "expected NAME=VALUE, got 'random'" in refused(capsys, plot, runs[0], "--mark", "random")
    assert "ends in .png" in refused(capsys, plot, runs[0], "--out", "a.pdf")


def make_curve(frames: list[int], returns: list[float]) -> curves.Curve:
    return curves.Curve(np.array(frames), np.array(returns), 60.0 * np.array(frames) / 10)


def test_plot_draws_the_mean_over_seeds() -> None:
    curves = [make_curve([0, 10], [0.0, 2.0]), make_curve([5, 15], [3.0, 5.0])]
    figure = plot.draw({"lstm": curves}, {"random": 1.0}, "title", ("frames", "minutes"))
    for axes, ends in zip(figure.axes, ([5, 10], [0.5, 1.0]), strict=True):
        mean = max(axes.lines, key=lambda line: line.get_linewidth())
        np.testing.assert_allclose(mean.get_xdata()[[0, -1]], ends)
        np.testing.assert_allclose(mean.get_ydata()[[0, -1]], [2.0, 3.0])
    assert [text.get_text() for text in figure.legends[0].get_texts()][1] == "random (1)"


def test_a_curve_of_one_point_is_a_dot_and_the_legend_says_how_curves_are_smoothed() -> None:
    curves = {"short": [make_curve([10], [1.0])], "seeds": [make_curve([10, 20], [0, 1]), make_curve([20, 30], [1, 2])]}
    figure = plot.draw(curves, {}, "title", smooth=5)
    markers = {len(np.unique(line.get_xdata())): line.get_marker() for line in figure.axes[0].lines}
    assert markers == {1: "o", 2: "None"}
    assert "averaged over 5 neighbouring points" in figure.legends[0].get_title().get_text()


@pytest.mark.filterwarnings("error")
def test_drawing_and_intervals_warn_of_nothing(tmp_path: Path) -> None:
    assert np.isnan(curves.bootstrap_band(np.array([np.nan, 1.0]))).all()
    plot.write_png(plot.draw({"\u7d19": [make_curve([10], [1.0])]}, {}, "title"), str(tmp_path / "a.png"))


def test_interquartile_mean_leaves_out_a_quarter_at_both_ends() -> None:
    samples = np.array([[100.0, 0.0], [1.0, 0.0], [3.0, 0.0], [-50.0, 4.0]])
    np.testing.assert_allclose(curves.interquartile_mean(samples), [2.0, 0.0])
    low, high = curves.bootstrap_band(samples)
    assert (low <= [2.0, 0.0]).all()
    assert (high >= [2.0, 0.0]).all()
    assert low[1] == 0
    assert 0 < high[1] <= 4


def test_the_band_is_of_the_interquartile_mean() -> None:
    """Among sixteen samples one that is far off counts in none but one of thousands of resamples."""
    low, high = curves.bootstrap_band(np.array([1000.0] + [0.0] * 15))
    assert (low, high) == (0, 0)


def test_runs_that_differ_in_more_than_the_seed_are_not_seeds_of_one_agent() -> None:
    changes = [{"seed": 0}, {"seed": 1, "video": False}, {"mem_slots": 8}, {"core": "lstm"}]
    configs = [Config().updated(change, "test") for change in changes]
    labels = plot.labels([config.core.core for config in configs], configs)
    assert labels == ["rmc, mem_slots=4", "rmc, mem_slots=4", "rmc, mem_slots=8", "lstm"]
    assert plot.labels(["rmc", "rmc"], configs[:2]) == ["rmc", "rmc"]


def test_smoothing_is_a_centred_mean() -> None:
    curve = make_curve([0, 1, 2, 3, 4], [0.0, 3.0, 6.0, 0.0, 0.0])
    np.testing.assert_allclose(curves.smoothed(curve, 3).values, [1.5, 3.0, 3.0, 2.0, 0.0])
    assert curves.smoothed(curve, 1) is curve
