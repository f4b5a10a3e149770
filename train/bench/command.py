"""rmc-bench: where training time goes."""

import argparse
import json
import platform
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from rmc_agents import command_line, configs
from rmc_agents.config import Config
from rmc_agents.cores import Core
from rmc_agents.kernels.dispatch import Backend
from rmc_agents.runs.checkpoint import write_atomically
from rmc_agents.runs.saved import pick_device
from rmc_agents.train.algorithms import ON_POLICY
from rmc_agents.train.on_policy import OnPolicy
from rmc_agents.types import Rollout

from .operations import Product, plain_products, scan_products
from .timing import Figure, peak_memory, rounds

DESCRIPTION = """Measure where training time goes, for one environment, core, number of lanes and device.

Takes every setting of rmc-train. Each thing below is done once a round, one after the other, so that a disturbance
meets all of them; told are medians over the rounds, and the interquartile range over the median (±).

  training     one update, everything included; frames are environment steps over all lanes
  environment  the lanes stepped unroll-length times by a fixed action
  acting       collecting a rollout less the environment: encoder, core, heads, the draw of actions, the recording
  update       loss, gradient, optimizer
  core steps   the core alone, stepped unroll-length times without gradients, as acting does it
  scan         the core's unroll over unroll-length steps of all lanes, and its gradient
  products     the matrix products of that scan, forward and backward, and nothing in between: what depends on no memory
               and each weight's gradient in one product each, the rest step by step; by the fastest library at hand,
               and by torch.mm

A scan's operations are those of these products; attention's own and all that is no product are not counted. Outside the
scan is training less one such scan; where acting is the scan's forward pass (backend fused), that is inside. Peak
memory is read after two updates, before anything else is measured: on a GPU what torch allocated there, else the
process's resident set, interpreter and libraries included.

  rmc-bench --core rmc --num-envs 256 --num-heads 4 --backends reference --json bench.json"""

UPDATES_BEFORE = 2  # the second one runs beside the optimizer's state and the first one's leftovers
RESETS = 0.02  # episodes begin at so many of the scan's steps


@dataclass(frozen=True)
class Arguments(Config):
    """What to measure, and all settings of a run."""

    config: Path | None = None
    """YAML file of settings by the names of the flags below, or a preset's name."""
    repeats: int = 15
    """Rounds that count, after two that do not."""
    seconds: float | None = None
    """Begin no further round after so many seconds, whatever --repeats says; one counts always."""
    backends: tuple[Backend, ...] = ()
    """Measure the scan by each of these as well."""
    json: Path | None = None
    """Also write everything to this file."""


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    return command_line.run("rmc-bench", lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    arguments = _parse(argv)
    config = Config(**{section.name: getattr(arguments, section.name) for section in fields(Config)})
    if arguments.repeats < 1:
        raise ValueError(f"--repeats: expected at least 1, got {arguments.repeats}")
    if arguments.seconds is not None and not arguments.seconds >= 0:
        raise ValueError(f"--seconds: expected at least 0, got {arguments.seconds}")
    if arguments.json is not None:
        _check_writable(arguments.json)
    if config.train.algo not in ON_POLICY:
        raise ValueError(f"rmc-bench takes a2c and ppo apart: expected one of them as --algo, got {config.train.algo}")
    torch.set_num_threads(config.run.threads)
    trainer = OnPolicy(config, pick_device(config.run.device))
    console = Console()
    _print_header(trainer, console)
    report = measure(trainer, arguments.backends, arguments.repeats, arguments.seconds)
    _print_report(report, console)
    if arguments.json is not None:
        write_atomically(arguments.json, (json.dumps(report, indent=2, allow_nan=False) + "\n").encode())
    return 0


def _parse(argv: Sequence[str] | None) -> Arguments:
    """Flags over --config over the defaults, as rmc-train has it."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--config", type=Path)
    try:
        path = parser.parse_known_args(argv)[0].config
    except argparse.ArgumentError as error:
        raise ValueError(str(error)) from None
    base = Config() if path is None else Config().updated_from_yaml(configs.find(path))
    default = Arguments(**{section.name: getattr(base, section.name) for section in fields(Config)})
    return command_line.parse(Arguments, argv, "rmc-bench", DESCRIPTION, default)


def _check_writable(path: Path) -> None:
    """Raises ValueError or OSError before anything is measured if the file could not be written."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder: expected a file name")
    if not path.parent.is_dir():
        raise ValueError(f"{path}: there is no folder {path.parent}")
    tempfile.TemporaryFile(dir=path.parent).close()


def measure(trainer: OnPolicy, backends: Sequence[str], repeats: int, limit: float | None) -> dict[str, Any]:
    """Everything that the command tells, as it is written to JSON.

    Args:
      trainer: fresh; it learns on the way.
      backends: of further measurements of the scan.
      repeats: rounds that count.
      limit: no further round begins after so many seconds; None: `repeats` decide alone.
    """
    device, core = trainer.lanes.device, trainer.agent.core
    for _ in range(UPDATES_BEFORE):
        trainer.update()
    memory = peak_memory(device)
    own = trainer.backend
    scans = list(dict.fromkeys((own, *backends)))
    length, lanes = trainer.train.unroll_length, trainer.lanes.num_lanes
    products = scan_products(core, length, lanes)
    seconds = rounds(_work(trainer, scans, products), repeats, limit, device)

    operations = sum(product.operations for product in products)
    plain, by_mm = Figure.of(seconds["products"]), Figure.of(seconds["torch.mm"])
    scan = {name: Figure.of(seconds[_scan(name)]) for name in scans}
    return {
        "settings": trainer.config.to_mapping(),
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "device": _device_name(device),
        "parameters": {name: _count(module) for name, module in (("agent", trainer.agent), ("core", core))},
        "frames_per_update": length * lanes,
        "rounds": len(seconds["collect"]),
        "parts": _parts(seconds, length * lanes),
        "scan_gflop": operations / 1e9,
        "scan": {
            name: _arithmetic(figure, operations)
            | {"of_products": figure.rate(plain.seconds) if products else None}
            | {"of_torch_mm": figure.rate(by_mm.seconds) if products else None}
            for name, figure in scan.items()
        },
        "products": _arithmetic(plain, operations),
        "torch.mm": _arithmetic(by_mm, operations),
        "outside_scan": 1 - scan[own].seconds / Figure.of(_training(seconds)).seconds,
        "peak_memory_mib": memory / 2**20,
        "seconds": seconds,
    }


def _training(seconds: dict[str, list[float]]) -> list[float]:
    return [collect + learn for collect, learn in zip(seconds["collect"], seconds["learn"], strict=True)]


def _parts(seconds: dict[str, list[float]], frames: int) -> dict[str, dict[str, float | None]]:
    """Training and its parts; acting is a difference, taken round by round."""
    parts = {
        "training": _training(seconds),
        "environment": seconds["environment"],
        "acting": [a - b for a, b in zip(seconds["collect"], seconds["environment"], strict=True)],
        "update": seconds["learn"],
        "core steps": seconds["core steps"],
    }
    figures = {name: Figure.of(times) for name, times in parts.items()}
    return {name: figure.told() | {"frames_per_second": figure.rate(frames)} for name, figure in figures.items()}


def _arithmetic(figure: Figure, operations: int) -> dict[str, float | None]:
    return figure.told() | {"gflop_per_second": figure.rate(operations / 1e9)}


def _work(trainer: OnPolicy, backends: Sequence[str], products: Sequence[Product]) -> dict[str, Callable[[], object]]:
    """What a round does, by name."""
    core, lanes, length = trainer.agent.core, trainer.lanes, trainer.train.unroll_length
    action = torch.zeros(lanes.num_lanes, dtype=torch.int64, device=lanes.device)
    inputs = torch.randn(length, lanes.num_lanes, core.input_size, device=lanes.device)
    should_reset = torch.rand(length, lanes.num_lanes, device=lanes.device) < RESETS

    def step_lanes() -> None:
        for _ in range(length):
            lanes.step(action)

    rollout: list[Rollout] = []

    def collect() -> None:
        rollout[:] = [trainer.collector.collect()]

    return {
        "collect": collect,
        "learn": lambda: trainer.learn(rollout[0]),
        "environment": step_lanes,
        "core steps": _core_steps(core, inputs, should_reset),
        **{_scan(name): _unroll(core, inputs, should_reset, name) for name in backends},
        "products": plain_products(products, lanes.device, fastest=True),
        "torch.mm": plain_products(products, lanes.device, fastest=False),
    }


def _core_steps(core: Core, inputs: Tensor, should_reset: Tensor) -> Callable[[], None]:
    @torch.no_grad()
    def run() -> None:
        state = core.initial_state(inputs.shape[1])
        for inputs_t, should_reset_t in zip(inputs, should_reset, strict=True):
            _, state = core.step(inputs_t, should_reset_t, state)

    return run


def _unroll(core: Core, inputs: Tensor, should_reset: Tensor, backend: str) -> Callable[[], None]:
    """The scan and its gradient, down to the inputs and all weights, as training takes it."""
    gradient = torch.randn(*inputs.shape[:2], core.output_size, device=inputs.device)
    wanted = [inputs.clone().requires_grad_(), *core.parameters()]
    state = core.initial_state(inputs.shape[1])

    def run() -> None:
        with using(core, backend):
            outputs, _ = core.unroll(wanted[0], should_reset, state)
            torch.autograd.grad(outputs, wanted, gradient, allow_unused=True)

    return run


@contextmanager
def using(core: Core, backend: str) -> Iterator[None]:
    """The core with another backend for a while."""
    before = core.backend
    core.backend = backend
    try:
        yield
    finally:
        core.backend = before


def _scan(backend: str) -> str:
    return f"scan, {backend}"


def _count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu ({platform.machine()})"


def _print_header(trainer: OnPolicy, console: Console) -> None:
    config, length, lanes = trainer.config, trainer.train.unroll_length, trainer.lanes.num_lanes
    _say(
        console,
        f"{config.env.env}, core {config.core.core}: {_count(trainer.agent):,} parameters "
        f"({_count(trainer.agent.core):,} in the core), {lanes} lanes x {length} steps, "
        f"{_device_name(trainer.lanes.device)}, {torch.get_num_threads()} threads, torch {torch.__version__}",
    )


def _print_report(report: dict[str, Any], console: Console) -> None:
    """The report for a person: a table, and what follows from it."""
    whole, parts = report["parts"]["training"]["ms"], report["parts"]
    table = Table(f"median of {report['rounds']}", box=box.SIMPLE_HEAD)
    for column in ("rate", "ms", "±", "of training"):
        table.add_column(column, justify="right")
    rows = [(name, part, f"{_number(part['frames_per_second'], ',.0f')} frames/s") for name, part in parts.items()]
    arithmetic = {_scan(name): scan for name, scan in report["scan"].items()}
    arithmetic |= {"products": report["products"], "products by torch.mm": report["torch.mm"]}
    rows += [(name, part, f"{_number(part['gflop_per_second'], ',.1f')} GFLOP/s") for name, part in arithmetic.items()]
    for name, part, rate in rows:
        table.add_row(name, rate, f"{part['ms']:,.2f}", _number(part["spread"], ".0%"), f"{part['ms'] / whole:.0%}")
    console.print(table)
    for name, scan in report["scan"].items():
        if scan["of_products"] is not None:
            _say(
                console,
                f"scan, {name}: {scan['of_products']:.0%} of the rate of its products alone, "
                f"{scan['of_torch_mm']:.0%} of that of torch.mm",
            )
    _say(console, f"operations of the scan's products: {report['scan_gflop']:,.3f} GFLOP")
    _say(console, f"outside the scan: {report['outside_scan']:.0%} of training's time")
    _say(console, f"peak memory: {report['peak_memory_mib']:,.0f} MiB")


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True, markup=False)
