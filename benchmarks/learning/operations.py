"""Programs by their last operation: which ones an agent has learned.

    python -m benchmarks.learning.operations RUN [--programs 2000] [--seed 2000000]

RUN was trained on `program-control`. Program i has the seed `seed` + i, as in `rmc-evaluate`, and the most operations
and digits.
"""

import argparse

import numpy as np
import torch
from numpy.typing import NDArray

import rmc_agents as rmc
from benchmarks.reports import table
from rmc_agents.envs.sequences.base import NO_TARGET
from rmc_agents.envs.sequences.programs import ProgramVectorEnv

KINDS = ("loop", "branch", "conditional expression")


def kind_of(program: str) -> str:
    """The last operation of a program of `program-control`."""
    *_, before, last = ["", *program.strip().split("\n")]
    return "conditional expression" if " if " in last else "loop" if before.startswith("for ") else "branch"


def play(run: str, programs: int, seed: int) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]]:
    """The texts of programs, and how many characters of each answer were asked for, and were right."""
    agent = rmc.load(run)
    env = ProgramVectorEnv(programs, "control", at_maxima=True, **agent.config.env.env_kwargs)
    player = rmc.Player.of(agent, env)
    obs, infos = env.reset(seed=seed)
    texts, action = [env.lanes.program(lane) for lane in range(programs)], player.act(obs)
    asked, right, has_ended = np.zeros(programs, np.int64), np.zeros(programs, np.int64), np.zeros(programs, bool)
    while not has_ended.all():
        is_asked = (infos["target"] != NO_TARGET) & ~has_ended
        asked += is_asked
        right += is_asked & (infos["target"] == action)
        obs, reward, terminated, truncated, infos = env.step(action)
        has_ended |= terminated
        action = player.act(obs, reward, terminated, truncated)
    return texts, asked, right


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=2_000_000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    texts, asked, right = play(arguments.run, arguments.programs, arguments.seed)
    kinds = np.array([kind_of(text) for text in texts])
    rows = []
    for kind in (*KINDS, "all"):
        of_kind = (kinds == kind) | (kind == "all")
        characters = right[of_kind].sum() / asked[of_kind].sum()
        rows.append([kind, str(of_kind.sum()), f"{characters:.1%}", f"{(right == asked)[of_kind].mean():.1%}"])
    print(table(["last operation", "programs", "characters right", "whole answers right"], rows))


if __name__ == "__main__":
    main()
