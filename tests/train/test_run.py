"""Training from Python: a custom environment in any form, and a callback that observes and may end the run."""

import json
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import gymnasium as gym
import numpy as np
import pytest
import torch
from rich.console import Console
from torch.utils.tensorboard import SummaryWriter

import rmc_agents as rmc
from helpers.runs import assert_same, find_and_load
from rmc_agents.config import Config
from rmc_agents.envs.processes import EnvError
from rmc_agents.evaluate.curves import read_curve
from rmc_agents.kernels.modes import torch_threads
from rmc_agents.runs import folder
from rmc_agents.train import distributed, loop
from rmc_agents.train import run as run_module
from rmc_agents.train.run import Progress, resume, train
from rmc_agents.train.stopping import StopSignals

SMALL = {"core": "gru", "hidden_size": 8, "encoder_sizes": [8], "num_envs": 4, "unroll_length": 5, "eval_episodes": 4}
QUIET = Console(quiet=True)


class Walk(gym.Env):
    """Ends after a number of steps, each with a reward of 1."""

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, steps: int = 3) -> None:
        self.steps = steps

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.taken = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.taken += 1
        return np.full(1, self.taken / self.steps, np.float32), 1.0, self.taken == self.steps, False, {}


@pytest.mark.parametrize(
    ("env", "steps"), [(Walk, 3), (Walk(4), 4), (lambda: Walk(5), 5)], ids=["class", "env", "lambda"]
)
def test_an_own_environment_is_trained_in_and_evaluated(env: Any, steps: int, tmp_path: Path) -> None:
    run = train(SMALL | {"total_frames": 40}, env=env, run_dir=str(tmp_path / "run"), console=QUIET)
    assert run.summary["frames"] == 40
    assert run.summary["evaluation"]["mean_return"] == run.summary["evaluation"]["mean_length"] == steps
    assert run.path == tmp_path / "run"
    assert not run.agent.training


def test_a_copied_environment_keeps_its_changes(tmp_path: Path) -> None:
    """Also one that gymnasium made, from which its spec knows nothing; what cannot be copied is made from the spec."""
    gym.register("Walk-for-copies-v0", Walk)
    try:
        env = gym.make("Walk-for-copies-v0")
        env.unwrapped.steps = 4  # type: ignore[attr-defined]
        for steps in (4, 3):
            run = train(SMALL | {"total_frames": 20}, env=env, run_dir=tmp_path / f"{steps}", console=QUIET)
            assert run.summary["evaluation"]["mean_length"] == steps
            env.unwrapped.lock = threading.Lock()  # type: ignore[attr-defined]
    finally:
        del gym.registry["Walk-for-copies-v0"]
    env = Walk()
    env.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"Walk cannot be \(cannot pickle.*\); pass its class, or a function"):
        train(SMALL | {"total_frames": 20}, env=env, run_dir=tmp_path / "run", console=QUIET)


def test_settings_may_begin_with_a_preset(tmp_path: Path) -> None:
    settings = {"config": "recall", "num_envs": 4, "total_frames": 80, "eval_episodes": 0, "video": False}
    run = train(settings, run_dir=tmp_path / "run", console=QUIET)
    found = Config().updated_from_yaml(run.path / "config.yaml")
    assert (found.core, found.env.num_envs) == (Config().updated_from_yaml("recall").core, 4)


def test_an_environment_may_be_a_name(tmp_path: Path) -> None:
    run = train(SMALL | {"total_frames": 20, "eval_episodes": 0}, env="recall", run_dir=tmp_path / "run", console=QUIET)
    assert (run.path / "config.yaml").read_text().startswith("env: recall\n")


def test_a_vector_environment_is_played_as_it_is_and_stays_open(tmp_path: Path) -> None:
    env = gym.vector.SyncVectorEnv([Walk] * 3)
    run = train(SMALL | {"total_frames": 30}, env=env, run_dir=tmp_path / "run", console=QUIET)
    assert (run.summary["frames"], run.summary["evaluation"]) == (30, None)
    assert env.reset()[0].shape == (3, 1)
    weights = SMALL | {"total_frames": 30, "init_from": str(run.path)}
    assert train(weights, env=env, run_dir=tmp_path / "next", console=QUIET).summary["frames"] == 30
    with pytest.raises(
        ValueError, match=r"rmc.resume\('.*run', {'eval_episodes': 200}, env=...\), where env is a class"
    ):
        rmc.compare({"gru": [run]}, tmp_path / "comparison")


def test_a_run_stands_for_its_folder(tmp_path: Path) -> None:
    settings = SMALL | {"total_frames": 20, "eval_episodes": 0, "video": False}
    run = train(settings, env=Walk, run_dir=tmp_path / "run", console=QUIET)
    for name, given in (("one", run), ("other", run.path)):
        path = train(settings | {"init_from": given}, env=Walk, run_dir=tmp_path / name, console=QUIET).path
        assert rmc.load(path).config.run.init_from == str(run.path)
    with pytest.raises(ValueError, match=r"^.*/run: its TensorBoard events have no charts/accuracy"):
        rmc.plot(run, tmp_path / "curves.png", metric="accuracy")
    with pytest.raises(ValueError, match=r"^there is no checkpoint .*/gone, nor"):
        rmc.load(run._replace(path=tmp_path / "gone"))


def test_the_callback_sees_every_update_and_ends_the_run(tmp_path: Path) -> None:
    seen: list[Progress] = []

    def callback(progress: Progress) -> bool:
        seen.append(progress)
        return progress.frames >= 60

    run = train(SMALL | {"total_frames": 10_000}, env=Walk, run_dir=tmp_path / "run", callback=callback, console=QUIET)
    assert [progress.updates for progress in seen] == [1, 2, 3]
    assert {episode.length for progress in seen for episode in progress.episodes} == {3}
    assert all(np.isfinite(progress.metrics["losses/entropy"]) for progress in seen)
    assert {id(progress.agent) for progress in seen} == {id(run.agent)}
    assert run.summary["frames"] == 60
    assert run.summary["evaluation"] is not None
    assert read_curve(run.path, "return").frames.tolist()[-1] == 60  # though log_every has not passed


def test_threads_are_those_of_the_caller_afterwards_and_one_in_the_evaluation(tmp_path: Path) -> None:
    seen = []

    class Noting(Walk):
        def reset(self, **given: Any) -> Any:
            seen.append(torch.get_num_threads())
            return super().reset(**given)

    with torch_threads(3):
        train(SMALL | {"total_frames": 20, "threads": 2}, env=Noting, run_dir=tmp_path / "run", console=QUIET)
        assert torch.get_num_threads() == 3
    assert set(seen) == {1, 2}
    assert seen[-1] == 1


def test_an_evaluation_that_does_not_end_leaves_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SMALL | {"eval_episodes": 2, "total_frames": 40}
    run = train(settings, env=Walk, run_dir=tmp_path / "run", console=QUIET)
    monkeypatch.setattr(loop, "finish", Mock(side_effect=KeyboardInterrupt))
    resume(run.path, {"eval_episodes": 3}, env=Walk, console=QUIET)
    evaluation = json.loads((run.path / "summary.json").read_text())["evaluation"]
    assert evaluation == json.loads(json.dumps(run.summary["evaluation"]))


def test_a_run_that_the_callback_ended_is_not_to_be_resumed_for_its_evaluation(tmp_path: Path) -> None:
    ended: list[bool] = []

    class Breaking(Walk):
        def reset(self, **given: Any) -> Any:
            if ended:
                raise OSError("no display")
            return super().reset(**given)

    def callback(progress: Progress) -> bool:
        ended.append(True)
        return True

    console, settings = Console(file=(out := StringIO()), width=1000), SMALL | {"total_frames": 10_000}
    with pytest.raises(EnvError, match="no display"):
        train(settings, env=Breaking, run_dir=tmp_path / "run", callback=callback, console=console)
    assert f"complete and saved; evaluate with: rmc.evaluate(rmc.load('{tmp_path / 'run'}'))" in out.getvalue()


def test_torchs_global_generator_is_the_users(tmp_path: Path) -> None:
    """A callback that draws from it does not change the training, nor is it another one afterwards."""

    def weights(name: str, callback: Any) -> dict[str, Any]:
        settings = SMALL | {"total_frames": 80, "ppo_minibatches": 2, "eval_episodes": 0}
        return dict(train(settings, run_dir=tmp_path / name, callback=callback, console=QUIET).agent.state_dict())

    torch.manual_seed(3)
    state = torch.get_rng_state()
    expected = weights("a", None)
    assert torch.equal(torch.get_rng_state(), state)
    assert_same(weights("b", lambda progress: bool(torch.rand(2).sum() > 2)), expected)


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_a_callback_that_fails_loses_nothing(error: type[BaseException], tmp_path: Path) -> None:
    def callback(progress: Progress) -> None:
        if progress.updates == 3:
            raise error

    console = Console(file=(out := StringIO()), width=1000)
    with pytest.raises(error):
        train(SMALL | {"total_frames": 100}, env=Walk, run_dir=tmp_path / "run", callback=callback, console=console)
    assert find_and_load(tmp_path / "run")[1]["frames"] == 60
    assert f"continue from the newest checkpoint with: rmc.resume('{tmp_path / 'run'}', env=...)" in out.getvalue()


def test_runs_that_begin_in_the_same_second_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    class Noon(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime(2026, 1, 1, 12)

    monkeypatch.setattr(folder, "datetime", Noon)
    config = Config().updated({"env": "ours:Walk-v0", "core": "ours:Decay"}, "test")
    names = [folder.new_folder(config).name for _ in range(3)]
    assert names == [f"ours-Walk-v0-ours-Decay-seed0-20260101-120000{suffix}" for suffix in ("", "-2", "-3")]
    text = Config().updated({"env": f"text:{'books/' * 40}*.txt"}, "test")
    assert folder.new_folder(text).name.startswith("text-books-books-")
    (empty := tmp_path / "empty").mkdir()
    monkeypatch.chdir(empty)
    Path("runs").symlink_to("nowhere")
    with pytest.raises(FileExistsError):
        folder.new_folder(config)


def test_a_resume_that_cannot_begin_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = train(SMALL | {"total_frames": 20, "video": False}, env=Walk, run_dir=tmp_path / "run", console=QUIET)
    files = {path: path.read_bytes() for path in run.path.glob("*.*")}
    monkeypatch.setattr(loop, "lead", Mock(side_effect=ValueError("learners: none")))
    with pytest.raises(ValueError, match="learners: none"):
        resume(run, {"total_frames": 40}, env=Walk, console=QUIET)
    assert files == {path: path.read_bytes() for path in run.path.glob("*.*")}


def test_a_rollout_of_one_frame_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rollouts: expected at least 2 frames"):
        train(SMALL | {"num_envs": 1, "unroll_length": 1}, env=Walk, run_dir=tmp_path / "run", console=QUIET)


def test_a_callback_of_several_learners_cannot_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "size", lambda: 2)
    with pytest.raises(ValueError, match="a callback of a training with several learners cannot train"):
        train(SMALL, env=Walk, run_dir=tmp_path / "run", console=QUIET)


def test_settings_without_effect_are_named(tmp_path: Path) -> None:
    console = Console(file=(out := StringIO()), width=1000)
    settings = SMALL | {"total_frames": 20, "eval_episodes": 0, "algo": "a2c", "ppo_clip": 0.3}
    train(settings, run_dir=tmp_path / "run", console=console)
    assert out.getvalue().startswith("warning: without effect under the other settings: ppo_clip\n")


def test_training_in_another_thread(tmp_path: Path) -> None:
    """Other threads cannot handle signals."""
    runs = []
    settings = SMALL | {"total_frames": 20}
    thread = threading.Thread(
        target=lambda: runs.append(train(settings, env=Walk, run_dir=tmp_path / "run", console=QUIET))
    )
    thread.start()
    thread.join()
    assert runs[0].summary["frames"] == 20


def test_two_threads_do_not_train_at_a_time(tmp_path: Path) -> None:
    refused: list[str] = []

    def train_too(_: Any) -> bool:
        def other() -> None:
            with pytest.raises(ValueError, match="another thread of this process is training") as raised:
                train(SMALL, env=Walk, run_dir=tmp_path / "other", console=QUIET)
            refused.append(str(raised.value))

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return True

    train(SMALL, env=Walk, run_dir=tmp_path / "one", console=QUIET, callback=train_too)
    assert len(refused) == 1
    train(SMALL | {"total_frames": 20}, env=Walk, run_dir=tmp_path / "later", console=QUIET)


@pytest.mark.filterwarnings("ignore:This process")  # is multi-threaded
def test_a_fork_trains_while_a_thread_of_its_parent_does() -> None:
    with ThreadPoolExecutor(1) as other:
        other.submit(run_module._training.acquire).result()
        if (child := os.fork()) == 0:
            os._exit(0 if run_module._training.acquire(blocking=False) else 1)
        other.submit(run_module._training.release).result()
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(
    ("settings", "env", "expected"),
    [
        ({}, 3, "expected a name, a gymnasium environment, a function that returns one or a VectorEnv, got 3"),
        ({}, "recal", "there is no environment 'recal'; did you mean 'recall'"),
        (
            {"algo": "impala"},
            Walk,
            "expected algo ppo, a2c or supervised, got impala, .*: pass its name",
        ),
        ({"core": Walk}, None, r"core: expected a name, got Walk; .*rmc.register_core\('walk', Walk\) and pass 'walk'"),
        ({"loss": min}, None, r"loss: expected a name, got min; .*rmc.register_loss\('min', min\) and pass 'min'"),
        ({"core": rmc.RelationalRNN}, None, "core: expected a name, got RelationalRNN; pass 'relational-rnn'$"),
        ({"core": torch.nn.LSTM}, None, "core: expected a name, got LSTM; pass 'lstm'$"),
        ({"core": rmc.GRU(3)}, None, "core: expected a name, got GRU; pass 'gru'$"),
        ({"env": "recall"}, Walk, r"config: env: expected no 'recall' beside rmc.train\(config, env=...\)"),
        ({"cor": "gru"}, Walk, "there is no setting 'cor'; did you mean 'core'"),
        (
            "minipacman-rmc",
            None,
            "expected a Config or a dict of settings, .* a preset is {\"config\": 'minipacman-rmc'}",
        ),
        ({"config": "minipacman-rmx"}, None, "no such file or preset; did you mean 'minipacman-rmc'"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], env: Any, expected: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=expected):
        train(settings, env=env, run_dir=tmp_path / "run", console=QUIET)


def test_a_callback_that_is_no_function_is_refused_before_the_training(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="callback: expected a function of a Progress, got 'stop'"):
        train({}, env=Walk, callback="stop", run_dir=tmp_path / "run")  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_gradients_are_computed_in_any_mode_of_torch(tmp_path: Path) -> None:
    for number, mode in enumerate((torch.no_grad(), torch.inference_mode())):
        with mode:
            run = train(SMALL | {"total_frames": 20}, env=Walk, run_dir=tmp_path / f"{number}", console=QUIET)
        assert run.summary["frames"] == 20


def test_another_default_device_is_refused(tmp_path: Path) -> None:
    with torch.device("meta"), pytest.raises(ValueError, match="default device: expected cpu, got meta"):
        train(SMALL, env=Walk, run_dir=tmp_path / "run", console=QUIET)
    assert not (tmp_path / "run").exists()


def test_a_curve_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = (OSError(28, "No space left on device"), OSError("Writer is closed"))  # TensorBoard's name no file
    expected = (r"No space left on device: .*tensorboard", r"tensorboard: Writer is closed")
    for number, (failure, message) in enumerate(zip(failures, expected, strict=True)):
        monkeypatch.setattr(SummaryWriter, "flush", Mock(side_effect=failure))
        with pytest.raises(OSError, match=message):
            train(SMALL | {"log_every": 1e-9}, env=Walk, run_dir=tmp_path / f"{number}", console=QUIET)


def test_a_curve_that_cannot_be_written_has_no_traceback_of_tensorboards_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", others.append)
    curve = tmp_path / "run" / "tensorboard"

    def spoil(progress: Any) -> None:
        if curve.is_dir():
            curve.rename(tmp_path / "moved")
            curve.touch()  # a file, in which no other can be

    settings = SMALL | {"log_every": 1e-9, "total_frames": 2000}
    with pytest.raises(OSError, match="tensorboard"):
        train(settings, env=Walk, run_dir=tmp_path / "run", console=QUIET, callback=spoil)
    assert others == []
    assert threading.excepthook == others.append


def test_a_second_stop_in_an_interactive_session_raises_and_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a test's process may have another
    try:
        with StopSignals() as stop:
            signal.raise_signal(signal.SIGINT)
            assert stop.received == signal.SIGINT
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_new_run_names_the_preset_of_its_environment(tmp_path: Path) -> None:
    console, settings = Console(file=(out := StringIO()), width=1000), SMALL | {"video": False, "eval_episodes": 0}
    del settings["unroll_length"]
    run = train(settings | {"env": "recall", "total_frames": 80}, run_dir=tmp_path / "run", console=console)
    assert "the settings for learning are Mini PacMan's; for recall, add --config recall\n" in out.getvalue()
    out.truncate(0)
    rmc.resume(run.path, {"total_frames": 160}, console=console)
    assert "--config" not in out.getvalue()


@pytest.mark.parametrize(
    ("further", "is_said"), [({}, True), ({"learning_rate": 1e-3}, False), ({"algo": "sb3-ppo"}, True)]
)
def test_a_new_run_of_another_task_says_whose_settings_it_has(
    further: dict[str, Any], is_said: bool, tmp_path: Path
) -> None:
    console, settings = Console(file=(out := StringIO()), width=1000), SMALL | {"video": False, "eval_episodes": 0}
    del settings["unroll_length"]
    train(settings | further | {"env": "CartPole-v1", "total_frames": 80}, run_dir=tmp_path / "run", console=console)
    assert ("the settings for learning are Mini PacMan's; for another task see docs/" in out.getvalue()) == is_said
