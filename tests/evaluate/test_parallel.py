"""Evaluations in several processes: the same episodes, and no processes left behind, whatever happens."""

import os
import signal
import sys
from functools import partial
from multiprocessing import active_children, current_process
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch

from helpers import forked
from rmc_agents.agent import ActorCritic
from rmc_agents.envs.processes import EnvError, WorkerError
from rmc_agents.evaluate import episodes as evaluation
from rmc_agents.evaluate.episodes import PlaySettings, concatenated, env_spec, parts_of
from rmc_agents.evaluate.parallel import play_all
from rmc_agents.evaluate.statistics import Episodes

CPU = torch.device("cpu")
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # other processes cannot import this file


def killed(on_progress: Any = None) -> Episodes:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def failing(on_progress: Any = None) -> Episodes:
    raise EnvError("the environment is out of order")


@pytest.mark.slow
def test_processes_play_the_same_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "MAX_LANES", 4)
    torch.manual_seed(0)
    agent, told = ActorCritic(env_spec("memory-s13-random"), "lstm", encoder_sizes=[8]), []
    parts = parts_of(agent, "memory-s13-random", 10, PlaySettings(3, CPU, False, 300))
    one, two = (
        concatenated(play_all(parts, "memory-s13-random", 1, CPU)),
        concatenated(play_all(parts, "memory-s13-random", 2, CPU, told.append)),
    )
    assert sorted(told) == [2, 4, 4]
    for name, expected in one._asdict().items():
        if isinstance(expected, dict):
            assert expected.keys() == two.groups.keys()
        else:
            np.testing.assert_array_equal(getattr(two, name), expected)


class Part:
    """A part whose copies for other processes are counted."""

    copies = 0

    def __call__(self, on_progress: Any = None) -> Episodes:
        return Episodes(np.ones(1), np.ones(1), None, None, np.zeros(1, np.bool_), groups={})

    def __reduce__(self) -> Any:
        Part.copies += 1
        return Part, ()


@pytest.mark.slow
def test_few_parts_are_copied_ahead() -> None:
    """They hold the agent, and no stop signal waits until all of many are copied."""
    copies: list[int] = []
    play_all([Part()] * 9, "recall", 2, CPU, lambda _: copies.append(Part.copies))
    assert copies[0] == 4
    assert len(copies) == copies[-1] == 9


def test_what_cannot_be_sent_is_one_line() -> None:
    with pytest.raises(ValueError, match=r"^jobs: expected 1 for this agent and environment, which cannot be sent"):
        play_all([partial(failing, sys.stdout), failing], "recall", 2, CPU)


@pytest.mark.slow
@pytest.mark.parametrize(("part", "error"), [(failing, EnvError), (killed, WorkerError)])
def test_a_part_that_fails_ends_all(part: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"out of order|has ended; try --jobs 1 \(.*`if __name__"):
        play_all([part, part], "recall", 2, CPU)
    assert not active_children()


@pytest.mark.slow
def test_a_part_that_fails_ends_no_other_process_of_the_program(tmp_path: Path) -> None:
    others: list[forked.Program] = []

    def start_another(_: int) -> None:
        others.append(forked.Program("import time; time.sleep(600)", (), tmp_path / "log"))

    with pytest.raises(EnvError):
        play_all([*[Part()] * 4, failing], "recall", 2, CPU, start_another)
    assert [other.returncode for other in others] == [None] * len(others) != []
    for other in others:
        other.send_signal(signal.SIGKILL)
        other.wait()


def test_a_process_that_may_start_no_others_plays_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a worker of multiprocessing.Pool."""
    monkeypatch.setitem(current_process()._config, "daemon", True)  # type: ignore[attr-defined]
    assert len(play_all([Part()] * 9, "recall", "auto", CPU)) == 9
    with pytest.raises(ValueError, match=r"this process is daemonic, .*: take jobs=1 and no workers"):
        play_all([Part()] * 9, "recall", 2, CPU)
