"""Lanes in worker processes: the results of one process, one-line errors, and no process left behind."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.error import ClosedEnvironmentError
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import VectorEnv

from helpers.runs import assert_same, find_and_load, refused, wait_for_checkpoints
from helpers.wandering import FAILS_AT, FAULT, Asking
from rmc_agents.envs.blame import Blame
from rmc_agents.envs.making import make_env
from rmc_agents.envs.processes import STOPS, WorkerError
from rmc_agents.envs.registry import make_vector_env
from rmc_agents.envs.workers import ALWAYS, WorkerVectorEnv
from rmc_agents.evaluate import trainings
from rmc_agents.stream import Lanes
from rmc_agents.train import cli

WANDERER = "helpers.wandering:Wanderer-v0"
LANES, UNROLL = 4, 5
SMALL = (
    f"--env {WANDERER} --core none --encoder-sizes 8 --num-envs {LANES} --unroll-length {UNROLL} --threads 1".split()
)
QUIET = ["--no-video", "--eval-episodes", "0", "--device", "cpu"]


@pytest.fixture(autouse=True)
def no_process_stays_behind() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []


def step_often(env: VectorEnv) -> None:
    for _ in range(2 * FAILS_AT):
        env.step(np.zeros(env.num_envs, np.int64))


def assert_equal_arrays(got: tuple, expected: tuple) -> None:
    for one, other in zip(got, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def assert_equal_steps(one: VectorEnv, other: VectorEnv, steps: int) -> int:
    """Plays both with the same actions, overwriting what the first returned; the number of episodes that ended."""
    random, count = np.random.default_rng(0), 0
    for _ in range(steps):
        actions = random.integers(0, one.single_action_space.n, one.num_envs)  # type: ignore[attr-defined]
        *got, infos = one.step(actions)
        *expected, all_infos = other.step(actions)
        assert_equal_arrays(tuple(got), tuple(expected))
        ended = expected[2] | expected[3]
        assert_equal_infos(infos, all_infos, ended)
        for array in got:
            array[...] = 1
        count += int(ended.sum())
    return count


def assert_equal_infos(got: dict, expected: dict, ended: np.ndarray) -> None:
    for key in [key for key in got if key.removeprefix("_") in ALWAYS]:
        np.testing.assert_array_equal(got[key], expected[key])
    if not ended.any():
        assert {key.removeprefix("_") for key in got} <= {*ALWAYS}
        return
    assert got.keys() == {key for key in expected if key not in ("no", "_no")}
    for key, values in got.items():
        if isinstance(values, dict):
            assert_equal_infos(values, expected[key], ended)
            continue
        assert values.dtype == expected[key].dtype
        np.testing.assert_array_equal(values[ended], expected[key][ended])
        if key.startswith("_") and key[1:] not in ALWAYS:
            assert not values[~ended].any()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "lanes", "workers"), [(WANDERER, 5, 2), ("MiniGrid-DoorKey-5x5-v0-stack2", 2, 2)])
def test_workers_give_the_numbers_of_one_process(name: str, lanes: int, workers: int) -> None:
    reference = make_vector_env(name, lanes)
    with closing(make_vector_env(name, lanes, num_workers=workers)) as env:
        assert len(multiprocessing.active_children()) == workers
        for child, number in product(multiprocessing.active_children(), STOPS):
            os.kill(child.pid, number)  # as a terminal does to all its processes; only the parent should react
        for attribute in ("num_envs", "single_observation_space", "observation_space", "action_space", "metadata"):
            assert getattr(env, attribute) == getattr(reference, attribute)
        resets: list[tuple[Any, dict | None]] = [(3, None), (None, None), ([7] * lanes, {"shift": 1})]
        if name == WANDERER:
            resets.append((4, {"reset_mask": np.arange(lanes) == 1}))  # of lanes of the first worker alone
        for seed, options in resets:
            # SyncVectorEnv takes reset_mask out of the dict it is given: each gets its own.
            got, expected = (e.reset(seed=seed, options=options and dict(options))[0] for e in (env, reference))
            assert_equal_arrays((got,), (expected,))
            ended = assert_equal_steps(env, reference, 40)
            assert name != WANDERER or ended > 0


class EarlySuccess(gym.Env):
    """Reports success in the middle of an episode only."""

    observation_space, action_space = Box(0, 1, (1,)), Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.time += 1
        infos = {"is_success": True} if self.time == 2 else {}
        return np.zeros(1, np.float32), 1.0, self.time == 3, False, infos


def test_lanes_that_cannot_be_sent_are_one_line() -> None:
    def make_lanes(lanes: int, output: Any = sys.stdout) -> VectorEnv:
        return make_vector_env("recall", lanes)

    with pytest.raises(ValueError, match=r"^env_workers: expected 0 for this environment, which cannot be sent to"):
        WorkerVectorEnv(make_lanes, 2, 2)
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_success_is_that_of_one_process() -> None:
    found = []
    for workers in (0, 1):
        with closing(make_env(EarlySuccess, 2, num_workers=workers)) as env:
            lanes = Lanes(env, 0, torch.device("cpu"))
            for _ in range(9):
                lanes.step(torch.zeros(2, dtype=torch.int64))
            found.append([episode.success for episode in lanes.take_episodes()])
    assert found[0] == found[1] == [False] * 4


@pytest.mark.slow
def test_the_right_actions_come_through() -> None:
    with closing(make_env(Asking, 3, num_workers=2)) as env, closing(make_env(Asking, 3)) as reference:
        for got, expected in zip(
            [env.reset(seed=0)[1], *(env.step(np.zeros(3, np.int64))[-1] for _ in range(5))],
            [reference.reset(seed=0)[1], *(reference.step(np.zeros(3, np.int64))[-1] for _ in range(5))],
            strict=True,
        ):
            for key in ("target", "_target"):
                np.testing.assert_array_equal(got[key], expected[key])
        for wrong in (np.zeros(1, np.int64), np.zeros(3), 1):
            with pytest.raises(ValueError, match=r"actions: expected int64 \(3,\), got"):
                env.step(wrong)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (
            "make",
            r"Wanderer-v0' failed in its constructor: OSError: no room for another \(.*wandering.py.* 0 to 1;",
        ),
        (
            "raise",
            r"failed in step\(\): RuntimeError: it fell off\nthe edge \(.*line \d+, in step\) \[the worker of lanes",
        ),
        ("exit", r"the worker of lanes \d to \d ended with exit status 7"),
        ("kill", r"the worker of lanes \d to \d was killed by SIGKILL"),
    ],
)
def test_a_fault_of_one_worker_ends_all(fault: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FAULT, fault)
    if fault == "make":
        with pytest.raises(WorkerError, match=expected):
            make_vector_env(WANDERER, LANES, num_workers=2)
        return
    env = make_vector_env(WANDERER, LANES, num_workers=2)
    env.reset(seed=0)
    if fault == "kill":
        multiprocessing.active_children()[0].kill()
    with pytest.raises(WorkerError, match=expected) as raised:
        step_often(env)
    by_blame = pytest.raises(type(raised.value), match="^the worker" if fault in ("exit", "kill") else "^the env")
    with by_blame, Blame("Walk", "step()"):
        raise raised.value
    assert multiprocessing.active_children() == []
    with pytest.raises(ClosedEnvironmentError):
        env.step(np.zeros(LANES, np.int64))


@pytest.mark.slow
def test_workers_of_a_script_without_a_guard_are_explained(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import rmc_agents as rmc\nrmc.make_env('CartPole-v1', 2, num_workers=2).reset()\n")
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=120)
    assert "before it could begin (a script that uses several processes needs the usual" in result.stderr


@pytest.mark.slow
def test_a_script_without_a_guard_does_not_train_again_in_its_children(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import rmc_agents as rmc\n"
        "settings = {'env': 'recall', 'core': 'none', 'num_envs': 4, 'total_frames': 80, 'eval_episodes': 0}\n"
        "run = rmc.train(settings | {'video': False})\n"
        "rmc.evaluate(rmc.load(run), episodes=300, jobs=2)\n"
    )
    result = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=120, cwd=tmp_path
    )
    assert "(a script that uses several processes needs the usual" in result.stderr.splitlines()[-1]
    assert len(list((tmp_path / "runs").iterdir())) == 1


@pytest.mark.slow
def test_a_run_is_the_same_with_workers_and_continues_after_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, failed = tmp_path / "whole", tmp_path / "failed"
    flags = [*SMALL, *QUIET, "--learning-rate-schedule", "constant"]
    monkeypatch.setenv(FAULT, "raise")
    assert cli.main([*flags, "--env-workers", "2", "--run-dir", str(failed), "--total-frames", "100000"]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("Traceback") == 1
    assert captured.err.splitlines()[-1].startswith(
        f"rmc-train: the environment '{WANDERER}' failed in step(): RuntimeErr"
    )
    tree = find_and_load(failed)[1]
    assert tree["frames"] >= (FAILS_AT - UNROLL) * LANES
    assert f"saved at {tree['frames']:,} frames" in captured.out
    assert f"rmc-train --resume {failed}" in captured.out
    assert cli.main([*flags, "--run-dir", str(whole), "--total-frames", str(tree["frames"])]) == 0
    assert_same(tree["agent"], find_and_load(whole)[1]["agent"])
    monkeypatch.delenv(FAULT)
    frames = str(tree["frames"] + LANES * UNROLL)
    assert cli.main(["--resume", str(failed), "--env-workers", "0", "--total-frames", frames]) == 0
    assert "episodes restart" in capsys.readouterr().out
    assert find_and_load(failed)[1]["frames"] == int(frames)


@pytest.mark.slow
def test_workers_of_a_run_end_in_silence(tmp_path: Path) -> None:
    flags = ["--env-workers", "2", "--run-dir", str(tmp_path / "run"), "--save-every", "1e-9"]
    process = start(trainings.RUN, *SMALL, *QUIET, *flags)
    wait_for_checkpoints(tmp_path / "run", 1, process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (128 + signal.SIGINT, "")


@pytest.mark.slow
def test_workers_that_hang_end_with_their_parent_and_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FAULT, "hang")
    program = f"""from rmc_agents.envs.making import make_env
env = make_env({WANDERER!r}, 2, num_workers=2)
env.reset()
print("started", flush=True)
while True:
    env.step([0, 0])"""
    process = start(program)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    time.sleep(0.5)  # until the workers hang
    process.kill()
    _, err = process.communicate(timeout=120)  # returns once every process that holds the pipes has ended
    assert (process.returncode, err) == (-signal.SIGKILL, "")


def start(program: str, *flags: str) -> subprocess.Popen:
    path = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", program, *flags], env=path, start_new_session=True, **streams)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--env", "minipacman", "--env-workers", "2"], "env_workers: expected 0 for 'minipacman'"),
        (["--env-workers", "9"], "env_workers: expected 1 to 4, the number of lanes, got 9"),
        (["--env-workers", "-1"], "env_workers: input should be greater than or equal to 0"),
    ],
)
def test_bad_input_is_one_line(
    flags: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert expected in refused(capsys, cli, *SMALL, "--run-dir", tmp_path / "run", *flags)


class Smooth(gym.Env):
    """The reward is lower the more an action differs from the last one, which it keeps as it got it."""

    observation_space, action_space = Box(-1, 1, (1,)), Box(-1, 1, (1,))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        self.last = np.zeros(1, np.float32)
        return self.last, {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        change, self.last = float(abs(action - self.last)[0]), action
        return np.zeros(1, np.float32), -change, False, False, {}


@pytest.mark.slow
def test_an_environment_may_keep_its_actions_and_a_wrong_mask_is_refused() -> None:
    with closing(make_env(Smooth, 2, num_workers=1)) as env:
        for mask in ([True, False], np.zeros(2, bool), np.ones(3, bool)):
            with pytest.raises(ValueError, match="reset_mask: expected"):
                env.reset(options={"reset_mask": mask})
        env.reset(seed=0)
        rewards = [env.step(np.full((2, 1), action, np.float32))[1].tolist() for action in (0.5, -0.5, 1.0)]
    assert rewards == [[-0.5] * 2, [-1.0] * 2, [-1.5] * 2]
