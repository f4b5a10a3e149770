"""Learning at equal frames: cores by seeds, trained by rmc-train at its defaults, to one table and one figure.

    python benchmarks/learning.py --cores rmc lstm none --seeds 0 1 2 --jobs 2

Runs that are complete in the folder are taken as they are, so that an interrupted comparison goes on. The interval is
Student's over the seeds' mean returns, each the mean over the evaluation's episodes; with three seeds it is wide.
"""

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from rmc_agents.evaluate.plot import Curve, read_curve
from rmc_agents.evaluate.plot import main as plot

MILLION = 1_000_000
TRAIN = "import sys; from rmc_agents.train.cli import main; sys.exit(main())"


def train(core: str, seed: int, arguments: argparse.Namespace) -> Path:
    """The folder of a finished run."""
    run = arguments.runs / f"{core}-seed{seed}"
    if not (run / "summary.json").exists():
        flags = ["--env", arguments.env, "--core", core, "--seed", str(seed), "--run-dir", str(run), "--no-video"]
        flags += ["--eval-episodes", str(arguments.episodes), "--log-every", "1", *arguments.flags]
        with (arguments.runs / f"{run.name}.log").open("w") as log:
            subprocess.run([sys.executable, "-c", TRAIN, *flags], stdout=log, stderr=log, check=True)
    return run


def describe(core: str, runs: list[Path]) -> dict[str, Any]:
    """A row of the table: every seed's score, their mean with its interval, and the curve at every million frames."""
    summaries = [json.loads((run / "summary.json").read_text()) for run in runs]
    scores = np.array([summary["evaluation"]["mean_return"] for summary in summaries])
    mean, error = scores.mean(), scores.std(ddof=1) / np.sqrt(len(scores)) if len(scores) > 1 else 0.0
    half = student.ppf(0.975, len(scores) - 1) * error if len(scores) > 1 else 0.0
    curves = [read_curve(run) for run in runs]
    frames = summaries[0]["frames"]
    return {
        "core": core,
        "frames": frames,
        "scores": scores.round(1).tolist(),
        "mean": round(float(mean), 1),
        "interval": [round(float(mean - half), 1), round(float(mean + half), 1)],
        "curve": {
            f"{mark}M": round(float(np.mean([at(curve, mark * MILLION) for curve in curves])), 1)
            for mark in range(1, frames // MILLION + 1)
        },
        "random": summaries[0]["evaluation"]["random_mean_return"],
        "seconds": [round(summary["seconds"]) for summary in summaries],
    }


def at(curve: Curve, frames: int) -> float:
    """The curve between the points before and after `frames`, each a mean over the episodes of a few seconds."""
    return float(np.interp(frames, curve.frames, curve.returns))


def main() -> None:
    """Trains what is missing, then writes and prints the table and draws the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="minipacman")
    parser.add_argument("--cores", nargs="+", default=["rmc", "lstm", "none"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=2, help="trainings side by side, one thread each")
    parser.add_argument("--episodes", type=int, default=200, help="of each run's evaluation")
    parser.add_argument("--runs", type=Path, default=Path("runs/learning"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/minipacman"), help="without suffix")
    parser.add_argument("flags", nargs="*", help="after --: further flags of rmc-train")
    arguments = parser.parse_args()
    arguments.runs.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        jobs = {
            core: [pool.submit(train, core, seed, arguments) for seed in arguments.seeds] for core in arguments.cores
        }
    runs = {core: [job.result() for job in started] for core, started in jobs.items()}
    rows = [describe(core, runs[core]) for core in arguments.cores]

    marks = list(rows[0]["curve"])
    lines = [f"| core | {' | '.join(marks)} | evaluation, by seed | mean (95 % interval) |"]
    lines.append("|---" * (len(marks) + 3) + "|")
    for row in rows:
        cells = [*(str(row["curve"][mark]) for mark in marks), ", ".join(map(str, row["scores"]))]
        low, high = row["interval"]
        lines.append(f"| {row['core']} | {' | '.join(cells)} | {row['mean']} ({low} to {high}) |")
    print("\n".join(lines))
    arguments.out.with_suffix(".json").write_text(json.dumps(rows, indent=2) + "\n")
    every = [str(run) for group in runs.values() for run in group]
    plot([*every, "--out", f"{arguments.out}.png", "--smooth", "5", "--mark", f"random={rows[0]['random']:.1f}"])


if __name__ == "__main__":
    main()
