"""POPGym's tasks: all can be played, and one of each kind of spaces is learned in."""

import gymnasium as gym
import pytest
import torch

from helpers.agents import CPU
from rmc_agents.config import Config
from rmc_agents.envs.registry import make_vector_env
from rmc_agents.evaluate.episodes import PlaySettings, UniformPolicy, play
from rmc_agents.stream import Lanes
from rmc_agents.train.on_policy import OnPolicy

pytest.importorskip("popgym")
pytest.importorskip("mazelib")  # without it, popgym leaves out its mazes

EASY = [name for name in gym.registry if name.startswith("popgym-") and name.endswith("Easy-v0")]


def test_there_are_all_tasks() -> None:
    assert len(EASY) == 16


@pytest.mark.parametrize("name", EASY)
def test_a_task_is_played(name: str) -> None:
    env = f"popgym:{name}"
    lanes = Lanes(make_vector_env(env, 1), 0, CPU)
    episodes = play(UniformPolicy(lanes.spec), env, 2, PlaySettings(0, CPU, max_steps=50))
    assert (episodes.lengths > 0).all()


@pytest.mark.parametrize("task", ["LabyrinthEscape", "PositionOnlyPendulum", "MineSweeper", "Autoencode"])
def test_a_task_is_learned_in(task: str) -> None:
    settings = {"env": f"popgym:popgym-{task}Easy-v0", "core": "lstm", "hidden_size": 8, "num_envs": 4}
    trainer = OnPolicy(Config().updated(settings | {"unroll_length": 8}, "test").settled(), CPU)
    for _ in range(2):
        assert torch.isfinite(trainer.update()["losses/grad_norm"])
