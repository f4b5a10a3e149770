"""What a memory knows: linear probes of pretrained agents for the food that is left in Mini PacMan's maze.

    python -m benchmarks.learning.probe [--policies minipacman-rmc minipacman-lstm minipacman-gru]

Each agent plays, and ridge regressions predict for all cells whether there is food: from what can be known without a
memory (the window, the position and the level's timer), from the memory, and from both. Lanes are either fitted or
tested. Food only disappears where the agent goes, so a perfect memory would know it all. The score is R², the share of
the variance around each cell's mean that is explained, by the steps since the cell was in the window or since the level
began.
"""

import argparse
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

import rmc_agents as rmc
from benchmarks.reports import RESULTS, table, write
from rmc_agents.agent import ActorCritic
from rmc_agents.collect import acting, choose
from rmc_agents.envs.making import make_env
from rmc_agents.envs.minipacman.map import CELL_COLUMN, CELL_ROW, CELLS
from rmc_agents.stream import Lanes

AGES = (0, 1, 9, 17, 33, 65)
"""Where the groups of ages begin; 0 is a cell in the window."""
EVERY, RIDGE, REACH = 5, 10.0, 2


class Samples(NamedTuple):
    """Observations, memories and food of L lanes at S times."""

    sight: NDArray[np.float32]  # [S, L, ...]: window, position, timer
    memory: NDArray[np.float32]  # [S, L, H]
    food: NDArray[np.float32]  # [S, L, cells]
    age: NDArray[np.int64]  # [S, L, cells]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", nargs="+", default=["minipacman-rmc", "minipacman-lstm", "minipacman-gru"])
    parser.add_argument("--lanes", type=int, default=256)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=RESULTS / "probe")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = {name: probed(rmc.load(name).agent, arguments.lanes, arguments.steps) for name in arguments.policies}
    write(arguments.out, {"ages": AGES, "r2": found}, report(found, arguments))


def probed(agent: ActorCritic, lanes: int, steps: int) -> dict[str, list[float]]:
    """R² by age on lanes that were not fitted, for each kind of features."""
    parts = zip(*samples(agent, lanes, steps), strict=True)
    fitted, tested = (Samples(*each) for each in zip(*(halves(np.stack(part)) for part in parts), strict=True))
    mean = fitted.food.mean(0)
    kinds = {
        "window, position, timer": lambda x: x.sight,
        "memory": lambda x: x.memory,
        "both": lambda x: np.concatenate([x.sight, x.memory], axis=-1),
    }
    scores = {}
    for kind, features in kinds.items():
        predicted = regression(features(fitted), fitted.food - mean)(features(tested))
        error, variance = (tested.food - mean - predicted) ** 2, (tested.food - mean) ** 2
        group = np.digitize(tested.age, AGES)
        scores[kind] = [
            float(1 - error[group == n].sum() / variance[group == n].sum()) for n in range(1, len(AGES) + 1)
        ]
    return scores


def halves(x: NDArray) -> tuple[NDArray, NDArray]:
    """Samples `[S, L, ...]` of the first three quarters of the lanes, and of the others: `[N, ...]` each."""
    first = x.shape[1] * 3 // 4
    return x[:, :first].reshape(-1, x.shape[-1]), x[:, first:].reshape(-1, x.shape[-1])


def regression(x: NDArray, y: NDArray) -> Callable[[NDArray], NDArray]:
    """A ridge regression of y `[N, cells]` on the standardised x `[N, F]`: from features to predictions."""
    mean, scale = x.mean(0), x.std(0) + 1e-6
    z = (x - mean) / scale
    weights = np.linalg.solve(z.T @ z + RIDGE * np.eye(z.shape[1], dtype=z.dtype), z.T @ y)
    return lambda features: (features - mean) / scale @ weights


@torch.no_grad()
def samples(agent: ActorCritic, num_lanes: int, steps: int) -> Iterator[Samples]:
    """Play, and yield samples `[L, ...]` every few steps, after the agent has consumed the observation."""
    lanes = Lanes(make_env("minipacman", num_lanes), 0, torch.device("cpu"))
    generator, state = torch.Generator().manual_seed(0), agent.initial_state(num_lanes)
    last_seen = np.zeros((num_lanes, CELLS), np.int64)
    with acting(agent, state, lanes.spec) as act:
        for step in range(steps):
            game = lanes.env.get_state()  # type: ignore[attr-defined]
            row, column = (of_cell[game["pacman_cell"], None] for of_cell in (CELL_ROW, CELL_COLUMN))
            last_seen[(abs(CELL_ROW - row) <= REACH) & (abs(CELL_COLUMN - column) <= REACH)] = step
            age = np.minimum(step - last_seen, game["timer"][:, None])
            window = lanes.steps.obs.flatten(1).numpy() / np.float32(255)
            output, state = act(lanes.steps, state)
            if step % EVERY == 0:
                position = np.eye(CELLS, dtype=np.float32)[game["pacman_cell"]]
                sight = np.concatenate([window, position, game["timer"][:, None] / np.float32(100)], axis=1)
                memory = torch.cat([leaf.flatten(1) for leaf in state], dim=1).numpy().copy()
                yield Samples(sight, memory, game["food"].astype(np.float32), age)
            lanes.step(choose(lanes.spec.distribution(output.policy_logits), generator, False))


def report(found: dict[str, dict[str, list[float]]], arguments: argparse.Namespace) -> str:
    """The table."""
    ends = [f"{first} to {after - 1}" for first, after in pairwise(AGES[1:])]
    columns = ["agent", "from", "in the window", *ends, f"{AGES[-1]} and more"]
    rows = [
        [name, kind, *(f"{score:.2f}" for score in scores)]
        for name, kinds in found.items()
        for kind, scores in kinds.items()
    ]
    return (
        f"{table(columns, rows)}\n\nR² by the steps since a cell was in the window. {arguments.lanes} lanes of "
        f"{arguments.steps} steps, three quarters of them fitted, the others tested.\n"
    )


if __name__ == "__main__":
    main()
