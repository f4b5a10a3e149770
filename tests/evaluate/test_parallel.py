"""Evaluations in several processes: the same episodes, and no processes left behind, whatever happens."""

import os
import signal
import sys
from multiprocessing import active_children
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch

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


@pytest.mark.slow
@pytest.mark.parametrize(("part", "error"), [(failing, EnvError), (killed, WorkerError)])
def test_a_part_that_fails_ends_all(part: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"out of order|has ended; try --jobs 1 \(.*`if __name__"):
        play_all([part, part], "recall", 2, CPU)
    assert not active_children()
