"""How old the actors' weights were in runs of IMPALA, in updates, and what V-trace made of it.

    python benchmarks/policy_lag.py runs/NAME [runs/NAME ...]

From TensorBoard's points, which each tell of one update: the mean and the 90th percentile of `actors/policy_lag`, and
the means of how far the policy has moved since it acted, of the importance ratios, of the share of them that V-trace
cuts off, and of the learner's idle share.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from reports import scalars, table

MEANS = ("losses/approx_kl", "losses/rho_mean", "losses/rho_clipfrac", "actors/learner_idle")


def row(run: Path) -> Iterator[str]:
    """A run's cells. Raises SystemExit for one that is no run of IMPALA."""
    lag = scalars(run, "actors/policy_lag")
    if not len(lag):
        raise SystemExit(f"{run}: expected the folder of a run of IMPALA, found no actors/policy_lag in TensorBoard")
    yield from (run.name, f"{lag.mean():.2f}", f"{np.percentile(lag, 90):.2f}")
    yield from (f"{scalars(run, tag).mean():.3f}" for tag in MEANS)


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    columns = ("run", "policy lag", "90th percentile", "approx. KL", "importance ratio", "cut off", "learner idle")
    print(table(columns, map(tuple, map(row, parser.parse_args().runs))))


if __name__ == "__main__":
    main()
