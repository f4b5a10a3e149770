"""CPU seconds, user and system, that commands take until their first output.

python -m benchmarks.speed.startup > benchmarks/results/startup.md
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile

WRONG = "a wrong "
CASES = {
    "rmc-train --help": "rmc-train --help",
    "rmc-train --help-all": "rmc-train --help-all",
    "a wrong flag": "rmc-train --learning-rat 1",
    "a wrong environment": "rmc-train --env minipackman",
    "a wrong core": "rmc-train --core lstmm",
    "a wrong file": "rmc-evaluate nowhere",
    "rmc-evaluate --help": "rmc-evaluate --help",
    "rmc-sweep --help": "rmc-sweep --help",
    "rmc-evaluate, 100 episodes": "rmc-evaluate --pretrained minipacman-rmc --episodes 100",
    "rmc-train, one update": "rmc-train --total-frames 5120 --eval-episodes 0 --no-video --run-dir run",
}


def cpu_seconds(command: str, is_wrong: bool) -> float:
    """CPU seconds of a process that runs a command in its own folder. Raises SystemExit if it fails, or should have."""
    name, *flags = command.split()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    program = f"import sys; from rmc_agents import commands; sys.exit(commands.{name.replace('-', '_')}())"
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", program, *flags],
            cwd=folder,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    if (done.returncode != 0) != is_wrong:
        raise SystemExit(f"{command} ended with {done.returncode}: {done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    """Print the lower of two measurements of each case as a table."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print("| command | CPU seconds |\n|---|---|")
    for name, command in CASES.items():
        seconds = min(cpu_seconds(command, name.startswith(WRONG)) for _ in range(2))
        print(f"| {name} | {seconds:.2f} |", flush=True)


if __name__ == "__main__":
    main()
