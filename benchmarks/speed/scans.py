"""The scans side by side: fused, reference and torch's own LSTM, forward and backward; and one step of acting.

    python -m benchmarks.speed.scans [--lanes 256] [--threads 1] [--json FILE]

The memory has 4 slots of width 128 and 4 heads, the LSTM 256 units, the inputs width 128; an episode begins at 3 % of
the steps, except for nn.LSTM, which has no resets. Acting is the whole agent (encoder, core, heads) without gradient,
with 32 lanes of Mini PacMan. Everything is measured once per round; reported are medians over the rounds.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from rmc_agents.config import Config
from rmc_agents.cores import LSTM, RMC, Core
from rmc_agents.train.bench.timing import Timing, rounds
from rmc_agents.train.on_policy import OnPolicy

INPUT, RESETS, ACTING_LANES, ACTING_STEPS = 128, 0.03, 32, 100
CPU = torch.device("cpu")


def scan(core: Core, backend: str, steps: int, lanes: int) -> Callable[[], object]:
    """A core's unroll and its gradient, down to the inputs and all weights."""
    core.backend = backend
    inputs, should_reset = torch.randn(steps, lanes, INPUT), torch.rand(steps, lanes) < RESETS
    state = core.initial_state(lanes)
    wanted = [inputs.requires_grad_(), *core.parameters()]
    gradient = torch.randn(steps, lanes, core.output_size)
    return lambda: torch.autograd.grad(core.unroll(inputs, should_reset, state)[0], wanted, gradient)


def torch_lstm(steps: int, lanes: int) -> Callable[[], object]:
    """The same of `nn.LSTM`, without resets."""
    lstm, inputs = nn.LSTM(INPUT, 256), torch.randn(steps, lanes, INPUT, requires_grad=True)
    wanted, gradient = [inputs, *lstm.parameters()], torch.randn(steps, lanes, 256)
    return lambda: torch.autograd.grad(lstm(inputs)[0], wanted, gradient)


def acting_step(**settings: object) -> Callable[[], None]:
    """ACTING_STEPS steps of the agent from its initial state."""
    trainer = OnPolicy(Config().updated({"num_envs": ACTING_LANES, **settings}, "benchmark"), CPU)
    agent, steps = trainer.agent, trainer.lanes.steps
    state = agent.initial_state(ACTING_LANES)

    @torch.no_grad()
    def run() -> None:
        for _ in range(ACTING_STEPS):
            agent.step(steps, state)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    work = {}
    for steps in (20, 100):
        for backend in ("fused", "reference"):
            rmc, lstm = RMC(INPUT, mem_slots=4, num_heads=4, head_size=32), LSTM(INPUT, hidden_size=256)
            work[f"rmc {backend}, T = {steps}"] = scan(rmc, backend, steps, arguments.lanes)
            work[f"lstm {backend}, T = {steps}"] = scan(lstm, backend, steps, arguments.lanes)
        work[f"nn.LSTM, T = {steps}"] = torch_lstm(steps, arguments.lanes)
    work[f"acting {ACTING_STEPS} times, rmc 4 x 128"] = acting_step(num_heads=4)
    work[f"acting {ACTING_STEPS} times, lstm 256"] = acting_step(core="lstm")
    figures = {name: Timing.of(times) for name, times in rounds(work, arguments.repeats, None, CPU).items()}
    table = Table("what", "ms", "±", "of nn.LSTM's time")
    for name, figure in figures.items():
        lstm_name = f"nn.LSTM, T = {name.split()[-1]}"
        share = f"{figure.seconds / figures[lstm_name].seconds:.2f}" if lstm_name in figures else "-"
        table.add_row(name, f"{1e3 * figure.seconds:.2f}", f"{figure.spread or 0:.0%}", share)
    Console().print(table)
    if arguments.json:
        report = {"lanes": arguments.lanes, "threads": arguments.threads, "torch": torch.__version__}
        report["ms"] = {name: figure.as_json() for name, figure in figures.items()}
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
