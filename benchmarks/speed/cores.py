"""Training with one core and another, in turn within one process: frames per second of CPU time, on one thread.

    python -m benchmarks.speed.cores [--agents lstm gru mingru none] [--config minipacman-lstm] [--rounds 20]
                                      [--json FILE]

An agent is a core with further settings: `mingru,hidden_size=256,num_layers=1`. Everything else is as in the
preset; the agents are trained during the measurement. A round is one update of each, collection included; reported are
medians over the rounds. CPU time depends less on the machine's other load than wall time.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from rmc_agents.command_line.values import assignments
from rmc_agents.config import Config
from rmc_agents.train.algorithms import make_trainer
from rmc_agents.train.bench.timing import WARM_UP, Timing
from rmc_agents.train.learner import Learner

CPU = torch.device("cpu")
BASE = "lstm"
"""Rates are also reported relative to this one."""


def trainer(preset: str, agent: str) -> Learner:
    """A new learner with the preset's settings, and the core and settings of 'CORE,NAME=VALUE,...'."""
    core, *settings = agent.split(",")
    config = Config().updated_from_yaml(preset)
    made = make_trainer(config.updated({"core": core, **assignments(settings)}, "--agents"), CPU)
    assert isinstance(made, Learner)
    return made


def cpu_seconds(trainers: dict[str, Learner], rounds: int) -> dict[str, list[float]]:
    """CPU seconds of each one's updates, in turn."""
    seconds: dict[str, list[float]] = {agent: [] for agent in trainers}
    for _ in range(WARM_UP + rounds):
        for agent, each in trainers.items():
            start = time.process_time()
            each.update()
            seconds[agent].append(time.process_time() - start)
    return {agent: times[WARM_UP:] for agent, times in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", nargs="+", default=["lstm", "gru", "mingru", "none"])
    parser.add_argument("--config", default="minipacman-lstm")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    trainers = {agent: trainer(arguments.config, agent) for agent in arguments.agents}
    figures = {agent: Timing.of(times) for agent, times in cpu_seconds(trainers, arguments.rounds).items()}
    frames = {agent: each.frames // each.updates for agent, each in trainers.items()}
    rates = {agent: frames[agent] / figure.seconds for agent, figure in figures.items()}

    table = Table(title=f"{arguments.config}, {arguments.rounds} rounds in turn, one thread")
    for column in ("agent", "core's parameters", "frames/s", f"of {BASE}'s", "spread"):
        table.add_column(column, justify="right")
    rows = {}
    for agent, each in trainers.items():
        rows[agent] = {
            "parameters": sum(parameter.numel() for parameter in each.agent.core.parameters()),
            "frames_per_second": rates[agent],
            "of_base": rates[agent] / rates[BASE] if BASE in rates else None,
            "spread": figures[agent].spread,
        }
        ratio = f"{rows[agent]['of_base']:.2f}" if BASE in rates else ""
        spread = f"{figures[agent].spread or 0:.0%}"
        table.add_row(agent, f"{rows[agent]['parameters']:,}", f"{rates[agent]:,.0f}", ratio, spread)
    Console().print(table)
    if arguments.json:
        report = {"config": arguments.config, "rounds": arguments.rounds, "torch": torch.__version__, "agents": rows}
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
