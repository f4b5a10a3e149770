"""Frames per second of several learners over one, in turn, on idle cores and with a core kept busy by another program.

    python benchmarks/speed/learners.py --learners 2
    python benchmarks/speed/learners.py --learners 2 4 8 16 --rounds 3 -- --num-envs 1024

Prints medians, the median of the ratios within a round, and CPU seconds of all processes per million frames, without
those that they take to start.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

TRAIN = "import sys; from rmc_agents.train.cli import main; sys.exit(main())"
QUIET = ["--eval-episodes", "0", "--no-video", "--device", "cpu", "--save-every", "1e9"]


class Measured(NamedTuple):
    """One training."""

    rate: float  # frames per second, from the first update to the last
    frames: int
    cpu: float  # seconds of all processes, from start to end


def measure(learners: int, frames: int, flags: Sequence[str]) -> Measured:
    """Trains in a process of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        command = [*QUIET, *flags, "--learners", str(learners), "--total-frames", str(frames), "--run-dir", run_dir]
        subprocess.run(
            [sys.executable, "-c", TRAIN, *map(str, command)],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        summary = json.loads((run_dir / "summary.json").read_text())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return Measured(summary["frames_per_second"], summary["frames"], cpu)


@contextmanager
def busy(programs: int) -> Iterator[None]:
    """A context in which `programs` other programs compute without a pause."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(programs)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def main() -> None:
    """Prints a table for each number of other programs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learners", type=int, nargs="+", default=[2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--frames", type=int, default=500_000)
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1], help="other programs that compute meanwhile")
    parser.add_argument("flags", nargs="*", help="of rmc-train, behind --")
    arguments = parser.parse_args()
    numbers = [1, *arguments.learners]
    measure(1, 1, arguments.flags)  # compiles kernels, if need be
    starts = [measure(number, 1, arguments.flags) for number in numbers]
    for programs in arguments.busy:
        with busy(programs):
            rounds = [[measure(n, arguments.frames, arguments.flags) for n in numbers] for _ in range(arguments.rounds)]
        print(f"\n{programs} other programs, medians of {arguments.rounds} (lowest to highest)")
        for number, start, column in zip(numbers, starts, zip(*rounds, strict=True), strict=True):
            rates = [measured.rate for measured in column]
            ratios = [measured.rate / first.rate for measured, (first, *_) in zip(column, rounds, strict=True)]
            cpus = [(measured.cpu - start.cpu) / (measured.frames - start.frames) * 1e6 for measured in column]
            print(
                f"{number:3} learners  {statistics.median(rates):9,.0f} frames/s ({min(rates):,.0f} to "
                f"{max(rates):,.0f})  {statistics.median(ratios):5.2f} times one ({min(ratios):.2f} to "
                f"{max(ratios):.2f})  {statistics.median(cpus):6.1f} CPU s per million frames",
                flush=True,
            )


if __name__ == "__main__":
    main()
