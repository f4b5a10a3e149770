"""A soak test of IMPALA: actors and learner are killed at random, and the run has to continue undamaged and to learn.

    python -m benchmarks.reliability.soak [--minutes 5] [--learner-kills 3] [--seed 0] [--out FILE]
                                           [-- FLAGS OF rmc-train]

An `rmc-train --algo impala` with local actors plays Mini PacMan. Every 10 to 30 seconds the oldest of its actors is
killed with -9; in the first half of the time the learner is also killed a few times, and resumed. In the second half it
is not, to track memory and file handles through many replacements of actors. After each end of a learner, by -9 or
finally by SIGTERM, all processes must be gone within 10 seconds, nothing new may remain in /dev/shm (run nothing else
that leaves files there), and every checkpoint must be valid. The exit status says whether all of this holds.
"""

import argparse
import math
import random
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.reliability.watched_run import WatchedRun
from benchmarks.reports import RESULTS, describe, machine, scalars, table, write
from rmc_agents.runs import checkpoint

FLAGS = [
    *("--config", "minipacman-lstm", "--algo", "impala", "--learning-rate", "1e-3"),
    *("--learning-rate-schedule", "constant", "--total-frames", "10000000000"),
    *("--save-every", "2", "--log-every", "1"),
]
SAMPLE = 0.25  # seconds between samples
MAX_GROWTH = 1.1  # of the last learner's memory and open files, from the first quarter of its time to the last


def soak(run: WatchedRun, arguments: argparse.Namespace) -> None:
    """Kill and take samples until the time is over, then end the run."""
    number, seconds, actors = random.Random(arguments.seed), 60 * arguments.minutes, arguments.actors
    run.start(actors)
    began = time.monotonic()
    ends = sorted(number.uniform(0.0, seconds / 2) for _ in range(arguments.learner_kills))
    next_kill = number.uniform(*arguments.kill_every)
    while (now := time.monotonic() - began) < seconds:
        run.check()
        run.sample()
        if ends and now > ends[0] and any(checkpoint.numbered(run.folder)):
            ends.pop(0)
            run.end(signal.SIGKILL)
            run.start(actors)
        elif now > next_kill:
            next_kill = now + number.uniform(*arguments.kill_every)
            run.kill_an_actor()
        time.sleep(SAMPLE)
    run.end(signal.SIGTERM)


def quarters(values: Sequence[float]) -> tuple[float, float]:
    """The means of the first and of the last quarter; no numbers if there is nothing."""
    if not len(values):
        return math.nan, math.nan
    size = max(1, len(values) // 4)
    return fmean(values[:size]), fmean(values[-size:])


def figures(run: WatchedRun, learner_kills: int) -> dict[str, Any]:
    """The figures of a run."""
    ends = [life.end for life in run.lives if life.end is not None]
    replacements = [seconds for life in run.lives for seconds in life.replacements]
    lost = {
        name: max(scalars(run.folder, f"actors/rollouts_{name}"), default=0.0)
        for name in ("unfit", "repeated", "stale")
    }
    return {
        "actors killed and replaced": len(replacements),
        "longest replacement, seconds": max(replacements, default=0.0),
        "learners killed and resumed": len(ends) - 1,
        "learners not killed, for want of a checkpoint": learner_kills - len(ends) + 1,
        "exit status at SIGTERM": ends[-1].status,
        "checkpoints damaged": sum(len(end.damaged) for end in ends),
        "ends without a checkpoint": sum(end.checkpoints == 0 for end in ends),
        "longest until all processes were gone, seconds": max(end.seconds for end in ends),
        "processes left": sum(end.processes for end in ends),
        "left in /dev/shm": sorted({name for end in ends for name in end.shared_memory}),
        "memory of the last learner, MiB, first and last quarter": quarters(
            [sample.memory / 2**20 for sample in run.lives[-1].samples]
        ),
        "open files of the last learner, first and last quarter": quarters(
            [sample.handles for sample in run.lives[-1].samples]
        ),
        "mean return, first and last quarter": quarters(scalars(run.folder, "charts/episodic_return").tolist()),
        **{f"most rollouts {name}, of one learner": count for name, count in lost.items()},
    }


def faults(result: dict[str, Any]) -> list[str]:
    """The figures that violate a requirement."""
    for_nothing = (
        "learners not killed, for want of a checkpoint",
        "checkpoints damaged",
        "ends without a checkpoint",
        "processes left",
        "left in /dev/shm",
        "most rollouts unfit, of one learner",
    )
    found = [name for name in for_nothing if result[name]]
    if result["exit status at SIGTERM"] != 128 + signal.SIGTERM:
        found.append("exit status at SIGTERM")
    memory, handles, returns = (
        next(pair for name, pair in result.items() if name.startswith(start)) for start in ("memory", "open", "mean")
    )
    if memory[1] > MAX_GROWTH * memory[0]:
        found.append("memory grows")
    if handles[1] > MAX_GROWTH * handles[0]:
        found.append("open files grow")
    if not returns[1] > returns[0]:
        found.append("it does not learn")
    return found


def shown(value: Any) -> str:
    """A figure in a table."""
    if isinstance(value, tuple):
        return ", ".join(map(shown, value))
    if isinstance(value, list):
        return ", ".join(value) or "nothing"
    return f"{value:,.1f}" if isinstance(value, float) else str(value)


def report(run: WatchedRun, result: dict[str, Any], wrong: Sequence[str], command: str, here: dict[str, Any]) -> str:
    """The Markdown file."""
    lives = [
        (
            f"{life.samples[-1].seconds:.0f}",
            str(len(life.replacements)),
            " to ".join(f"{value:.0f}" for value in quarters([sample.memory / 2**20 for sample in life.samples])),
            " to ".join(f"{value:.1f}" for value in quarters([sample.handles for sample in life.samples])),
            f"{life.end.status}",
            f"{life.end.seconds:.1f}",
            f"{life.end.checkpoints - len(life.end.damaged)} of {life.end.checkpoints}",
        )
        for life in run.lives
        if life.end is not None and life.samples
    ]
    columns = ("seconds", "actors killed", "memory, MiB", "open files", "exit status", "seconds to go", "whole")
    return "\n\n".join(
        (
            "# A soak test of IMPALA",
            f"Made by `{command}`, whose `--help` says what is done. "
            f"On {describe(here)} What is wrong: {', '.join(wrong) or 'nothing'}.",
            table(("", ""), [(name, shown(value)) for name, value in result.items()]),
            "Learner by learner; memory and open files are means of the first and of the last quarter, seconds to go "
            "until all its processes were gone, whole the checkpoints that can be loaded:",
            table(columns, lives),
        )
    )


def main() -> None:
    """Runs the test and writes the report; exits with 1 if something was wrong."""
    argv, flags = sys.argv[1:], list[str]()
    if "--" in argv:
        argv, flags = argv[: argv.index("--")], argv[argv.index("--") + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--learner-kills", type=int, default=3)
    parser.add_argument("--kill-every", type=float, nargs=2, default=(10.0, 30.0), help="seconds, least and most")
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--out", type=Path, default=RESULTS / "soak", help="without suffix")
    arguments = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the run ends with the test
    here = machine()
    with tempfile.TemporaryDirectory() as folder:
        run = WatchedRun(Path(folder) / "run", [*FLAGS, "--actors", str(arguments.actors), *flags])
        try:
            soak(run, arguments)
        finally:
            run.kill()
        result = figures(run, arguments.learner_kills)
    wrong = faults(result)
    command = shlex.join(["python", "-m", __spec__.name, *sys.argv[1:]])
    text = report(run, result, wrong, command, here)
    lives = [asdict(life) for life in run.lives]
    write(arguments.out, {"machine": here, "flags": flags, "wrong": wrong, "figures": result, "lives": lives}, text)
    print(text)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
