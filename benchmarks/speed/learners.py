"""Frames per second of several learners over one, in turn, on idle cores and with a core kept busy by another program.

    python -m benchmarks.speed.learners --learners 2
    python -m benchmarks.speed.learners --learners 2 4 8 16 --rounds 3 --lanes 1024

Prints medians, and the median of the ratios within a round. Beside N learners: N trainings at once, each alone with its
share of the lanes. They neither sum nor wait, so the sum of their frames/s is an upper bound for any way of sharing the
lanes.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rmc_agents.evaluate import trainings

LEARNERS, APART = "learners", "apart"
QUIET = ["--eval-episodes", "0", "--no-video", "--device", "cpu", "--save-every", "1e9"]


def train(learners: int, lanes: int, frames: int, flags: Sequence[str]) -> float:
    """Frames per second, from the first update to the last, of a training in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        size = ["--learners", learners, "--num-envs", lanes, "--total-frames", frames, "--run-dir", run_dir]
        subprocess.run(
            [sys.executable, "-c", trainings.RUN, *QUIET, *flags, *map(str, size)],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        rate: float = json.loads((run_dir / "summary.json").read_text())["frames_per_second"]
    return rate


def measure(kind: str, number: int, lanes: int, frames: int, flags: Sequence[str]) -> float:
    """Frames/s of a training of all lanes with `number` learners, or of `number` trainings, each of a share of them."""
    if kind == LEARNERS:
        return train(number, lanes, frames, flags)
    share = partial(train, 1, lanes // number, max(1, frames // number), flags)
    with ThreadPoolExecutor(number) as pool:
        return sum(pool.map(lambda _: share(), range(number)))


@contextmanager
def busy(programs: int) -> Iterator[None]:
    """Context in which `programs` other programs compute without a pause."""
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
    parser.add_argument("--lanes", type=int, default=256)
    parser.add_argument("--frames", type=int, default=500_000)
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1], help="other programs that compute meanwhile")
    parser.add_argument("flags", nargs="*", help="of rmc-train, behind --")
    arguments = parser.parse_args()
    cases = [(LEARNERS, 1), *((kind, number) for number in arguments.learners for kind in (LEARNERS, APART))]
    size = [arguments.lanes, arguments.frames, arguments.flags]
    train(1, arguments.lanes, 1, arguments.flags)  # compiles kernels, if need be
    for programs in arguments.busy:
        with busy(programs):
            rounds = [[measure(*case, *size) for case in cases] for _ in range(arguments.rounds)]
        print(f"\n{programs} other programs, medians of {arguments.rounds} (lowest to highest)")
        for (kind, number), rates in zip(cases, zip(*rounds, strict=True), strict=True):
            ratios = [rate / first for rate, (first, *_) in zip(rates, rounds, strict=True)]
            print(
                f"{number:3} {kind:9}  {statistics.median(rates):9,.0f} frames/s ({min(rates):,.0f} to "
                f"{max(rates):,.0f})  {statistics.median(ratios):5.2f} times one ({min(ratios):.2f} to "
                f"{max(ratios):.2f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
