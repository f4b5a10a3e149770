"""Agents on tasks they were not trained on: success rates by core and seed, and by the corridor's length.

    python -m benchmarks.learning.transfer RUN... --envs memory-s11 memory-s13 [--episodes 500] [--out FILE]

Runs of one core are its seeds. Nothing is learned here: every run is evaluated as it was saved.
"""

import argparse
from pathlib import Path

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
            found.append({"core": core, "seed": seed, "trained_on": trained, "frames": saved.frames, **result})
            print(f"{core}, seed {seed}, {env}: {result['success_rate']:.3f}", flush=True)
    write(arguments.out, {"episodes": arguments.episodes, "evaluations": found}, report(found, arguments))


def report(found: list[dict], arguments: argparse.Namespace) -> str:
    """The table, and an explanation of its numbers."""
    rows = []
    for env in arguments.envs:
        for core in dict.fromkeys(one["core"] for one in found):
            of_both = sorted(
                (one for one in found if (one["core"], one["env"]) == (core, env)), key=lambda one: one["seed"]
            )
            scores = [one["success_rate"] for one in of_both]
            lengths = {length: [by_corridor(one)[length] for one in of_both] for length in corridors(of_both)}
            by_length = "; ".join(f"{length}: {sum(rates) / len(rates):.2f}" for length, rates in lengths.items())
            by_seed = ", ".join(f"{score:.3f}" for score in scores)
            rows.append([env, core, by_seed, mean_with_interval(scores, 3, are_shares=True), by_length])
    columns = ["task", "core", "success by seed", "mean (95 % interval)", "by corridor's length, mean of seeds"]
    trained = ", ".join(sorted({f"{one['trained_on']} for {one['frames']:,} frames" for one in found}))
    return (
        f"{table(columns, rows)}\n\nTrained on {trained}; {arguments.episodes} episodes a seed and task. The interval "
        "is Student's over seeds. A corridor's length is in cells."
    )


def by_corridor(evaluation: dict) -> dict[int, float]:
    """Success by the corridor's length; nothing if lengths do not vary."""
    return evaluation["success_by"].get("corridor_length", {})


def corridors(evaluations: list[dict]) -> list[int]:
    """The lengths that occur in all evaluations."""
    lengths = [set(by_corridor(one)) for one in evaluations]
    return sorted(set.intersection(*lengths), key=int)


if __name__ == "__main__":
    main()
