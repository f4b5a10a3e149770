"""Diagnostics: gates and attention are those that the core uses, measures have known values, and the run is
unchanged."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium.spaces import Box, MultiBinary, MultiDiscrete, Tuple
from torch import Tensor
from torch.nn import functional

from helpers.agents import make_agent, random_steps
from helpers.runs import assert_same, events_of, newest, resume, train
from rmc_agents.config import Config, CoreConfig
from rmc_agents.cores import GRU, LSTM, RMC, MinGRU, make_core
from rmc_agents.cores.inspection import Inspection, inspect
from rmc_agents.distributions import Categorical
from rmc_agents.spaces import SpaceSpec
from rmc_agents.train.on_policy import OnPolicy
from rmc_agents.train.reporting.diagnostics import (
    MAX_SAMPLES,
    Diagnostics,
    centred,
    contributions,
    draw_attention,
    draw_gates,
    effective_rank,
    inspection_scalars,
    memory_effects,
    parameter_scalars,
    singular_values,
    slot_difference,
)
from rmc_agents.types import at, map_leaves

CPU = torch.device("cpu")
STEPS, LANES, INPUTS = 6, 3, 5


def inspected(core: torch.nn.Module) -> tuple[Inspection, Tensor, Tensor, object]:
    """The inspection of a core in double precision, with the arguments of its unroll."""
    core.double()
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(STEPS, LANES, INPUTS, generator=generator, dtype=torch.float64)
    should_reset = torch.zeros(STEPS, LANES, dtype=torch.bool)
    should_reset[0, 0] = should_reset[3, 1] = True
    initial = core.initial_state(LANES)
    state = type(initial)(*(x + torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in initial))
    return inspect(core, inputs, should_reset, state), inputs, should_reset, state


@pytest.mark.parametrize("name", ["rmc", "lstm", "gru", "mingru", "rnn", "relational-rnn", "transformer", "none"])
def test_an_inspection_takes_the_cores_steps(name: str) -> None:
    torch.manual_seed(0)
    core = make_core(CoreConfig(core=name, hidden_size=8, num_heads=2, head_size=4), INPUTS)
    inspection, *arguments = inspected(core)
    torch.testing.assert_close(inspection.outputs, core.unroll(*arguments)[0])
    gates = {"lstm": {"input", "forget", "output"}, "gru": {"reset", "update"}, "rmc": {"input", "forget"}}
    gates["mingru"] = {"input", "output"}
    assert inspection.gates.keys() == gates.get(name, set())
    assert (inspection.attention is not None) == (name in ("rmc", "transformer"))


def states_before(states: list[Tensor], first: Tensor, initial: Tensor, should_reset: Tensor) -> list[Tensor]:
    """The state before each step, from the states after each step."""
    flags = should_reset.reshape(*should_reset.shape, *[1] * (first.dim() - 1))
    return [torch.where(flag, initial, x) for flag, x in zip(flags, [first, *states[:-1]], strict=True)]


@torch.no_grad()
def test_the_gates_of_lstm_make_its_output() -> None:
    torch.manual_seed(0)
    core = LSTM(INPUTS, hidden_size=8)
    inspection, inputs, should_reset, state = inspected(core)
    zeros, cell = torch.zeros(1, 8, dtype=torch.float64), state.cell
    hidden = states_before(list(inspection.outputs), state.hidden, zeros, should_reset)
    for t in range(STEPS):
        gates = {name: gate[t] for name, gate in inspection.gates.items()}
        rows = slice(16, 24)  # i, f, g, o
        new = inputs[t] @ core.weight_ih[rows].T + hidden[t] @ core.weight_hh[rows].T + core.bias[rows]
        cell = torch.where(should_reset[t, :, None], zeros, cell)
        cell = gates["forget"] * cell + gates["input"] * new.tanh()
        torch.testing.assert_close(gates["output"] * cell.tanh(), inspection.outputs[t])


@torch.no_grad()
def test_the_gates_of_mingru_make_its_output() -> None:
    """Of two layers; the second takes the first one's outputs."""
    torch.manual_seed(0)
    core = MinGRU(INPUTS, hidden_size=8)
    inspection, inputs, should_reset, state = inspected(core)
    hidden = state.hidden
    for t, inputs_t in enumerate(inputs):
        x, hidden, after = inputs_t, torch.where(should_reset[t, :, None], 0.0, hidden), []
        for layer, units in zip(core.weights(), (slice(8), slice(8, 16)), strict=True):
            gates = {name: gate[t, :, units] for name, gate in inspection.gates.items()}
            new = x @ layer.maps.weight[8:16].T + layer.maps.bias[8:16]
            skipped = x if layer.skip is None else x @ layer.skip.weight.T + layer.skip.bias
            after.append((1 - gates["input"]) * hidden[:, units] + gates["input"] * new)
            x = gates["output"] * after[-1] + (1 - gates["output"]) * skipped
        hidden = torch.cat(after, 1)
        torch.testing.assert_close(x, inspection.outputs[t])


@torch.no_grad()
def test_the_gates_of_gru_make_its_output() -> None:
    torch.manual_seed(0)
    core = GRU(INPUTS, hidden_size=8)
    inspection, inputs, should_reset, state = inspected(core)
    zeros, rows = torch.zeros(1, 8, dtype=torch.float64), slice(16, 24)  # r, z, n
    for t, hidden in enumerate(states_before(list(inspection.outputs), state.hidden, zeros, should_reset)):
        reset, update = inspection.gates["reset"][t], inspection.gates["update"][t]
        from_hidden = hidden @ core.weight_hh[rows].T + core.bias_hh[rows]
        new = (inputs[t] @ core.weight_ih[rows].T + core.bias_ih[rows] + reset * from_hidden).tanh()
        torch.testing.assert_close((1 - update) * new + update * hidden, inspection.outputs[t])


@pytest.mark.parametrize("slot_embedding", [False, True])
@pytest.mark.parametrize("gate_style", ["unit", "coupled", "memory", "none"])
@torch.no_grad()
def test_gates_and_attention_of_rmc_make_its_output(gate_style: str, slot_embedding: bool) -> None:
    torch.manual_seed(0)
    options = {"mem_slots": 3, "head_size": 4, "num_heads": 2, "gate_style": gate_style, "input_bias": 0.3}
    core = RMC(INPUTS, **options, slot_embedding=slot_embedding)
    inspection, inputs, should_reset, state = inspected(core)
    slots, heads, width = 3, 2, 8
    block, after = core.blocks[0], inspection.outputs.unflatten(-1, (slots, width))
    assert inspection.attention.shape == (STEPS, LANES, 1, heads, slots, slots + 1)
    assert bool(inspection.gates) == (gate_style != "none")
    for t, memory in enumerate(states_before(list(after), state.memory, core.initial_memory, should_reset)):
        slots_seen = memory if core.slot_embedding is None else memory + core.slot_embedding
        rows = torch.cat([slots_seen, core.input(inputs[t])[:, None]], dim=1)  # [B, N+1, D]
        values = block.qkv_norm(block.qkv(rows))[..., -width:].unflatten(-1, (heads, -1)).transpose(1, 2)
        attended = (inspection.attention[t, :, 0] @ values).transpose(1, 2).flatten(2)  # [B, N, D]
        found = block.attention_norm(slots_seen + attended)
        found = block.mlp_norm(found + core.mlp[1](functional.relu(core.mlp[0](found))))
        if inspection.gates:
            found = inspection.gates["forget"][t] * memory + inspection.gates["input"][t] * found.tanh()
        torch.testing.assert_close(found, after[t])


def test_effective_rank_known_values() -> None:
    assert effective_rank(singular_values(torch.eye(6)[:, None])) == pytest.approx(6)
    one = torch.outer(torch.arange(1.0, 9.0), torch.tensor([1.0, 2.0, 3.0]))[:, None]
    assert effective_rank(singular_values(one)) == pytest.approx(1, abs=1e-4)
    shares = torch.tensor([0.5, 0.25, 0.25])
    assert effective_rank(singular_values(torch.diag(8 * shares)[:, None])) == pytest.approx(2**1.5)
    many = torch.randn(2, 2 * MAX_SAMPLES, 4, generator=torch.Generator().manual_seed(0))
    assert 3.9 < effective_rank(singular_values(many)) <= 4 + 1e-9
    assert effective_rank(singular_values(torch.zeros(3, 1, 4))) == 1
    assert math.isnan(effective_rank(singular_values(torch.full((3, 1, 4), math.inf))))


def test_inspection_scalars_known_values() -> None:
    gates = {"forget": torch.tensor([[0.0, 0.5], [0.96, 0.9]]), "input": torch.full((2, 2), 0.5)}
    equal, one = torch.full((2, 2, 1, 2, 3, 4), 0.25), functional.one_hot(torch.zeros(2, 2, 1, 2, 3).long(), 4).float()
    for attention, expected in ((equal, 1.0), (one, 0.0), (torch.cat([equal, one]), 0.5)):
        scalars = inspection_scalars(Inspection(torch.zeros(2, 2, 12), gates, attention))
        assert scalars["attention_entropy"] == pytest.approx(expected)
    attention = torch.zeros(2, 2, 1, 2, 3, 4)
    attention[:, :, :, 1, 0, -1] = 0.6
    scalars = inspection_scalars(Inspection(torch.zeros(2, 2, 12), gates, attention))
    assert (scalars["attention_to_input/head1"], scalars["attention_to_input/head2"]) == (0.0, pytest.approx(0.2))
    assert scalars["gate_mean/forget"] == pytest.approx(0.59)
    assert (scalars["gate_saturated/forget"], scalars["gate_saturated/input"]) == (0.5, 0.0)


def test_slot_difference_known_values() -> None:
    same = torch.randn(2, 3, 1, 8).expand(2, 3, 4, 8)
    assert slot_difference(same.flatten(2), slots=4) == pytest.approx(0, abs=1e-6)
    assert slot_difference(torch.eye(4, 8).expand(2, 3, 4, 8).flatten(2), slots=4) == pytest.approx(0.75**0.5)


def test_norms_and_update_ratio() -> None:
    agent = make_agent("lstm")
    before = {name: p.detach().clone() for name, p in agent.named_parameters()}
    with torch.no_grad():
        for parameter in agent.parameters():
            parameter.fill_(2.0)
            parameter.grad = torch.full_like(parameter, 0.5)
    agent.core.weight_ih.grad = None
    before["core.weight_hh"] = agent.core.weight_hh.detach() - 0.1
    scalars = parameter_scalars(agent, before)
    assert {name.split("/")[1] for name in scalars} == {
        *("encoder", "core", "policy", "value", "core.weight_ih", "core.weight_hh")
    }
    count = agent.core.weight_hh.numel()
    assert scalars["update_ratio/core.weight_hh"] == pytest.approx(0.05)
    assert scalars["gradient_norm/core.weight_hh"] == pytest.approx(0.5 * math.sqrt(count))
    assert scalars["gradient_norm/core.weight_ih"] == 0
    assert scalars["gradient_norm/core"] == pytest.approx(0.5 * math.sqrt(count + agent.core.bias.numel()))
    assert scalars["weight_norm/value"] == pytest.approx(2 * math.sqrt(agent.value.in_features + 1))


def test_only_the_logits_of_choices_are_centred() -> None:
    actions = Tuple((MultiDiscrete([2, 3]), Box(-1, 1, (1,)), MultiBinary(2)))
    spec = SpaceSpec.from_spaces(Box(-1, 1, (1,)), actions)
    logits = torch.tensor([1.0, 3.0, 4.0, 5.0, 9.0, 7.0, 8.0, 6.0])
    assert centred(spec, logits).tolist() == [-1.0, 1.0, -2.0, -1.0, 3.0, 7.0, 8.0, 6.0]


@torch.no_grad()
def test_contributions_are_the_parts_of_the_heads_sum() -> None:
    agent = make_agent("rmc")
    steps = random_steps(4, 2)
    encoded = agent.encode(steps)
    outputs, _ = agent.core.unroll(encoded, steps.is_first, agent.initial_state(2))
    size = agent.core.output_size
    expected = agent.core_gain * outputs @ agent.policy.weight[:, :size].T
    expected = (expected - expected.mean(-1, keepdim=True)).square().mean().sqrt().item()
    assert contributions(agent, outputs, encoded)["policy/core"] == pytest.approx(expected)
    assert contributions(agent, outputs.bfloat16(), encoded)["policy/core"] == pytest.approx(expected, rel=0.02)
    agent.value.weight[:, :size] = 0.0
    agent.value.bias.zero_()
    scalars = contributions(agent, outputs, encoded)
    value = agent.unroll(steps, agent.initial_state(2))[0].value
    assert scalars["value/core"] == 0
    assert scalars["value/encoder"] == pytest.approx(value.square().mean().sqrt().item())
    memoryless = make_agent("none")
    assert contributions(memoryless, encoded, encoded).keys() == {"policy/encoder", "value/encoder"}
    layered = make_agent("rmc", head_sizes=[5])
    first = layered.core_gain * outputs @ layered.head_layers[0].weight[:, :size].T
    scalars = contributions(layered, outputs, encoded)
    assert scalars.keys() == {"head_layers/core", "head_layers/encoder"}
    assert scalars["head_layers/core"] == pytest.approx(first.square().mean().sqrt().item())


@torch.no_grad()
def test_memory_effects_are_those_of_other_memories() -> None:
    agent, steps = make_agent("lstm"), random_steps(6, 3)
    agent.policy.weight.normal_()
    acts = torch.rand(6, 3) < 0.7
    steps = steps._replace(terminated=~acts)
    state = map_leaves(lambda x: x + torch.randn(x.shape), agent.initial_state(3))
    encoded = agent.encode(steps)
    inspection = inspect(agent.core, encoded, steps.is_first, state)
    divergences: dict[str, list[Tensor]] = {"memory_effect/reset": [], "memory_effect/other_lane": []}
    for t in range(6):
        now, before = at(steps, t), state
        output, state = agent.step(now, before)
        others = agent.initial_state(3), at(before, torch.tensor([1, 2, 0]))
        for each, other in zip(divergences.values(), others, strict=True):
            logits = agent.step(now, other)[0].policy_logits
            each.append(Categorical(output.policy_logits).kl(Categorical(logits)))
    expected = {name: torch.stack(values) for name, values in divergences.items()}  # [T, B]
    assert memory_effects(agent, steps, encoded, inspection) == pytest.approx(
        {name: values[acts].mean().item() for name, values in expected.items()}, rel=1e-4
    )
    targets = torch.full((6, 3), -1)
    assert memory_effects(agent, steps, encoded, inspection, targets) == {}
    targets[4, 1] = 0
    assert memory_effects(agent, steps, encoded, inspection, targets) == pytest.approx(
        {name: values[4, 1].item() for name, values in expected.items()}, rel=1e-4
    )


def test_pictures_show_what_they_are_given() -> None:
    attention = torch.rand(2, 3, 4, 5).softmax(-1)
    figure = draw_attention(attention)
    images = [axes.images[0] for axes in figure.axes if axes.images and len(axes.get_title())]
    assert len(images) == 6
    torch.testing.assert_close(torch.as_tensor(images[4].get_array().data), attention[1, 1])
    axes = draw_gates({"forget": torch.full((7, 2), 0.97, dtype=torch.bfloat16)}).axes[0]
    heights = [bar.get_height() for bar in axes.patches]
    assert heights[-1] == pytest.approx(1.0)
    assert sum(heights) == pytest.approx(1.0)


class Recorder:
    """A writer that keeps the last scalars."""

    def __init__(self) -> None:
        self.scalars: dict[str, float] = {}
        self.figures: list[str] = []

    def add_scalar(self, name: str, value: float, frames: int) -> None:
        self.scalars[name] = value

    def add_figure(self, name: str, figure: object, frames: int, close: bool) -> None:
        self.figures.append(name)


def test_a_point_describes_the_last_update() -> None:
    settings = {"core": "lstm", "hidden_size": 16, "num_envs": 4, "unroll_length": 5, "algo": "a2c"}
    trainer, writer = OnPolicy(Config().updated(settings, "test"), CPU), Recorder()
    diagnostics = Diagnostics(trainer.agent, trainer.collector, writer)
    for _ in range(3):
        before = torch.cat([p.detach().flatten().clone() for p in trainer.agent.value.parameters()])
        metrics = trainer.update()
        diagnostics.write(trainer.frames)
        diagnostics.remember_parameters()
        after = torch.cat([p.detach().flatten() for p in trainer.agent.value.parameters()])
        expected = (after - before).norm() / after.norm()
        assert writer.scalars["diagnostics/update_ratio/value"] == pytest.approx(expected.item(), rel=1e-4)
        parts = [writer.scalars[f"diagnostics/gradient_norm/{m}"] for m in ("encoder", "core", "policy", "value")]
        expected = min(metrics["losses/grad_norm"].item(), trainer.train.max_grad_norm)
        assert math.hypot(*parts) == pytest.approx(expected, rel=1e-4)
    assert len(writer.figures) == 2, "only some points have pictures: spectra and gates"


def dropping(core: LSTM, step: Any, x: Tensor, should_reset: Tensor, state: Any) -> Any:
    """A step with dropout of the inputs."""
    return step(functional.dropout(x, training=core.training), should_reset, state)


def test_points_leave_dropout_as_it_was() -> None:
    settings = {"core": "lstm", "hidden_size": 16, "num_envs": 4, "unroll_length": 5, "algo": "a2c"}
    measured, plain = (OnPolicy(Config().updated(settings, "test"), CPU) for _ in range(2))
    states = []
    for trainer in (measured, plain):
        torch.manual_seed(0)
        trainer.agent.encoder.register_forward_hook(
            lambda encoder, _, x: functional.dropout(x, training=encoder.training)
        )
        core, step = trainer.agent.core, trainer.agent.core.step
        core.step = partial(dropping, core, step)
        diagnostics = Diagnostics(trainer.agent, trainer.collector, Recorder())
        for _ in range(3):
            trainer.update()
            if trainer is measured:
                diagnostics.write(trainer.frames)
        states.append(dict(trainer.agent.state_dict()))
    assert_same(*states)
    assert measured.agent.training


@pytest.mark.slow
@pytest.mark.parametrize("core", ["rmc", "gru", "none"])
def test_diagnostics_do_not_disturb_the_run(core: str, tmp_path: Path) -> None:
    flags = ["--core", core, "--log-every", "1e-9", "--total-frames", "160"]
    assert train(*flags, "--run-dir", str(tmp_path / "without")) == 0
    assert train(*flags, "--run-dir", str(tmp_path / "with"), "--diagnostics") == 0
    assert_same(newest(tmp_path / "without"), newest(tmp_path / "with"))
    events = events_of(tmp_path / "with")
    tags = events.Tags()
    expected = {f"diagnostics/{n}/encoder" for n in ("gradient_norm", "update_ratio", "effective_rank", "policy")}
    if core in ("rmc", "lstm", "gru"):
        expected |= {
            "diagnostics/effective_rank/core",
            "diagnostics/value/core",
            "diagnostics/memory_effect/other_lane",
        }
        assert "diagnostics/gates" in tags["images"]
    if core == "rmc":
        expected |= {
            "diagnostics/attention_entropy",
            "diagnostics/attention_to_input/head1",
            "diagnostics/slot_difference",
            "diagnostics/gate_saturated/forget",
        }
        assert "diagnostics/attention" in tags["images"]
    assert expected <= set(tags["scalars"])
    for tag in tags["scalars"]:
        assert all(math.isfinite(point.value) for point in events.Scalars(tag)), tag
    assert [point.step for point in events.Scalars("diagnostics/update_ratio/encoder")] == list(range(40, 161, 40))
    without = events_of(tmp_path / "without").Tags()
    assert not [tag for tag in without["scalars"] + without["images"] if tag.startswith("diagnostics")]


@pytest.mark.slow
def test_diagnostics_may_begin_with_a_resume(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    flags = ["--core", "lstm", "--learning-rate-schedule", "constant", "--log-every", "1e-9"]
    assert train("--run-dir", str(parts), "--total-frames", "120", *flags) == 0
    assert resume(parts, "--diagnostics", "--total-frames", "240") == 0
    assert train("--run-dir", str(whole), "--total-frames", "240", "--diagnostics", *flags) == 0
    ratios = {}
    for run_dir in (whole, parts):
        events = events_of(run_dir)
        ratios[run_dir] = [(p.step, p.value) for p in events.Scalars("diagnostics/update_ratio/core")]
    assert [step for step, _ in ratios[parts]] == [160, 200, 240]
    assert ratios[parts] == ratios[whole][3:]


def test_divergence_is_still_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--learning-rate", "1e15", "--total-frames", "400", "--diagnostics", "--log-every", "1e-9"]
    assert train("--run-dir", str(tmp_path), *flags) == 2
    error = capsys.readouterr().err
    assert "diverged" in error
    assert error.count("\n") == 1
