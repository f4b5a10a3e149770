"""BoxWorld without reasoning: the levels that are solved by guessing.

    python -m benchmarks.learning.guessing [--lengths 1 2 3 4 5] [--distractors 0 1 2 3 4 5] [--no-gem-distractors]

The agent opens the box with the gem if its key fits. Otherwise it chooses with equal probability among the boxes that
its key opens; a wrong choice ends the episode. Each distractor has the lock of a random key of the solution
(`envs.boxworld.levels`). Exact, not simulated.
"""

import argparse
from itertools import product
from math import prod

import numpy as np

from benchmarks.reports import table


def solved(length: int, distractors: int, gem_distractors: bool = True) -> float:
    """The probability of solving a level with a solution of `length` boxes and so many distractors."""
    branches = length if gem_distractors or length == 1 else length - 1
    placements = list(product(range(branches), repeat=distractors))  # which key of the solution opens each distractor
    return sum(prod(1 / (1 + keys.count(key)) for key in range(length - 1)) for keys in placements) / len(placements)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--distractors", nargs="+", type=int, default=[0, 1, 2, 3, 4, 5])
    parser.add_argument("--gem-distractors", action=argparse.BooleanOptionalAction, default=True)
    arguments = parser.parse_args()
    found = [
        [solved(length, n, arguments.gem_distractors) for n in arguments.distractors] for length in arguments.lengths
    ]
    found.append(np.mean(found, axis=0).tolist())
    names = [*map(str, arguments.lengths), "all"]
    rows = [[name, *map("{:.3f}".format, [*row, np.mean(row)])] for name, row in zip(names, found, strict=True)]
    print(table(["boxes", *(f"{number} distractors" for number in arguments.distractors), "all"], rows))


if __name__ == "__main__":
    main()
