"""CPU seconds, user and system, that commands take until their first output.

python -m benchmarks.speed.startup > benchmarks/results/startup.md
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile

CASES = {
    "rmc-train --help": ("train.cli", "--help"),
    "rmc-train --help-all": ("train.cli", "--help-all"),
    "a wrong flag": ("train.cli", "--learning-rat 1"),
    "a wrong environment": ("train.cli", "--env minipackman"),
    "a wrong core": ("train.cli", "--core lstmm"),
    "a wrong file": ("evaluate.cli", "nowhere"),
    "rmc-evaluate --help": ("evaluate.cli", "--help"),
    "rmc-sweep --help": ("train.sweep.cli", "--help"),
    "rmc-evaluate, 100 episodes": ("evaluate.cli", "--pretrained minipacman-rmc --episodes 100"),
    "rmc-train, one update": ("train.cli", "--total-frames 5120 --eval-episodes 0 --no-video --run-dir run"),
}


def cpu_seconds(module: str, flags: str) -> float:
    """CPU seconds of a process that runs a command in its own folder."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    program = f"import sys; from rmc_agents.{module} import main; sys.exit(main())"
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-c", program, *flags.split()],
            cwd=folder,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            check=False,
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    """Print the lower of two measurements of each case as a table."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print("| command | CPU seconds |\n|---|---|")
    for name, (module, flags) in CASES.items():
        seconds = min(cpu_seconds(module, flags) for _ in range(2))
        print(f"| {name} | {seconds:.2f} |", flush=True)


if __name__ == "__main__":
    main()
