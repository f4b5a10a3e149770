"""Stable-Baselines3's algorithms in rmc-train: run folders, settings and errors like those of our own."""

import json
import random
import shutil
import signal
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from rich.console import Console

from helpers import forked, wandering
from helpers.runs import SMALL, events_of, resume, train

pytest.importorskip("sb3_contrib", reason="Stable-Baselines3 is not installed: pip install rmc-agents[sb3]")


from rmc_agents.config import Config
from rmc_agents.envs.processes import EnvError
from rmc_agents.evaluate import cli as evaluate_cli
from rmc_agents.evaluate import compare, comparison, export, scheduler
from rmc_agents.losses import Metrics
from rmc_agents.runs import archive
from rmc_agents.runs.saved import load_policy
from rmc_agents.sb3 import RmcPolicy, make_sb3_env
from rmc_agents.stream import seed_after
from rmc_agents.train import cli as train_cli
from rmc_agents.train.algorithms import make_trainer
from rmc_agents.train.bench import cli as bench
from rmc_agents.train.run import train as train_run
from rmc_agents.train.sb3.model import _batch_size
from rmc_agents.train.sb3.trainer import Sb3Lanes, Sb3Trainer
from rmc_agents.types import TimeStep

pytestmark = pytest.mark.slow
CPU = torch.device("cpu")
FRAMES_PER_UPDATE = 40  # of SMALL
POLICIES = {
    "recurrent-ppo": ("RmcPolicy", "rmc"),
    "recurrent-ppo --sb3-policy mlp": ("RecurrentActorCriticPolicy", "lstm"),
    "sb3-a2c": ("ActorCriticPolicy", "none"),
    "sb3-ppo": ("ActorCriticPolicy", "none"),
}


@pytest.mark.parametrize(
    ("algo", "env"),
    [
        ("recurrent-ppo", "CartPole-v1"),
        ("recurrent-ppo --sb3-policy mlp", "recall"),
        ("sb3-a2c", "recall"),
        ("sb3-ppo", "recall"),
    ],
)
def test_every_algorithm_leaves_a_folder_as_ours(
    algo: str, env: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    flags = ["--algo", *algo.split(), "--env", env, "--total-frames", "160", "--run-dir", str(run_dir)]
    assert train_cli.main([*SMALL, *flags, "--no-video", "--eval-episodes", "3"]) == 0
    policy, core = POLICIES[algo]
    output = capsys.readouterr().out
    assert policy in output
    assert "optimizer Adam" in output
    assert f"core rmc is not used: this policy's is {core}" in output or core == "rmc"
    config = Config().updated_from_yaml(run_dir / "config.yaml")
    assert (config.train.algo, config.train.optimizer, config.core.core) == (algo.partition(" ")[0], "adam", core)
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["frames"], summary["updates"], summary["evaluation"]["episodes"]) == (160, 4, 3)
    assert "sb3-contrib" in json.loads((run_dir / "versions.json").read_text())
    run = comparison.collect("agent", run_dir)  # for rmc-compare, which opens no archive
    assert (run.config, run.frames) == (config, 160)
    assert f" {run.parameters:,} parameters" in output
    names = {"charts/SPS", "charts/learning_rate", "losses/policy_loss", "losses/value_loss", "losses/entropy"}
    names |= {"losses/explained_variance", "charts/episodic_return"}
    if algo != "sb3-a2c":
        names |= {"losses/clipfrac", "losses/approx_kl"}
    events = events_of(run_dir)
    assert names <= set(events.Tags()["scalars"])
    assert events.Scalars("losses/entropy")[-1].value > 0
    assert events.Scalars("losses/entropy")[-1].step == 160


def test_settings_reach_the_model() -> None:
    settings = {"num_envs": 6, "unroll_length": 10, "ppo_minibatches": 3, "ppo_epochs": 2, "ppo_clip": 0.3}
    settings |= {"discount": 0.9, "trace_lambda": 0.8, "entropy_cost": 0.07, "value_cost": 0.4, "max_grad_norm": 3.0}
    settings |= {"learning_rate": 2e-3, "adam_epsilon": 1e-4, "normalize_advantages": False, "seed": 5}
    settings |= {"core": "gru", "hidden_size": 7, "encoder_sizes": [12, 9], "core_gain": 0.25, "decay_start": 0.25}
    model = make_trainer(Config().updated({"algo": "recurrent-ppo", **settings}, "test"), CPU).model
    assert (model.n_envs, model.n_steps, model.batch_size, model.n_epochs, model.clip_range(1)) == (6, 10, 20, 2, 0.3)
    assert (model.gamma, model.gae_lambda, model.ent_coef, model.vf_coef) == (0.9, 0.8, 0.07, 0.2)
    assert (model.max_grad_norm, model.normalize_advantage, model.seed) == (3.0, False, seed_after(5, 0))
    assert [model.lr_schedule(remaining) for remaining in (1.0, 0.75, 0.375, 0.0, -0.1)] == [2e-3, 2e-3, 1e-3, 0.0, 0.0]
    assert isinstance(model.policy.optimizer, torch.optim.Adam)
    assert model.policy.optimizer.defaults["eps"] == 1e-4
    assert isinstance(model.policy, RmcPolicy)
    assert model.policy.features_dim == 9
    assert model.policy.core_gain == 0.25
    assert model.policy.action_net.in_features == 7 + 9  # linear heads on core and encoder, as our own agent's
    layered = make_trainer(Config().updated({"algo": "recurrent-ppo", **settings, "head_sizes": [11]}, "test"), CPU)
    assert [type(each).__name__ for each in layered.model.policy.mlp_extractor.policy_net] == ["Linear", "ReLU"]
    with pytest.raises(ValueError, match="head_sizes: expected none with sb3_policy mlp or cnn"):
        make_trainer(Config().updated({"algo": "sb3-a2c", "head_sizes": [11]}, "test"), CPU)
    with pytest.raises(ValueError, match="encoder: expected auto, mlp or conv with algo sb3-ppo, got grid"):
        make_trainer(Config().updated({"algo": "sb3-ppo", "encoder": "grid"}, "test"), CPU)
    a2c = make_trainer(Config().updated({"algo": "sb3-a2c", **settings}, "test"), CPU).model
    assert isinstance(a2c.policy.optimizer, torch.optim.Adam)
    assert a2c.policy.net_arch == [12, 9]


@pytest.mark.parametrize(
    ("frames", "minibatches", "least"), [(5120, 4, 2), (7, 3, 2), (2, 5, 2), (9, 2, 2), (10, 9, 2), (1, 4, 1)]
)
def test_no_minibatch_has_too_few_frames(frames: int, minibatches: int, least: int) -> None:
    size = _batch_size(frames, minibatches, least)
    assert size >= least
    assert frames % size == 0 or frames % size >= least
    assert -(-frames // size) <= minibatches


def test_the_learning_rate_falls_with_the_frames_to_come() -> None:
    settings = {"num_envs": 4, "unroll_length": 5, "total_frames": 40, "algo": "sb3-ppo", "learning_rate": 1e-3}
    trainer = make_trainer(Config().updated(settings, "test"), CPU)
    assert [trainer.update()["charts/learning_rate"].item() for _ in range(2)] == pytest.approx([1e-3, 5e-4])
    assert (trainer.frames, trainer.updates) == (40, 2)


def test_rewards_are_scaled_and_returns_are_not() -> None:
    config = Config().updated({"env": "minipacman", "num_envs": 3, "reward_scale": 0.25}, "test")
    lanes, plain = Sb3Lanes(config, CPU), make_sb3_env("minipacman", 3, seed=1)
    lanes.seed(1)
    assert np.array_equal(lanes.reset(), plain.reset())
    expected, generator = [], np.random.default_rng(0)
    for _ in range(300):
        actions = generator.integers(0, lanes.action_space.n, 3)
        _, rewards, dones, _ = lanes.step(actions)
        _, full, others, infos = plain.step(actions)
        assert np.array_equal(rewards, full * np.float32(0.25))
        assert np.array_equal(dones, others)
        expected += [(info["episode"]["r"], info["episode"]["l"]) for info in infos if "episode" in info]
    episodes = lanes.take_episodes()
    assert [(episode.episode_return, episode.length) for episode in episodes] == expected
    assert len({episode_return for episode_return, _ in expected}) > 1
    assert lanes.take_episodes() == []


def test_success_is_counted_where_the_environment_reports_it() -> None:
    config = Config().updated({"env": "memory-s7", "num_envs": 4}, "test")
    lanes = Sb3Lanes(config, CPU)
    lanes.seed(0)
    lanes.reset()
    generator = np.random.default_rng(0)
    for _ in range(260):
        lanes.step(generator.integers(0, 3, 4))
    episodes = lanes.take_episodes()
    assert episodes
    assert all(episode.success == (episode.episode_return > 0) for episode in episodes)


def test_an_episode_that_reports_no_success_fails_where_others_report_one(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = Sb3Lanes(Config().updated({"env": "memory-s7", "num_envs": 2}, "test"), CPU)
    lanes.seed(0)
    obs = lanes.reset()
    results = iter([(np.array([True, False]), [{}, {}]), (np.array([True, True]), [{"is_success": True}, {}])])

    def step_wait() -> Any:
        dones, infos = next(results)
        return obs, np.zeros(2), dones, [info | {"terminal_observation": obs[0]} for info in infos]

    monkeypatch.setattr(lanes.venv, "step_wait", step_wait)
    for _ in range(2):
        lanes.step_wait()
    assert [episode.success for episode in lanes.take_episodes()] == [None, True, False]


@pytest.mark.parametrize("algo", POLICIES)
def test_the_player_has_the_policys_outputs(algo: str) -> None:
    name, *flags = algo.split()
    settings = {"algo": name, "num_envs": 3, "unroll_length": 4, "hidden_size": 8, "mem_slots": 3, "head_size": 4}
    settings |= {"sb3_policy": flags[1]} if flags else {}
    trainer = make_trainer(Config().updated(settings, "test"), CPU)
    model, player = trainer.model, trainer.agent
    trainer.update()
    generator = np.random.default_rng(0)
    state, theirs = player.initial_state(3), None
    for t in range(6):
        obs = generator.integers(0, 256, (3, *trainer.lanes.spec.obs_shape), np.uint8)
        starts = np.array([t == 0, t in (0, 3), True])
        zeros = torch.zeros(3)
        steps = TimeStep(torch.from_numpy(obs), torch.from_numpy(starts), zeros.long(), zeros, zeros > 0, zeros > 0)
        output, state = player.step(steps, state)
        actions, theirs = model.predict(obs, theirs, starts, deterministic=True)
        assert output.policy_logits.argmax(dim=-1).tolist() == actions.tolist()
        assert output.value.shape == (3,)


def test_a_resumed_run_continues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = tmp_path / "run"
    flags = ["--algo", "sb3-ppo", "--log-every", "1e-9", "--run-dir", str(run_dir), "--save-every", "1e-9"]
    flags += ["--eval-every", "200", "--eval-episodes", "1", "--eval-max-steps", "9"]
    assert train(*flags, "--total-frames", "200") == 0
    weights = load_policy(run_dir, CPU, trust=True).agent.state_dict()
    assert resume(run_dir, "--total-frames", "200", "--trust") == 0
    after = load_policy(run_dir, CPU, trust=True).agent.state_dict()
    assert all(torch.equal(after[name], weight) for name, weight in weights.items()), "nothing was left to learn"
    assert resume(run_dir, "--total-frames", "400", "--trust") == 0
    output = capsys.readouterr().out
    assert "the resume is not exact" in output
    assert f"--resume {run_dir} --total-frames 800 --trust" in output
    path, facts = archive.find(run_dir)
    assert (facts.frames, facts.updates, path.name) == (400, 10, "update-000000010.zip")
    kept = sorted(p.name for p in path.parent.iterdir())
    assert kept == [f"update-{update:09d}.zip" for update in (8, 9, 10)]
    assert facts.seconds > 0
    events = events_of(run_dir)
    steps = [point.step for point in events.Scalars("losses/entropy")]
    assert steps == list(range(40, 401, 40))
    assert resume(run_dir, "--learning-rate", "1", "--trust") == 2
    assert "cannot change learning_rate" in capsys.readouterr().err
    assert resume(run_dir / "best.zip", "--trust") == 2
    assert "holds only an agent" in capsys.readouterr().err


def test_a_stop_saves(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir, update = tmp_path / "run", Sb3Trainer.update

    def interrupted(trainer: Sb3Trainer) -> Metrics:
        if trainer.updates == 2:
            signal.raise_signal(signal.SIGINT)
        return update(trainer)

    monkeypatch.setattr(Sb3Trainer, "update", interrupted)
    assert train("--run-dir", str(run_dir), "--algo", "sb3-a2c", "--total-frames", "1000000") == 128 + signal.SIGINT
    captured = capsys.readouterr()
    assert f"rmc-train --resume {run_dir} --trust" in captured.out.replace("\n", "")
    assert captured.err == ""
    assert archive.find(run_dir)[1].frames == 3 * FRAMES_PER_UPDATE
    monkeypatch.undo()
    assert resume(run_dir, "--total-frames", str(4 * FRAMES_PER_UPDATE), "--trust") == 0
    assert archive.find(run_dir)[1].frames == 4 * FRAMES_PER_UPDATE


def test_a_failing_environment_is_reported_and_the_training_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    monkeypatch.setenv(wandering.FAULT, "raise")
    flags = ["--algo", "recurrent-ppo", "--env", "helpers.wandering:Wanderer-v0", "--env-workers", "2"]
    assert train(*flags, "--total-frames", "100000", "--run-dir", str(run_dir)) == 2
    captured = capsys.readouterr()
    assert captured.err.count("Traceback") == 1
    assert "RuntimeError: it fell off the edge" in captured.err.splitlines()[-1]
    _, facts = archive.find(run_dir)
    assert (facts.frames, facts.updates) == (facts.updates * FRAMES_PER_UPDATE, 5)
    assert f"saved at {facts.frames:,} frames" in captured.out
    monkeypatch.delenv(wandering.FAULT)
    total = str(facts.frames + FRAMES_PER_UPDATE)
    assert resume(run_dir, "--trust", "--env-workers", "0", "--total-frames", total) == 0
    assert archive.find(run_dir)[1].frames == int(total)


def test_unfinished_runs_are_resumed_by_compare_and_sweep_and_not_deleted(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "trial-0003"
    shutil.copytree(trained, folder)
    (folder / "summary.json").unlink()
    config = Config().updated_from_yaml(folder / "config.yaml")
    job = scheduler.Job("agent", folder, config)
    with pytest.raises(ValueError, match="add --trust"):
        next(compare.train_all([job], 1, Console()))
    started: list[list[str]] = []
    monkeypatch.setattr(scheduler, "note_commit", lambda folder: None)
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: started.append(command))
    scheduler.start(job, trust=True)
    (command,) = started
    assert command[command.index("--resume") + 1] == str(folder)
    assert command[-1] == "--trust"
    assert archive.find(folder)[1].frames == 400


BAD = {
    "core in a policy without memory": (["--algo", "sb3-ppo", "--sb3-policy", "rmc"], "expected auto, mlp or cnn"),
    "convolutions of a small view": (["--algo", "sb3-a2c", "--sb3-policy", "cnn"], "at least 36x36 pixels"),
    "diagnostics": (
        ["--algo", "recurrent-ppo", "--diagnostics"],
        "--diagnostics: expected one of this project's own algorithms",
    ),
    "pretrained": (
        ["--algo", "sb3-ppo", "--init-from", "minipacman-rmc"],
        "--init-from: expected one of this project's own algorithms",
    ),
    "one frame": (["--algo", "sb3-ppo", "--num-envs", "1", "--unroll-length", "1"], "at least 2 frames"),
    "one frame of A2C": (["--algo", "sb3-a2c", "--num-envs", "1", "--unroll-length", "1"], "at least 2 frames"),
    "divergence": (["--algo", "sb3-ppo", "--learning-rate", "1e15", "--value-cost", "1e15"], "training diverged"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_settings_are_one_line(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags, expected = BAD[case]
    assert train(*flags, "--total-frames", "400", "--run-dir", str(tmp_path / "run")) == 2
    captured = capsys.readouterr()
    assert expected in captured.err
    assert captured.err.count("\n") == 1


class Broken(gym.Env):
    """Episodes of three steps; one observation is NaN, at this step of this episode."""

    observation_space, action_space = Box(-1, 1, (2,)), Discrete(2)

    def __init__(self, episode: int, step: int) -> None:
        self.place, self.episode = (episode, step), -1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        self.episode, self.time = self.episode + 1, 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.time += 1
        return self._observe(), 0.0, False, self.time == 3, {}

    def _observe(self) -> np.ndarray:
        return np.full(2, np.nan if (self.episode, self.time) == self.place else 0, np.float32)


@pytest.mark.parametrize(("episode", "step"), [(0, 0), (1, 0), (1, 2), (1, 3)])
def test_nan_is_the_environments_wherever_in_an_episode_it_is(episode: int, step: int, tmp_path: Path) -> None:
    settings = {"algo": "sb3-ppo", "num_envs": 2, "unroll_length": 8, "total_frames": 64, "eval_episodes": 0}
    config = Config().updated(settings | {"env_kwargs": {"episode": episode, "step": step}, "video": False}, "test")
    with pytest.raises(EnvError, match=rf"an observation that is not finite .* nan in lane 0, .* at step {step} of"):
        train_run(config, env=Broken, run_dir=tmp_path / "run", console=Console(quiet=True))


def test_a_vector_environment_that_no_evaluation_can_play_is_refused_at_once(tmp_path: Path) -> None:
    def same_step(num_envs: int) -> SyncVectorEnv:
        return SyncVectorEnv([partial(Broken, 9, 9)] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)

    settings = {"algo": "sb3-ppo", "num_envs": 2, "unroll_length": 8, "total_frames": 64, "eval_episodes": 0}
    config = Config().updated(settings | {"video": False}, "test")
    with pytest.raises(ValueError, match=r"autoreset_mode NEXT_STEP, got AutoresetMode.SAME_STEP"):
        train_run(config, env=same_step, run_dir=tmp_path / "run", console=Console(quiet=True))
    assert not (tmp_path / "run").exists()


def test_what_needs_our_own_agent_refuses_in_one_line(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    out, foreign = str(tmp_path / "x.safetensors"), "was trained by Stable-Baselines3"
    grid = ["--cores", "rmc", "--folder", str(tmp_path), "--out", out, "--", "--algo", "sb3-ppo"]
    for command, flags, expected in (
        (compare.main, grid, "rmc: expected core none, which sb3-ppo has, got rmc"),
        (evaluate_cli.main, [str(trained), "--trust", "--ablate-memory"], "--ablate-memory: expected an agent of"),
        (export.main, [str(trained), out], foreign),
        (train_cli.main, [*SMALL, "--init-from", str(trained), "--run-dir", out], foreign),
        (bench.main, ["--algo", "sb3-ppo", "--num-envs", "2"], "--algo: expected a2c, ppo or supervised"),
    ):
        status = command(flags)
        captured = capsys.readouterr()
        assert status == 2
        assert expected in captured.err
        assert captured.err.count("\n") == 1


MISSING = """for name in list(sys.modules):
    if name.split(".")[0] in ("rmc_agents", "sb3_contrib"):
        del sys.modules[name]
sys.modules["sb3_contrib"] = None
from rmc_agents.train.cli import main as train
from rmc_agents.evaluate.cli import main as evaluate
sys.exit(train(["--algo", "sb3-ppo"]) + evaluate([sys.argv[1], "--trust"]))"""


def test_a_missing_extra_is_one_line(trained: Path, tmp_path: Path) -> None:
    process = forked.Program(MISSING, [str(trained)], tmp_path / "log")
    output, _ = process.communicate()
    assert process.returncode == 4
    assert output.count("pip install 'rmc-agents[sb3]'") == 2
    assert output.count("\n") == 2


def test_global_generators_are_as_before(tmp_path: Path) -> None:
    """Stable-Baselines3 seeds them in training, and when it opens an archive."""

    def states() -> tuple[Any, ...]:
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002

    before, run_dir = states(), tmp_path / "run"
    assert train("--env", "recall", "--algo", "sb3-ppo", "--total-frames", "80", "--run-dir", str(run_dir)) == 0
    assert states() == before
    load_policy(run_dir, CPU, trust=True)
    assert states() == before
