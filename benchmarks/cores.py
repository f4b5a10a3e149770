"""How fast the cores are: one acting step without gradients, and an unroll with its backward pass.

    python benchmarks/cores.py --lanes 256 --unroll-length 20 --threads 1 --json cores.json

Every figure is a median over repetitions, the spread being the interquartile range over the median. Rounds go through
all cores in turn, so that a disturbance from outside meets all of them; a plain matrix product of the run's own
GFLOP/s stands beside, as the measure of the machine in that very run.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from rmc_agents.config import CoreConfig
from rmc_agents.cores import Core, make_core

CORES = ("rmc", "relational-rnn", "lstm", "gru", "rnn", "none")


def main() -> None:
    """Measures, prints a table, and writes JSON if asked to."""
    options = parse()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    device = torch.device(options.device)
    work: dict[str, dict[str, Callable[[], object]]] = {"matmul": {"run": matrix_product(device)}}
    for name in options.cores:
        config = CoreConfig(
            core=name,
            hidden_size=options.hidden_size,
            mem_slots=options.mem_slots,
            num_heads=options.num_heads,
            head_size=options.head_size,
        )
        core = make_core(config, options.input_size).to(device)
        shape = options.unroll_length, options.lanes
        work[name] = {"step": acting_step(core, *shape), "unroll": training_unroll(core, *shape)}
    seconds = measure(work, options.repetitions, device)
    report = summarise(seconds, options)
    print_table(report)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(report, file, indent=2)


def parse() -> argparse.Namespace:
    """The command line; a slot of the memory is num_heads * head_size wide."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", type=int, default=256)
    parser.add_argument("--unroll-length", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--input-size", type=int, default=146)
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--mem-slots", type=int, default=4)
    parser.add_argument("--num-heads", type=int, default=4)
    parser.add_argument("--head-size", type=int, default=32)
    parser.add_argument("--cores", nargs="+", choices=CORES, default=CORES)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", metavar="FILE")
    return parser.parse_args()


def matrix_product(device: torch.device) -> Callable[[], object]:
    """A product of 1024 x 1024 matrices."""
    a, b = torch.randn(2, 1024, 1024, device=device)
    return lambda: torch.mm(a, b)


def acting_step(core: Core, unroll_length: int, lanes: int) -> Callable[[], None]:
    """One step of all lanes without gradients, as the actor takes it."""
    inputs, should_reset = data(core, unroll_length, lanes)
    state = core.initial_state(lanes)

    def run() -> None:
        with torch.no_grad():
            core.step(inputs[0], should_reset[0], state)

    return run


def training_unroll(core: Core, unroll_length: int, lanes: int) -> Callable[[], None]:
    """An unroll and its backward pass, down to the inputs and all weights."""
    inputs, should_reset = data(core, unroll_length, lanes)
    state = core.initial_state(lanes)
    gradient = torch.randn(unroll_length, lanes, core.output_size, device=inputs.device)
    inputs.requires_grad_()

    def run() -> None:
        outputs, _ = core.unroll(inputs, should_reset, state)
        outputs.backward(gradient)
        core.zero_grad()
        inputs.grad = None

    return run


def data(core: Core, unroll_length: int, lanes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs, and flags of which one in fifty is set."""
    device = next(core.parameters(), torch.empty(0)).device
    inputs = torch.randn(unroll_length, lanes, core.input_size, device=device)
    return inputs, torch.rand(unroll_length, lanes, device=device) < 0.02


def measure(
    work: dict[str, dict[str, Callable[[], object]]], repetitions: int, device: torch.device
) -> dict[str, dict[str, list[float]]]:
    """Seconds of each piece of work, round by round, after two rounds that do not count."""
    seconds: dict[str, dict[str, list[float]]] = {name: {kind: [] for kind in work[name]} for name in work}
    for _ in range(repetitions + 2):
        for name, kinds in work.items():
            for kind, run in kinds.items():
                synchronise(device)
                start = time.perf_counter()
                run()
                synchronise(device)
                seconds[name][kind].append(time.perf_counter() - start)
    return {name: {kind: times[2:] for kind, times in kinds.items()} for name, kinds in seconds.items()}


def synchronise(device: torch.device) -> None:
    """Waits for the accelerator, if it is one."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def summarise(seconds: dict[str, dict[str, list[float]]], options: argparse.Namespace) -> dict[str, Any]:
    """Settings and figures, as they are written to JSON."""
    matmul = seconds.pop("matmul")["run"]
    samples = {"step": options.lanes, "unroll": options.lanes * options.unroll_length}
    return {
        "settings": vars(options) | {"torch": torch.__version__},
        "matmul_gflops": 2 * 1024**3 / statistics.median(matmul) / 1e9,
        "matmul_spread": spread(matmul),
        "cores": {
            name: {
                kind: {
                    "ms": statistics.median(times) * 1e3,
                    "spread": spread(times),
                    "samples_per_second": samples[kind] / statistics.median(times),
                }
                for kind, times in kinds.items()
            }
            for name, kinds in seconds.items()
        },
    }


def spread(values: list[float]) -> float:
    """Interquartile range over the median."""
    first, median, third = statistics.quantiles(values, n=4)
    return (third - first) / median


def print_table(report: dict[str, Any]) -> None:
    """One line for each core."""
    settings = report["settings"]
    print(f"{settings['lanes']} lanes, T = {settings['unroll_length']}, {settings['threads']} thread(s)")
    print(f"matrix product {report['matmul_gflops']:.0f} GFLOP/s ± {report['matmul_spread']:.0%}")
    print(f"{'core':<16}{'step ms':>9}{'±':>6}{'samples/s':>12}{'unroll ms':>12}{'±':>6}{'samples/s':>12}")
    for name, kinds in report["cores"].items():
        step, unroll = kinds["step"], kinds["unroll"]
        print(
            f"{name:<16}{step['ms']:>9.3f}{step['spread']:>6.0%}{step['samples_per_second']:>12,.0f}"
            f"{unroll['ms']:>12.2f}{unroll['spread']:>6.0%}{unroll['samples_per_second']:>12,.0f}"
        )


if __name__ == "__main__":
    main()
