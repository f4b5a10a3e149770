"""Evaluation during training: it does not change the training, and its results are saved, plotted and printed."""

import io
import json
import random
import re
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import gymnasium as gym
import numpy as np
import pytest
import torch
from rich.console import Console

from helpers.agents import small_trainer
from helpers.runs import FRAMES_PER_UPDATE, assert_same, events_of, newest, refused, resume
from helpers.runs import train as train_quietly
from rmc_agents.config import Config
from rmc_agents.evaluate import cli as evaluate_cli
from rmc_agents.evaluate import export, plot
from rmc_agents.evaluate.episodes import PlaySettings
from rmc_agents.evaluate.statistics import EVALUATION_SEED, Episodes
from rmc_agents.runs import best as best_module
from rmc_agents.runs import checkpoint
from rmc_agents.runs.best import best_of
from rmc_agents.train import cli, evaluating, loop
from rmc_agents.train.evaluating import SELECTION_SEED, Evaluator
from rmc_agents.train.reporting.reporter import write_hparams
from rmc_agents.train.run import Progress, train

QUIET = Console(quiet=True)
SMALL = {"core": "lstm", "hidden_size": 8, "encoder_sizes": [8], "num_envs": 4, "unroll_length": 5, "video": False}
EVERY = 2 * FRAMES_PER_UPDATE
EVALUATED = ["--eval-episodes", "4", "--eval-every", str(EVERY)]
SIX_UPDATES = ["--total-frames", str(6 * FRAMES_PER_UPDATE)]


class Careless(gym.Env):
    """Observations and rewards are drawn from the global random generators."""

    observation_space = gym.spaces.Box(0, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return self._draw(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        obs = self._draw()
        return obs, float(obs.sum()), bool(obs[0] < 0.3), False, {}

    @staticmethod
    def _draw() -> np.ndarray:
        return np.float32([random.random(), np.random.random(), torch.rand(()).item()])  # noqa: NPY002


def points(run_dir: Path, tag: str) -> dict[int, float]:
    return {event.step: event.value for event in events_of(run_dir).Scalars(tag)}


def test_training_is_the_same_with_and_without(tmp_path: Path) -> None:
    for every in (0, 20):
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        torch.manual_seed(0)
        settings = SMALL | {"total_frames": 120, "eval_every": every, "eval_episodes": 3}
        train(settings, env=Careless, run_dir=tmp_path / str(every), console=QUIET)
    assert_same(newest(tmp_path / "0"), newest(tmp_path / "20"))
    assert len(points(tmp_path / "20", "evaluation/return")) == 6


@pytest.mark.slow
def test_a_resumed_run_has_the_same_evaluations_and_the_same_best_agent(tmp_path: Path) -> None:
    """Resumed once from its end and once, as after a kill, from a checkpoint before the best agent was saved."""
    whole, resumed, killed = (tmp_path / name for name in ("whole", "resumed", "killed"))
    flags = ["--core", "lstm", *EVALUATED, "--eval-max-steps", "30", "--learning-rate-schedule", "constant"]
    flags += ["--save-every", "1e-9", "--keep-checkpoints", "9"]
    train_quietly(*flags, *SIX_UPDATES, "--run-dir", str(whole))
    train_quietly(*flags, "--total-frames", str(3 * FRAMES_PER_UPDATE), "--run-dir", str(resumed))
    shutil.copytree(whole, killed)
    for path in list(checkpoint.numbered(killed))[:-1]:
        path.unlink()
    for run in (resumed, killed):
        assert resume(run, *SIX_UPDATES) == 0
        assert_same(newest(whole), newest(run))
        for tag in ("return", "low", "high"):
            assert points(run, f"evaluation/{tag}") == points(whole, f"evaluation/{tag}")
        assert best_of(run) == best_of(whole)
    assert list(points(whole, "evaluation/return")) == [EVERY, 2 * EVERY, 3 * EVERY]


def test_the_best_agent_so_far_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = small_trainer(eval_every=10, eval_episodes=2)
    evaluator, found = Evaluator(trainer, tmp_path), []
    seeds = []

    def fake_play(policy: Any, env: Any, episodes: int, settings: PlaySettings, **_: Any) -> Episodes:
        seeds.append(settings.seed)
        return Episodes(np.full(episodes, score), np.ones(episodes), None, None, np.zeros(episodes, bool))

    monkeypatch.setattr(evaluating, "play", fake_play)
    for frames, score in ((9, None), (10, 1.0), (19, None), (25, 3.0), (30, 3.0), (41, 2.0)):
        trainer.frames = frames
        assert evaluator.is_due == (score is not None)
        if evaluator.is_due:
            found.append(evaluator.evaluate().is_best)
    best = best_of(tmp_path)
    assert found == [True, True, False, False]
    assert best is not None
    assert (best.frames, best.provenance.mean_return) == (25, 3.0)
    assert set(seeds) == {SELECTION_SEED} != {EVALUATION_SEED}
    for frames in (50, 20):  # also after a resume from a checkpoint before the best agent
        trainer.frames, score = frames, 2.5
        assert not Evaluator(trainer, tmp_path).evaluate().is_best


@pytest.mark.parametrize(
    ("algo", "best_so_far", "frames"), [("supervised", [True, True, False], 20), ("a2c", [True, False, False], 10)]
)
def test_the_best_agent_of_supervised_learning_has_the_most_right_answers(
    algo: str, best_so_far: list[bool], frames: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of reinforcement learning has the highest return, which is equal here."""
    trainer = small_trainer(eval_every=10, eval_episodes=5)
    trainer.config = trainer.config.updated({"algo": algo}, "test")
    every, none = np.ones(5, np.int64), np.zeros(5)

    def fake_play(policy: Any, env: Any, episodes: int, settings: PlaySettings, **_: Any) -> Episodes:
        return Episodes(none, every, None, None, none.astype(bool), asked=5 * every, right=right * every)

    monkeypatch.setattr(evaluating, "play", fake_play)
    found = []
    for trainer.frames, right in ((10, 1), (20, 3), (30, 2)):  # noqa: B007
        found.append(Evaluator(trainer, tmp_path).evaluate().is_best)  # each as after a resume
    assert found == best_so_far
    best = best_of(tmp_path)
    assert best is not None
    assert best.frames == frames
    assert (best.provenance.accuracy, best.provenance.mean_return) == ({20: 0.6, 10: 0.2}[frames], 0.0)


def test_a_damaged_file_of_the_best_agent_ends_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "best.safetensors").write_bytes(b"damaged")
    assert best_of(tmp_path) is None
    assert f"{tmp_path / 'best.safetensors'} is" in caplog.text


@pytest.mark.slow
def test_a_branch_begins_with_the_best_agent_of_its_past(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one whose checkpoint is named from inside its folder, and whose first start failed."""
    flags = ["--env", "recall", *EVALUATED, "--save-every", "1e-9", "--keep-checkpoints", "9", *SIX_UPDATES]
    train_quietly(*flags, "--run-dir", str(tmp_path / "run"))
    best = best_of(tmp_path / "run")
    assert best is not None
    for update, expected in ((1, None), (6, best)):
        branch = tmp_path / str(update)
        flags = ["--run-dir", str(branch), "--eval-every", "0", "--total-frames", str(7 * FRAMES_PER_UPDATE)]
        monkeypatch.chdir(tmp_path / "run" / "checkpoints")
        with monkeypatch.context() as failing:
            failing.setattr(loop, "Tracking", Mock(side_effect=ValueError("no tracker")))
            assert resume(f"update-{update:09d}.safetensors", *flags) == 2
        assert resume(f"update-{update:09d}.safetensors", *flags) == 0
        assert best_of(branch) == expected


def test_a_branch_takes_the_file_whose_frames_it_has_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The training that it branches from may replace the file at any time."""
    for name in ("run", "branch"):
        (tmp_path / name).mkdir()
    (tmp_path / "run" / "best.safetensors").write_text("early")

    def replaced(run_dir: Path) -> best_module.Best:
        (tmp_path / "run" / "best.safetensors").write_text("late")
        return best_module.Best(7, Mock())

    monkeypatch.setattr(best_module, "best_of", replaced)
    best_module.copy_best(tmp_path / "run", tmp_path / "branch", 7)
    assert (tmp_path / "branch" / "best.safetensors").read_text() == "early"
    best_module.copy_best(tmp_path / "run", tmp_path / "branch", 6)
    assert not list((tmp_path / "branch").iterdir())


def test_what_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In lines, in TensorBoard, in the summary; and the best agent's file is taken by the other commands."""
    run, seen = tmp_path / "run", list[Progress]()
    out = io.StringIO()
    settings = SMALL | {"env": "recall", "total_frames": 60, "eval_every": 20, "eval_episodes": 60}
    train(settings, run_dir=run, callback=seen.append, console=Console(file=out))  # type: ignore[arg-type]
    assert out.getvalue().count("evaluation at ") == 3
    assert re.search(
        r"evaluation at 20 frames: mean return -0\.\d+ \(.*\) over 60 episodes, the best so far", out.getvalue()
    )
    assert f"best agent      {run / 'best.safetensors'}" in out.getvalue()
    assert [p.evaluation.episodes for p in seen if p.evaluation is not None] == [60, 60, 60]

    summary = json.loads((run / "summary.json").read_text())
    best = summary["best"]
    assert best["frames"] == 20
    assert points(run, "evaluation/return")[20] == pytest.approx(best["mean_return"])
    assert points(run, "evaluation/low").keys() == points(run, "evaluation/success_rate").keys() == {20, 40, 60}
    assert points(run, "final/return") == pytest.approx({60: summary["evaluation"]["mean_return"]})
    assert [path for path in (run / "tensorboard").iterdir() if path.is_dir()] == []

    file = str(run / "best.safetensors")
    for main, *flags in (
        (evaluate_cli.main, file, "--episodes", "2"),
        (export.main, file, str(tmp_path / "out.safetensors"), "--episodes", "2"),
        (plot.main, str(run), "--metric", "evaluation"),
    ):
        assert main(flags) == 0
    assert "over 60 episodes from seed 3000000" in " ".join(capsys.readouterr().out.split())
    again = ["--config", str(run / "config.yaml"), "--eval-episodes", "1", "--eval-every", "0"]
    assert cli.main([*again, "--init-from", file, "--run-dir", str(tmp_path / "new")]) == 0


def test_settings_and_final_scores_are_what_tensorboard_compares_runs_by(tmp_path: Path) -> None:
    from tensorboard.plugins.hparams.metadata import PLUGIN_NAME

    train(SMALL | {"env": "recall", "total_frames": 20, "eval_episodes": 2}, run_dir=tmp_path / "run", console=QUIET)
    events = events_of(tmp_path / "run")
    content = events.summary_metadata["_hparams_/session_start_info"].plugin_data
    assert content.plugin_name == PLUGIN_NAME
    assert b"learning_rate" in content.content
    assert b"final/return" in events.summary_metadata["_hparams_/experiment"].plugin_data.content
    named = Config().updated({"env": "text:a\udce9.txt"}, "test")  # a file's name need not be UTF-8
    write_hparams(tmp_path / "run", named, {"frames": 20})


def test_an_evaluation_is_no_training_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that an evaluation moves by an hour."""
    from rmc_agents.train.reporting import clock

    hours = [0.0]
    real_time, real_play = clock.time.perf_counter, evaluating.play
    monkeypatch.setattr(clock.time, "perf_counter", lambda: real_time() + 3600 * hours[0])

    def slow_play(*arguments: Any, **named: Any) -> Episodes:
        hours[0] += 1
        return real_play(*arguments, **named)

    monkeypatch.setattr(evaluating, "play", slow_play)
    settings = SMALL | {"env": "recall", "total_frames": 60, "eval_every": 20, "eval_episodes": 2}
    assert train(settings, run_dir=tmp_path / "run", console=QUIET).summary["seconds"] < 3600
    assert hours == [3]


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        "--algo a2c --learners 2",
        "--algo impala --actors 1 --batch-rollouts 1 --lanes-per-actor 8",
        "--algo recurrent-ppo --sb3-policy mlp",
        "--algo supervised --env nth-farthest-vectors2-size3",
    ],
)
def test_every_algorithm(flags: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if "recurrent" in flags:
        pytest.importorskip("sb3_contrib", reason="Stable-Baselines3 is not installed: pip install rmc-agents[sb3]")
    run = tmp_path / "run"
    arguments = ["--env", "recall", *flags.split(), *EVALUATED, "--run-dir", str(run)]
    assert train_quietly(*arguments, "--total-frames", str(2 * EVERY)) == 0
    assert len(points(run, "evaluation/return")) == 2
    assert ("supervised" in flags) == ("evaluation/accuracy" in events_of(run).Tags()["scalars"])
    best = best_of(run)
    assert best is not None
    assert resume(run, "--total-frames", str(3 * EVERY), *(["--trust"] if "recurrent" in flags else [])) == 0
    assert len(points(run, "evaluation/return")) == 3
    file = next(run.glob("best.*"))
    assert evaluate_cli.main([str(file), "--episodes", "2", "--trust"]) == 0
    assert "from seed 3000000" in " ".join(capsys.readouterr().out.split())


def test_an_evaluation_without_episodes_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--env", "recall", "--eval-every", "10", "--eval-episodes", "0", "--run-dir", str(tmp_path / "run")]
    assert "eval_every: expected eval_episodes of at least 1" in refused(capsys, cli, *flags)
    lanes = gym.vector.SyncVectorEnv([Careless] * 2)
    with pytest.raises(ValueError, match="a vector environment object has 0"):
        train(SMALL | {"eval_every": 10}, env=lanes, run_dir=tmp_path / "other", console=QUIET)
