"""The measurements of rmc-bench, and its report."""

import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from rmc_agents import command_line
from rmc_agents.config import Config
from rmc_agents.cores import Core
from rmc_agents.cores.inspection import products_of
from rmc_agents.distributions import forbid
from rmc_agents.formatting import counted
from rmc_agents.kernels.operations import Product
from rmc_agents.runs.saved import count_parameters
from rmc_agents.train.algorithms import ON_POLICY, new_trainer
from rmc_agents.train.on_policy import OnPolicy
from rmc_agents.types import Rollout, map_leaves

from .operations import plain_products
from .timing import Timing, peak_memory, rounds

UPDATES_BEFORE = 2  # the second runs with the optimizer's state and cached memory of the first
RESETS = 0.02  # fraction of the scan's steps at which episodes begin


def run(config: Config, backends: Sequence[str], repeats: int, limit: float | None) -> dict[str, Any]:
    """Run `measure` for settings, and print the report.

    Raises:
      ValueError: for settings that do not fit together, or an algorithm other than a2c, ppo and supervised.
    """
    if config.train.algo not in (*ON_POLICY, "supervised"):
        raise ValueError(
            f"--algo: expected a2c, ppo or supervised, which rmc-bench can measure, got {config.train.algo}"
        )
    if config.run.learners not in (1, "auto"):
        raise ValueError(f"--learners: expected 1, rmc-bench measures one process, got {config.run.learners}")
    console = command_line.console()
    with closing(new_trainer(config.updated({"learners": 1}, "rmc-bench"))) as trainer:
        assert isinstance(trainer, OnPolicy)
        _print_header(trainer, console)
        report = measure(trainer, backends, repeats, limit)
    _print_report(report, console)
    return report


def measure(trainer: OnPolicy, backends: Sequence[str], repeats: int, limit: float | None) -> dict[str, Any]:
    """The command's report, as written to JSON.

    Args:
      trainer: a new one; it is trained during the measurement.
      backends: further backends to measure the scan with.
      repeats: measured rounds.
      limit: seconds after which no further round starts; None: no limit.
    """
    device, core = trainer.lanes.device, trainer.agent.core
    for _ in range(UPDATES_BEFORE):
        trainer.update()
    memory = peak_memory(device)
    own = trainer.backend
    scans = list(dict.fromkeys((own, *backends)))
    length, lanes = trainer.train.unroll_length, trainer.lanes.num_lanes
    frames, reported = length * lanes, products_of(core, length, lanes)
    products = reported or []
    seconds = rounds(_work(trainer, scans, products), repeats, limit, device)

    operations = sum(product.operations for product in products)
    plain, by_mm = Timing.of(seconds["products"]), Timing.of(seconds["torch.mm"])
    scan, parts = {name: Timing.of(seconds[_scan(name)]) for name in scans}, _parts(seconds)
    return {
        "settings": trainer.config.to_mapping(),
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "device": _device_name(device),
        "parameters": {
            "agent": count_parameters(trainer.agent.parameters()),
            "core": count_parameters(core.parameters()),
        },
        "frames_per_update": frames,
        "rounds": len(seconds["collect"]),
        "parts": {name: part.as_json() | {"frames_per_second": part.rate(frames)} for name, part in parts.items()},
        "scan_gflop": None if reported is None else operations / 1e9,  # null: the core does not report its products
        "scan": {
            name: _arithmetic(figure, operations)
            | {"of_products": figure.rate(plain.seconds) if products else None}
            | {"of_torch_mm": figure.rate(by_mm.seconds) if products else None}
            for name, figure in scan.items()
        },
        "products": _arithmetic(plain, operations),
        "torch.mm": _arithmetic(by_mm, operations),
        "outside_scan": 1 - scan[own].seconds / parts["training"].seconds,
        "peak_memory_mib": memory / 2**20,
        "seconds": seconds,
    }


def _parts(seconds: dict[str, list[float]]) -> dict[str, Timing]:
    """Training and its parts; some are differences, computed per round."""
    took = {name: np.array(times) for name, times in seconds.items()}
    parts = {
        "training": took["collect"] + took["learn"],
        "environment": took["environment"],
        "acting": took["collect"] - took["environment"],
        "update": took["learn"],
        "forward": took["forward"],
        "backward": took["gradients"] - took["forward"],
        "optimizer": took["learn"] - took["gradients"],
        "core steps": took["core steps"],
    }
    return {name: Timing.of(times) for name, times in parts.items()}


def _arithmetic(timing: Timing, operations: int) -> dict[str, float | None]:
    return timing.as_json() | {"gflop_per_second": timing.rate(operations / 1e9) if operations else None}


def _work(trainer: OnPolicy, backends: Sequence[str], products: Sequence[Product]) -> dict[str, Callable[[], object]]:
    """The work of a round, by name."""
    core, lanes, length = trainer.agent.core, trainer.lanes, trainer.train.unroll_length
    none, logits = lanes.spec.no_action(lanes.num_lanes), torch.zeros(lanes.num_lanes, lanes.spec.num_outputs)
    inputs = torch.randn(length, lanes.num_lanes, core.input_size, device=lanes.device)
    should_reset = torch.rand(length, lanes.num_lanes, device=lanes.device) < RESETS

    def step_lanes() -> None:
        for _ in range(length):
            mask = lanes.steps.action_mask  # only for actions without standard deviations
            lanes.step(none if mask is None else lanes.spec.distribution(forbid(logits, mask.cpu())).mode())

    rollout: list[Rollout] = []

    def collect() -> None:
        rollout[:] = [trainer.collector.collect()]

    @torch.no_grad()
    def forward() -> None:
        for _ in trainer.minibatch_losses(rollout[0]):
            pass

    def gradients() -> None:
        for loss, _, _ in trainer.minibatch_losses(rollout[0]):
            trainer.optimizer.zero_grad()
            loss.backward()

    return {
        "collect": collect,
        "learn": lambda: trainer.learn(rollout[0]),
        "forward": forward,
        "gradients": gradients,
        "environment": step_lanes,
        "core steps": _core_steps(core, inputs, should_reset),
        **{_scan(name): unroll(core, inputs, should_reset, name) for name in backends},
        "products": plain_products(products, lanes.device, fastest=True),
        "torch.mm": plain_products(products, lanes.device, fastest=False),
    }


def _core_steps(core: Core, inputs: Tensor, should_reset: Tensor) -> Callable[[], None]:
    @torch.no_grad()
    def run() -> None:
        state = core.initial_state(inputs.shape[1])
        with core.stepping(state) as step:
            for inputs_t, should_reset_t in zip(inputs, should_reset, strict=True):
                _, state = step(inputs_t, should_reset_t, state)

    return run


def unroll(core: Core, inputs: Tensor, should_reset: Tensor, backend: str) -> Callable[[], None]:
    """The scan and its backward pass to the inputs and all weights, as in training."""
    gradient = torch.randn(*inputs.shape[:2], core.output_size, device=inputs.device)
    wanted = [inputs.clone().requires_grad_(), *(each for each in core.parameters() if each.requires_grad)]
    state = map_leaves(Tensor.detach, core.initial_state(inputs.shape[1]))

    def run() -> None:
        with using(core, backend):
            outputs, _ = core.unroll(wanted[0], should_reset, state)
            torch.autograd.grad(outputs, wanted, gradient, allow_unused=True)

    return run


@contextmanager
def using(core: Core, backend: str) -> Iterator[None]:
    """Context in which the core has another backend."""
    before = core.backend
    core.backend = backend
    try:
        yield
    finally:
        core.backend = before


def _scan(backend: str) -> str:
    return f"scan, {backend}"


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu ({platform.machine()})"


def _print_header(trainer: OnPolicy, console: Console) -> None:
    config, length, lanes = trainer.config, trainer.train.unroll_length, trainer.lanes.num_lanes
    sizes = [count_parameters(module.parameters()) for module in (trainer.agent, trainer.agent.core)]
    threads = counted(torch.get_num_threads(), "thread")
    command_line.say(
        console,
        f"{config.env.env}, core {config.core.core}: {sizes[0]:,} parameters ({sizes[1]:,} in the core), "
        f"{counted(lanes, 'lane')} x {counted(length, 'step')}, {_device_name(trainer.lanes.device)}, {threads}, torch "
        f"{torch.__version__}",
    )


def _print_report(report: dict[str, Any], console: Console) -> None:
    """Print the report: a table, and derived figures."""
    whole, parts = report["parts"]["training"]["ms"], report["parts"]
    table = Table(f"median of {report['rounds']}", box=box.SIMPLE_HEAD)
    for column in ("rate", "ms", "±", "of training"):
        table.add_column(column, justify="right")
    rows = [(name, part, f"{_number(part['frames_per_second'], ',.0f')} frames/s") for name, part in parts.items()]
    arithmetic = {_scan(name): scan for name, scan in report["scan"].items()}
    if report["scan_gflop"] is not None:
        arithmetic |= {"products": report["products"], "products by torch.mm": report["torch.mm"]}
    rows += [(name, part, f"{_number(part['gflop_per_second'], ',.1f')} GFLOP/s") for name, part in arithmetic.items()]
    for name, part, rate in rows:
        table.add_row(name, rate, f"{part['ms']:,.2f}", _number(part["spread"], ".0%"), f"{part['ms'] / whole:.0%}")
    command_line.show(console, table)
    for name, scan in report["scan"].items():
        if scan["of_products"] is not None:
            command_line.say(
                console,
                f"scan, {name}: {scan['of_products']:.0%} of the rate of its products alone, "
                f"{scan['of_torch_mm']:.0%} of that of torch.mm",
            )
    gflop = report["scan_gflop"]
    text = "the core does not report its matrix products" if gflop is None else f"{gflop:,.3f} GFLOP"
    command_line.say(console, f"operations of the scan's products: {text}")
    command_line.say(console, f"outside the scan: {report['outside_scan']:.0%} of training's time")
    command_line.say(console, f"peak memory: {report['peak_memory_mib']:,.0f} MiB")


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
