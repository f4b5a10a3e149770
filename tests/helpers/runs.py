"""Small runs of rmc-train, in this or another process; agents saved without training; rejections by commands."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers import forked
from rmc_agents.agent import ActorCritic
from rmc_agents.config import Config
from rmc_agents.evaluate import trainings
from rmc_agents.evaluate.episodes import env_spec
from rmc_agents.runs import checkpoint
from rmc_agents.train import cli

SIZES = "--num-envs 8 --unroll-length 5 --num-heads 2 --head-size 4 --mem-slots 3 --hidden-size 16 --encoder-sizes 16"
SMALL = [*SIZES.split(), "--threads", "1"]
QUIET = ["--no-video", "--eval-episodes", "0"]
FRAMES_PER_UPDATE = 40  # of SMALL


def train(*flags: str) -> int:
    """The exit status of a small training, neither evaluated nor filmed."""
    return cli.main([*SMALL, *QUIET, *flags])


def resume(run_dir: Path, *flags: str) -> int:
    """The exit status of a resumed run."""
    return cli.main(["--resume", str(run_dir), *flags])


def find_and_load(path: Path) -> tuple[Path, dict[str, Any]]:
    """The checkpoint at `path`, and its tree. Raises CheckpointError as `checkpoint.find` does."""
    return checkpoint.find(path, lambda candidate: (candidate, checkpoint.load(candidate)))


def newest(run_dir: Path) -> dict:
    """The newest checkpoint's tree, without what may differ between equal runs."""
    tree = find_and_load(run_dir)[1]
    return {key: value for key, value in tree.items() if key not in ("seconds", "config")}


def events_of(run_dir: Path) -> Any:
    """What a run has written for TensorBoard: an EventAccumulator with all points of the curves."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # slow

    return EventAccumulator(str(run_dir / "tensorboard"), size_guidance={"scalars": 0}).Reload()


def new_run(run_dir: Path, *flags: str) -> Path:
    """A run of one update; returns its checkpoint."""
    assert train("--run-dir", str(run_dir), "--total-frames", str(FRAMES_PER_UPDATE), *flags) == 0
    return find_and_load(run_dir)[0]


def start_process(*flags: str) -> subprocess.Popen:
    """`train` as a process, to be stopped or killed."""
    command = [sys.executable, "-c", trainings.RUN, *SMALL, *QUIET, *flags]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def start_fork(log: Path, *flags: str) -> forked.Program:
    """`train` as a fork, to be stopped or killed; its output goes to `log`."""
    return forked.Program(trainings.RUN, [*SMALL, *QUIET, *flags], log)


def wait_for_checkpoints(run_dir: Path, count: int, process: subprocess.Popen | forked.Program, after: int = 0) -> None:
    """Waits until the process has saved `count` checkpoints of updates after the given one."""
    while sum(int(path.stem[7:]) > after for path in (run_dir / "checkpoints").glob("update-*")) < count:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def save_agent(run_dir: Path, env: str = "recall", core: str = "lstm", **settings: Any) -> Path:
    """The parts of a run that evaluations need, with an untrained agent."""
    small = {"env": env, "core": core, "hidden_size": 8, "encoder_sizes": [8]}
    config = Config().updated(small | settings, "test")
    spec = env_spec(env)
    torch.manual_seed(0)
    agent = ActorCritic.from_config(spec, config.core, config.agent)
    run_dir.mkdir(exist_ok=True)
    (run_dir / "config.yaml").write_text(config.to_yaml())
    tree = {"config": config.to_mapping(), "spec": spec, "frames": 1200, "agent": agent.state_dict()}
    return checkpoint.write_numbered(run_dir, 3, checkpoint.to_bytes(tree), keep=2)


def refused(capsys: pytest.CaptureFixture[str], program: Any, *argv: object) -> str:
    """The error of a command, one line, that ends with exit status 2, whether returned or raised."""
    try:
        status = program.main([str(argument) for argument in argv])
    except SystemExit as error:
        status = error.code
    output = capsys.readouterr()
    assert status == 2
    assert output.out == ""
    assert output.err.count("\n") == 1
    return output.err


def assert_same(left: object, right: object) -> None:
    """Two trees, such as those of checkpoints, are bitwise equal, types and dtypes included."""
    if isinstance(left, dict):
        assert isinstance(right, dict)
        assert left.keys() == right.keys()
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, list | tuple):
        assert isinstance(right, list | tuple)
        assert type(left) is type(right)
        for a, b in zip(left, right, strict=True):
            assert_same(a, b)
    elif isinstance(left, torch.Tensor):
        assert isinstance(right, torch.Tensor)
        assert left.dtype == right.dtype
        assert torch.equal(left, right)
    elif isinstance(left, np.ndarray):
        assert isinstance(right, np.ndarray)
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)
    else:
        assert left == right
        assert type(left) is type(right)
