"""Agents on tasks they were not trained on: success rates by core and seed, and by the corridor's length.

    python -m benchmarks.learning.transfer RUN... --envs memory-s11 memory-s13 [--episodes 500] [--out FILE]

Runs of one core are its seeds. Nothing is learned here: every run is evaluated as it was saved.
"""

import argparse
from pathlib import Path
from statistics import fmean

import torch

from benchmarks.reports import RESULTS, table, write
from rmc_agents.evaluate.episodes import PlaySettings, check_fits, evaluate_beside_random
from rmc_agents.evaluate.report import mean_with_interval
from rmc_agents.evaluate.statistics import EVALUATION_SEED
from rmc_agents.runs.saved import load_agent

CPU = torch.device("cpu")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--envs", nargs="+", required=True)
    parser.add_argument("--episodes", type=int, default=500)
    parser.add_argument("--out", type=Path, default=RESULTS / "memory-transfer")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    for path in arguments.runs:
        saved = load_agent(path, CPU)
        core, seed, trained = saved.config.core.core, saved.config.run.seed, saved.config.env.env
        for env in arguments.envs:
            check_fits(saved.spec, env)
            result = evaluate_beside_random(saved.agent, env, arguments.episodes, PlaySettings(EVALUATION_SEED, CPU))
            found.append(result | {"core": core, "seed": seed, "trained_on": trained, "frames": saved.frames})
            print(f"{core}, seed {seed}, {env}: {result['success_rate']:.3f}", flush=True)
    write(arguments.out, {"episodes": arguments.episodes, "evaluations": found}, report(found, arguments))


def report(found: list[dict], arguments: argparse.Namespace) -> str:
    """The table, and an explanation of its numbers."""
    rows = []
    for env in arguments.envs:
        for core in dict.fromkeys(one["core"] for one in found):
            seeds = [one for one in found if (one["core"], one["env"]) == (core, env)]
            seeds.sort(key=lambda one: one["seed"])
            scores = [one["success_rate"] for one in seeds]
            rates = [one["success_by"].get("corridor_length", {}) for one in seeds]  # {} if lengths do not vary
            lengths = sorted(set.intersection(*map(set, rates)))  # in all evaluations
            by_length = "; ".join(f"{length}: {fmean(rate[length] for rate in rates):.2f}" for length in lengths)
            by_seed = ", ".join(f"{score:.3f}" for score in scores)
            rows.append([env, core, by_seed, mean_with_interval(scores, 3, are_shares=True), by_length])
    columns = ["task", "core", "success by seed", "mean (95 % interval)", "by corridor's length, mean of seeds"]
    trained = ", ".join(sorted({f"{one['trained_on']} for {one['frames']:,} frames" for one in found}))
    return (
        f"{table(columns, rows)}\n\nTrained on {trained}; {arguments.episodes} episodes a seed and task. The interval "
        "is Student's over seeds. A corridor's length is in cells."
    )


if __name__ == "__main__":
    main()
