"""Throughput of IMPALA and A2C at equal lanes per update: frames/s, and waiting times of learner and actors.

    python -m benchmarks.speed.impala [--rounds 5] [--seconds 20] [--scenarios minipacman-lstm ...] [--out FILE]

Mini PacMan with its very cheap compiled engine, with the LSTM and the RMC of the presets; and the same game at 100
microseconds of CPU time per step, one lane at a time (slow_env.py), like most environments.
Contestants are A2C; where lanes can be shared among worker processes, A2C with two of them; IMPALA with two actors,
each with half of the lanes; and the same with Ray as the engine, where the package is installed.

Each measurement runs in a separate process, contestants in turn, with one thread of torch per process; two actors and a
learner are three processes. Ratios are within a round. Learning is the share of time in which the learner is not
waiting: for A2C, which plays in the same process, not collecting a rollout; for IMPALA, not in `ActorPool.take`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks.reports import describe, machine, table, write
from rmc_agents.config import Config
from rmc_agents.train.algorithms import make_trainer
from rmc_agents.train.impala.trainer import Impala
from rmc_agents.train.on_policy import OnPolicy

ROOT = Path(__file__).resolve().parent.parent.parent
SLOW = {"env": f"{__package__}.slow_env:SlowMiniPacman-v0"}
# The preset, the lanes of an update, and what differs from the preset.
SCENARIOS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "minipacman-lstm": ("minipacman-lstm", 256, {}),
    "minipacman-rmc": ("minipacman-rmc", 256, {}),
    "slow-lstm": ("minipacman-lstm", 64, SLOW),
}
CONTESTANTS: dict[str, dict[str, Any]] = {
    "a2c": {"algo": "a2c"},
    "a2c, 2 workers": {"algo": "a2c", "env_workers": 2},
    "impala": {"algo": "impala"},
    "impala, ray": {"algo": "impala", "actor_engine": "ray"},
}
ACTORS = 2
WARM_UP = 5  # updates: the actors' start, compilation, and rollouts made ahead


def contestants(scenario: str) -> list[str]:
    """The contestants of a scenario."""
    without = set()
    if "env" not in SCENARIOS[scenario][2]:  # a compiled engine steps all lanes at once
        without.add("a2c, 2 workers")
    if not find_spec("ray"):
        without.add("impala, ray")
    return [name for name in CONTESTANTS if name not in without]


def settings_of(scenario: str, contestant: str) -> Config:
    """All settings of a measurement."""
    preset, lanes, changes = SCENARIOS[scenario]
    shares = {"actors": ACTORS, "batch_rollouts": ACTORS, "lanes_per_actor": lanes // ACTORS}
    base = Config().updated_from_yaml(preset)
    return base.updated({"num_envs": lanes, **shares, **changes, **CONTESTANTS[contestant]}, contestant)


def a2c_update(trainer: OnPolicy) -> Callable[[], dict[str, float]]:
    """An update, as `OnPolicy.update` does it, that returns the seconds spent learning."""

    def update() -> dict[str, float]:
        rollout = trainer.collector.collect()
        began = time.perf_counter()
        trainer.learn(rollout)
        return {"learning": time.perf_counter() - began}

    return update


def impala_update(trainer: Impala) -> Callable[[], dict[str, float]]:
    """An update that returns the seconds spent learning, and the metrics of the actors."""

    def update() -> dict[str, float]:
        began = time.perf_counter()
        metrics = {name.removeprefix("actors/"): value.item() for name, value in trainer.update().items()}
        metrics["learning"] = (1.0 - metrics["learner_idle"]) * (time.perf_counter() - began)
        return {name: metrics[name] for name in ("learning", "actor_idle", "policy_lag", "queue_depth")}

    return update


def contend(scenario: str, contestant: str, seconds: float) -> dict[str, Any]:
    """Measure one contestant for at least `seconds` of whole updates."""
    torch.set_num_threads(1)
    trainer = make_trainer(settings_of(scenario, contestant), torch.device("cpu"))
    with closing(trainer):
        update = a2c_update(trainer) if isinstance(trainer, OnPolicy) else impala_update(trainer)  # type: ignore[arg-type]
        for _ in range(WARM_UP):
            update()
        measured, before, elapsed, began = [], trainer.frames, 0.0, time.perf_counter()
        while elapsed < seconds:
            measured.append(update())
            trainer.lanes.take_episodes()
            elapsed = time.perf_counter() - began
        means = {name: statistics.fmean(one[name] for one in measured) for name in measured[0]}
        learning = means.pop("learning") * len(measured) / elapsed
        frames = trainer.frames - before
    return {"frames": frames, "seconds": elapsed, "rate": frames / elapsed, "learning": learning, **means}


def run(scenario: str, contestant: str, seconds: float) -> dict[str, Any]:
    """`contend` in a separate process; Ray's workers find the slow environment by PYTHONPATH."""
    command = [sys.executable, "-m", __spec__.name, "--contend", scenario, contestant, "--seconds", str(seconds)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{scenario}, {contestant} failed:\n{done.stderr[-2000:]}")
    return {"scenario": scenario, "contestant": contestant, **json.loads(done.stdout.splitlines()[-1])}


def median_and_range(values: Iterable[float], form: str) -> str:
    """Median and range over the rounds."""
    values = list(values)
    median, low, high = (format(f(values), form) for f in (statistics.median, min, max))
    return f"{median} ({low} to {high})"


def section(scenario: str, results: list[dict[str, Any]]) -> str:
    """A scenario's table."""
    by_name = {name: [r for r in results if r["contestant"] == name] for name in contestants(scenario)}

    def ratio(name: str, other: str) -> str:
        pairs = zip(by_name[name], by_name[other], strict=True)
        return median_and_range((one["rate"] / base["rate"] for one, base in pairs), ".2f")

    def mean(name: str, what: str, form: str) -> str:
        values = [one[what] for one in by_name[name] if what in one]
        return format(statistics.median(values), form) if values else ""

    columns = ("", "frames/s", "of a2c", "of impala", "learning", "actors idle", "policy lag, updates")
    rows = [
        (
            name,
            median_and_range((one["rate"] for one in runs), ",.0f"),
            ratio(name, "a2c"),
            ratio(name, "impala"),
            mean(name, "learning", ".0%"),
            mean(name, "actor_idle", ".0%"),
            mean(name, "policy_lag", ".2f"),
        )
        for name, runs in by_name.items()
    ]
    preset, lanes, changes = SCENARIOS[scenario]
    where = f", {changes['env']}" if changes else ""
    return f"\n## {scenario}\n\nPreset {preset}{where}, {lanes} lanes an update.\n\n{table(columns, rows)}"


def report(results: list[dict[str, Any]], arguments: argparse.Namespace, machine: dict[str, Any]) -> str:
    """The Markdown file, of the rounds so far."""
    rounds = results[-1]["round"]
    lines = [
        "# Throughput of IMPALA beside A2C",
        "",
        f"Made by `python -m benchmarks.speed.impala`, whose `--help` says what is compared: {rounds} rounds of",
        f"{arguments.seconds:g} s each, in turn; medians (lowest to highest). On {describe(machine)}",
    ]
    for scenario in arguments.scenarios:
        lines.append(section(scenario, [result for result in results if result["scenario"] == scenario]))
    return "\n".join(lines)


def main() -> None:
    """Measures round by round, then writes the figures and the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "impala", help="without suffix")
    parser.add_argument("--contend", nargs=2, help="measure this contestant, here and now, and print one line")
    arguments = parser.parse_args()
    if arguments.contend:
        scenario, name = arguments.contend
        print(json.dumps(contend(scenario, name, arguments.seconds)), flush=True)
        return
    results: list[dict[str, Any]] = []
    for number in range(1, arguments.rounds + 1):
        here = machine()
        for scenario in arguments.scenarios:
            for name in contestants(scenario):
                result = run(scenario, name, arguments.seconds)
                results.append({"round": number, "product_rate": here["product_rate"], **result})
                print(f"round {number}: {scenario}, {name}: {result['rate']:,.0f} frames/s", flush=True)
        text = report(results, arguments, here)
        write(arguments.out, {"machine": here, "results": results}, text)
    print(text)


if __name__ == "__main__":
    main()
