"""rmc-bench: correct operation counts, plausible figures in table and file, one-line errors; no speed is checked."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from helpers import zoo  # noqa: F401  # registers environments with other actions
from helpers.runs import refused
from rmc_agents.config import Config, CoreConfig
from rmc_agents.cores import Core, make_core
from rmc_agents.kernels.operations import Product
from rmc_agents.train.bench import cli as bench
from rmc_agents.train.bench import timing
from rmc_agents.train.bench.measurement import unroll, using
from rmc_agents.train.bench.operations import plain_products
from rmc_agents.types import State

CPU = torch.device("cpu")
STEPS, LANES, INPUTS, HIDDEN = 4, 3, 11, 10
SIZES: dict[str, Any] = {"mem_slots": 3, "num_heads": 2, "head_size": 4, "hidden_size": HIDDEN}
VARIANTS: dict[str, dict[str, Any]] = {
    "rmc": {},
    "rmc, narrow keys": {"key_size": 3},
    "rmc, two blocks": {"num_blocks": 2},
    "rmc, three blocks, one layer": {"num_blocks": 3, "attention_mlp_layers": 1},
    "rmc, a gate per slot": {"gate_style": "memory", "attention_mlp_layers": 3},
    "rmc, coupled gates": {"gate_style": "coupled"},
    "rmc, no gates": {"gate_style": "none"},
    "lstm": {},
    "gru": {},
    "mingru": {},
    "mingru, as wide as its inputs": {"hidden_size": INPUTS, "num_layers": 3},
    "rnn": {},
    "relational-rnn": {},
    "transformer": {"memory_length": 5},
    "none": {},
}
SMALL = "--num-envs 4 --unroll-length 3 --num-heads 2 --head-size 4 --mem-slots 3 --hidden-size 16 --encoder-sizes 8"
FLAGS = [*SMALL.split(), "--device", "cpu", "--repeats", "3"]


def core_of(variant: str) -> Core:
    name = variant.partition(",")[0]
    core = make_core(CoreConfig(core=name, **(SIZES | VARIANTS[variant])), INPUTS)
    core.backend = "reference"
    return core


def products_of(core: Core) -> list[Product]:
    products = core.matrix_products(STEPS, LANES)
    assert products is not None
    return products


def operations(products: list[Product]) -> int:
    return sum(product.operations for product in products)


def counted(counter: FlopCounterMode) -> int:
    """Operations of what torch did, except for attention's batched products."""
    return sum(count for op, count in counter.get_flop_counts().get("Global", {}).items() if "bmm" not in str(op))


@pytest.mark.parametrize("variant", VARIANTS)
def test_operations_are_those_that_torch_counts_in_the_reference(variant: str) -> None:
    core = core_of(variant)
    inputs = torch.randn(STEPS, LANES, INPUTS, requires_grad=True)
    should_reset = torch.zeros(STEPS, LANES, dtype=torch.bool)
    state = core.initial_state(LANES)
    for leaf in state:
        leaf.requires_grad_()
    expected = operations(products_of(core))
    with FlopCounterMode(display=False) as counter:
        outputs, state = core.unroll(inputs, should_reset, state)
    assert counted(counter) * 3 == expected
    with FlopCounterMode(display=False) as counter:
        sum(tensor.sum() for tensor in (outputs, *state)).backward()
    assert counted(counter) * 3 == expected * 2


def test_recurrent_products_go_step_by_step_and_all_others_at_once() -> None:
    gates = 4 * HIDDEN
    assert products_of(core_of("lstm")) == [
        Product(STEPS * LANES, INPUTS, gates, 1),
        Product(STEPS * LANES, gates, INPUTS, 1),
        Product(gates, STEPS * LANES, INPUTS, 1, transposed=True),
        Product(LANES, HIDDEN, gates, STEPS),
        Product(LANES, gates, HIDDEN, STEPS),
        Product(gates, STEPS * LANES, HIDDEN, 1, transposed=True),
    ]


@pytest.mark.parametrize("core", ["rmc", "none"])
def test_plain_products_do_what_was_counted(core: str) -> None:
    products = products_of(core_of(core))
    with FlopCounterMode(display=False) as counter:
        plain_products(products, CPU, fastest=False)()
    assert counter.get_total_flops() == operations(products)


def test_figures() -> None:
    figure = timing.Timing.of([1.0, 2.0, 3.0, 4.0, 10.0])
    assert figure == (3.0, pytest.approx(2 / 3))
    assert figure.rate(6.0) == 2.0
    assert timing.Timing.of([2.0]) == (2.0, None)
    assert timing.Timing.of([-1.0, -2.0]).rate(1.0) is None


@pytest.mark.parametrize(("limit", "done", "kept"), [(None, timing.WARM_UP + 3, 3), (0.0, 2, 1)])
def test_rounds_take_turns(limit: float | None, done: int, kept: int) -> None:
    calls: list[str] = []
    work = {name: lambda name=name: calls.append(name) for name in "ab"}
    seconds = timing.rounds(work, 3, limit, CPU)
    assert "".join(calls) == "ab" * done
    assert {name: len(times) for name, times in seconds.items()} == {"a": kept, "b": kept}


def numbers(tree: Any) -> Iterator[float]:
    """All numbers in a tree but the settings'."""
    if isinstance(tree, dict):
        for name, branch in tree.items():
            if name != "settings":
                yield from numbers(branch)
    elif isinstance(tree, list):
        for branch in tree:
            yield from numbers(branch)
    elif isinstance(tree, int | float):
        yield tree


@pytest.mark.slow
@pytest.mark.parametrize("core", ["rmc", "relational-rnn"])
def test_the_command_prints_and_writes_sound_figures(
    core: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "bench.json"
    assert bench.main([*FLAGS, "--core", core, "--backends", "reference", "--json", str(target)]) == 0
    output = capsys.readouterr().out
    for row in (
        "environment",
        "acting",
        "forward",
        "backward",
        "optimizer",
        "training",
        "scan, reference",
        "products",
        "outside",
        "peak memory",
    ):
        assert row in output
    report = json.loads(target.read_text())
    settings = report["settings"]
    assert (settings["core"], settings["num_envs"], report["frames_per_update"]) == (core, 4, 12)
    assert report["versions"]["torch"] == torch.__version__
    assert "reference" in report["scan"]
    assert report["rounds"] == 3
    assert report["peak_memory_mib"] > 10
    assert report["scan_gflop"] > 0
    assert all(math.isfinite(number) for number in numbers(report))
    differences = {"acting", "update", "backward", "optimizer"}
    assert set(report["parts"]) == differences | {"training", "environment", "forward", "core steps"}
    for name in differences:  # at these sizes noise may make them anything
        report["parts"].pop(name)
    measured = [*report["parts"].values(), *report["scan"].values(), report["products"]]
    for part in measured:
        assert part.pop("spread") >= 0
        assert min(part.values()) > 0


def test_a_core_without_products_and_a_single_round(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "bench.json"
    assert bench.main([*FLAGS, "--core", "none", "--seconds", "0", "--json", str(target)]) == 0
    report = json.loads(target.read_text())
    assert (report["scan_gflop"], report["rounds"]) == (0, 1)
    assert [scan["of_products"] for scan in report["scan"].values()] == [None]
    assert all(math.isfinite(number) for number in numbers(report))
    assert "nan" not in capsys.readouterr().out


@pytest.mark.parametrize("env", ["Zoo-Box-v0", "Zoo-MaskMany-v0"])
def test_actions_of_any_kind(env: str) -> None:
    assert bench.main([*FLAGS, "--core", "none", "--env", env, "--seconds", "0"]) == 0


def test_settings_come_from_presets_and_flags_win(tmp_path: Path) -> None:
    target = tmp_path / "bench.json"
    argv = ["--config", "nth-farthest-lstm", *FLAGS, "--repeats", "1", "--json", str(target)]
    assert bench.main(argv) == 0
    settings = json.loads(target.read_text())["settings"]
    assert (settings["algo"], settings["core"], settings["hidden_size"]) == ("supervised", "lstm", 16)
    assert settings.keys() == Config().to_mapping().keys()


def test_another_backend_is_for_a_while() -> None:
    core = core_of("rmc")
    with using(core, "auto"):
        assert core.backend == "auto"
    assert core.backend == "reference"
    with pytest.raises(ValueError, match="halfway"), using(core, "auto"):
        raise ValueError("halfway")
    assert core.backend == "reference"


BAD = {
    "repeats": (["--repeats", "0"], "--repeats: expected at least 1, got 0"),
    "seconds": (["--seconds", "-1"], "--seconds: expected at least 0, got -1.0"),
    "not a number of seconds": (["--seconds", "nan"], "--seconds: expected at least 0, got nan"),
    "a folder for a file": (["--json", "."], "is a folder"),
    "no folder for the file": (["--json", "nowhere/bench.json"], "there is no folder nowhere"),
    "unknown core": (["--core", "lstmm"], "did you mean 'lstm'?"),
    "unknown environment": (["--env", "minipackman"], "did you mean 'minipacman'?"),
    "missing config": (["--config", "nowhere.yaml"], "cannot read the config nowhere.yaml"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_exit_status_2(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags, expected = BAD[case]
    line = refused(capsys, bench, *FLAGS, *flags)
    assert expected in line
    assert line.startswith("rmc-bench: ")


def test_a_files_cluster_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.yaml").write_text("{algo: impala, actor_engine: ray, ray_address: 'a:1'}")
    assert bench.main(["--config", str(tmp_path / "a.yaml")]) == 2
    assert "a.yaml names the Ray cluster a:1, which can run code here" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--repeat", "1"], ["--backends", "fast"], ["--run-dir", "a"], ["--num-envs", "0"]])
def test_bad_flags_exit_with_2(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert flags[0].strip("-") in refused(capsys, bench, *flags).replace("_", "-")


def test_cores_that_learn_their_start_or_have_frozen_weights_are_timed() -> None:
    class Frozen(Core):
        def __init__(self) -> None:
            super().__init__(INPUTS)
            self.rate = torch.nn.Parameter(torch.zeros(1), requires_grad=False)
            self.start = torch.nn.Parameter(torch.zeros(INPUTS))

        def initial_leaves(self) -> State:
            return (self.start.tanh().unsqueeze(0),)

        def cell(self, x: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
            memory = x + state[0] * self.rate
            return memory, (memory,)

    work = unroll(Frozen(), torch.zeros(STEPS, LANES, INPUTS), torch.zeros(STEPS, LANES, dtype=torch.bool), "reference")
    for _ in range(2):
        work()
