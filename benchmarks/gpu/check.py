"""Checks on a machine with a GPU: tests, speed, a short training, exact resuming, moves to the CPU and back.

    python -m benchmarks.gpu.check [--minutes 8] [--out FOLDER]
    python -m benchmarks.gpu.check --device cpu --quick --out /tmp      # tries the script itself, on any machine

Always writes check.json and check.md. Checks without time left are reported as not run, and count as failures.
Exit status 0: all passed; 1: something failed; 2: nothing was run, because there is no GPU.
"""

import argparse
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.gpu.exact import check_move, check_resume
from benchmarks.gpu.report import problem, report, speed_row, training_row
from benchmarks.gpu.speed import measure
from rmc_agents import command_line
from rmc_agents.config import Config
from rmc_agents.evaluate import trainings
from rmc_agents.files import write_atomically, write_json
from rmc_agents.runs.saved import pick_device

ROOT = Path(__file__).parent.parent.parent
PRESETS = {"rmc": "minipacman-rmc", "lstm": "minipacman-lstm"}
SMALL = {"mem_slots": 2, "num_heads": 1, "head_size": 4, "hidden_size": 8, "encoder_sizes": (8,), "unroll_length": 5}


class Plan(NamedTuple):
    """The extent of the checks."""

    tests: list[str]
    backends: list[str]
    lanes: dict[str, list[int]]  # of the measurement of speed, by core
    updates: int  # that it times
    settings: dict[str, Any]  # of everything but the tests, instead of the presets'
    train: dict[str, Any]
    resume_lanes: int

    def backends_of(self, core: str) -> list[str]:
        """The core's backends, the fastest last."""
        return self.backends if core == "rmc" else ["reference"]

    def config(self, core: str, settings: dict[str, Any]) -> Config:
        """The core's preset, with other settings."""
        return Config().updated_from_yaml(PRESETS[core]).updated(self.settings | settings, "gpu-check")


def make_plan(device: str, quick: bool) -> Plan:
    """On a CPU, for trying the script, other backends; if quick, the minimum of everything."""
    backends = ["reference", "triton" if device == "cuda" else "fused"]
    if quick:
        train = {"num_envs": 8, "total_frames": 400, "eval_episodes": 2}
        return Plan(["kernels/test_triton"], backends, {"rmc": [8], "lstm": [8]}, 1, SMALL, train, resume_lanes=4)
    return Plan(
        tests=["kernels/test_triton", "kernels/test_kernels", "cores/test_cores"],
        backends=backends,
        lanes={"rmc": [256, 1024, 4096, 16384], "lstm": [256, 4096, 16384]},
        updates=8,
        settings={},
        train={"num_envs": 1024, "total_frames": 614_400, "eval_episodes": 50},
        resume_lanes=64,
    )


class Runner:
    """Runs commands in sequence, as long as there is time."""

    def __init__(self, minutes: float) -> None:
        self.seconds = 60 * minutes
        self._end = time.monotonic() + self.seconds

    def left(self) -> float:
        """Seconds left."""
        return self._end - time.monotonic()

    def run(self, command: list[str], limit: float) -> dict[str, Any]:
        """The result: `status` (None: not run, or stopped at the time limit), `seconds`, `end` of its output."""
        began = time.monotonic()
        limit = min(limit, self.left())
        if limit <= 0:
            return {"status": None, "seconds": 0.0, "end": "not run: out of time"}
        try:
            done = subprocess.run(
                [sys.executable, "-P", *command],
                cwd=ROOT,
                timeout=limit,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                check=False,
            )
            status, output = done.returncode, done.stdout
        except subprocess.TimeoutExpired as expired:
            text = expired.stdout or b""
            output = text.decode(errors="replace") if isinstance(text, bytes) else text
            status, output = None, f"{output}\nended after {limit:.0f} s"
        return {"status": status, "seconds": time.monotonic() - began, "end": "\n".join(output.splitlines()[-40:])}


def flags(settings: dict[str, Any]) -> list[str]:
    """Settings as the command lines take them."""
    words = []
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", *map(str, value if isinstance(value, tuple) else (value,))]
    return words


def check_tests(plan: Plan, runner: Runner) -> dict[str, Any]:
    """Tests of what runs on the GPU, in half of the time at most.

    They mostly wait for compilers: without pytest-xdist, which does several at once, more --minutes may be needed.
    """
    files = [f"tests/{name}.py" for name in plan.tests]
    parallel = ["-n", "8"] if find_spec("xdist") else []
    result = runner.run(["-m", "pytest", "-q", *parallel, *files], limit=runner.seconds / 2)
    counts = re.findall(r"(\d+) (passed|failed|skipped|errors?)\b", problem(result))
    return result | {"files": files, "counts": {name: int(number) for number, name in counts}}


def check_speed(plan: Plan, device: str, runner: Runner) -> Iterator[dict[str, Any]]:
    """`measure` for every preset, number of lanes and backend."""
    for core, lanes in plan.lanes.items():
        for number in lanes:
            for backend in reversed(plan.backends_of(core)):
                row = {"core": core, "lanes": number, "backend": backend}
                if runner.left() <= 0:
                    yield row | {"error": "not run: out of time"}
                else:
                    config = plan.config(core, {"num_envs": number, "backend": backend})
                    yield row | attempt(partial(measure, config, device, plan.updates))


def check_training(plan: Plan, device: str, backend: str, runner: Runner) -> dict[str, Any]:
    """A short run of rmc-train, evaluated."""
    settings = plan.settings | plan.train | {"device": device, "video": False, "backend": backend}
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--config", PRESETS["rmc"], *flags(settings), "--run-dir", f"{folder}/run"]
        result = runner.run(["-c", trainings.RUN, *arguments], limit=120)
        if result["status"] == 0:
            result["summary"] = json.loads(Path(folder, "run", "summary.json").read_text())
    return result | {"settings": settings, "backend": backend}


def machine(device: torch.device) -> dict[str, Any]:
    """The hardware and software of the measurements."""
    driver = None
    if device.type == "cuda" and (program := shutil.which("nvidia-smi")):
        query = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip() or None
    return {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else f"cpu ({platform.machine()})",
        "driver": driver,
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "triton": metadata.version("triton") if find_spec("triton") else None,
        "python": platform.python_version(),
    }


def is_well(result: dict[str, Any]) -> bool:
    """Whether everything ran, passed and was exact."""
    ran = [result["tests"], *result["training"]]
    exact = [*result["resume"], result["move"]]
    speeds = all("error" not in row for row in result["speed"])
    return speeds and all(part["status"] == 0 for part in ran) and all(row.get("exact") for row in exact)


def check_all(device: torch.device, quick: bool, minutes: float) -> dict[str, Any]:
    """All checks, including failed ones."""
    plan, runner = make_plan(device.type, quick), Runner(minutes)
    resume = []
    for core in PRESETS:
        row = {"core": core, "backend": plan.backends_of(core)[-1]}
        settings = {"num_envs": plan.resume_lanes, "learning_rate_schedule": "constant", "backend": row["backend"]}
        resume.append(row | attempt(partial(check_resume, plan.config(core, settings), device.type)))
        say(f"resuming, {core}, {row['backend']}: {outcome(resume[-1])}")
    move = attempt(partial(check_move, plan.config("rmc", {"num_envs": plan.resume_lanes}), device.type))
    say(f"from the CPU to {device.type} and back: {outcome(move)}")
    tests = check_tests(plan, runner)
    say(f"tests: {tests['counts']}, {tests['seconds']:.0f} s")
    training = [check_training(plan, device.type, backend, runner) for backend in plan.backends[1:]]
    say("\n".join(training_row(row) for row in training))
    speed = []
    for row in check_speed(plan, device.type, runner):
        speed.append(row)
        say(speed_row(row))
    about = machine(device) | {"quick": quick}
    return {"machine": about, "tests": tests, "speed": speed, "training": training, "resume": resume, "move": move}


def attempt(check: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a check returns; its error if a compiler or a driver stops it."""
    try:
        return check()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def outcome(row: dict[str, Any]) -> str:
    """The outcome of an exactness check, in a word."""
    return str(row.get("error", "exact" if row.get("exact") else "differs"))


def say(text: str) -> None:
    """Print progress immediately."""
    print(text, flush=True)


def main() -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--quick", action="store_true", help="hardly any work: to try the script")
    parser.add_argument("--minutes", type=float, default=8.0, help="start nothing later than this")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "gpu-check")
    arguments = parser.parse_args()
    return command_line.run("gpu-check", lambda: check_and_write(arguments))


def check_and_write(arguments: argparse.Namespace) -> int:
    """Check, and write the results. Raises ValueError if there is no GPU."""
    device = pick_device(arguments.device)
    arguments.out.mkdir(parents=True, exist_ok=True)
    result = check_all(device, arguments.quick, arguments.minutes)
    well = is_well(result)
    write_json(arguments.out / "check.json", result | {"well": well})
    write_atomically(arguments.out / "check.md", report(result).encode())
    say(f"{'all is well' if well else 'something failed'}: {arguments.out / 'check.md'}")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
