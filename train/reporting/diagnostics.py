"""Diagnostics of learning (`rmc-train --diagnostics`): scalars and images under diagnostics/ in TensorBoard.

Everything is measured on the last rollout, with the weights after its update.

docs/reference/metrics.md lists it.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional
from torch.utils.tensorboard import SummaryWriter

from rmc_agents.agent import ActorCritic
from rmc_agents.collect import Collector
from rmc_agents.cores.inspection import Inspection, attention_columns, inspect
from rmc_agents.kernels.modes import eval_mode, untouched_generators
from rmc_agents.spaces import SpaceSpec
from rmc_agents.types import Distribution, TimeStep, at, map_leaves

MAX_STEPS = 512  # of all lanes for which states, gates and attention are recomputed: a Transformer's states are large
MAX_SAMPLES = 2048  # rows of features for an effective rank
SATURATED = 0.05  # a gate this close to 0 or 1 passes almost no gradient
PICTURES_EVERY = 12  # points, the first included: once a minute at the default --log-every
MAX_LANES, MAX_HEADS = 4, 4  # drawn
TINY = 1e-12


class Diagnostics:
    """Measures an agent in training without changing the run: in evaluation mode, and with generators restored.

    Between points it costs one copy of the agent's parameters per update.

    Args:
      agent: the agent to measure.
      collector: holds the last rollout.
      writer: receives the measurements.
    """

    def __init__(self, agent: ActorCritic, collector: Collector, writer: SummaryWriter) -> None:
        self._agent, self._collector, self._writer = agent, collector, writer
        self._before = {name: p.detach().clone() for name, p in agent.named_parameters()}
        self._points = 0

    @torch.no_grad()
    def remember_parameters(self) -> None:
        """Call this after every update: the next update is measured relative to these parameters."""
        for name, parameter in self._agent.named_parameters():
            self._before[name].copy_(parameter)

    @torch.no_grad()
    def write(self, frames: int) -> None:
        """Write a point; call this after an update, before `remember_parameters`."""
        agent, rollout = self._agent, self._collector.rollout
        steps = at(rollout.steps, slice(-1))
        lanes = slice(None), slice(max(2, MAX_STEPS // len(steps.is_first)))
        few_steps, few = at(steps, *lanes), at(rollout.initial_state, lanes[1])
        targets = None if rollout.targets is None else rollout.targets[lanes]
        with eval_mode(agent), untouched_generators():
            encoded = agent.encode(steps)  # [T, B, D]
            outputs, _ = agent.core.unroll(encoded, steps.is_first, rollout.initial_state)  # [T, B, H]
            inspection = inspect(agent.core, encoded[lanes], few_steps.is_first, few)
            effects = memory_effects(agent, few_steps, encoded[lanes], inspection, targets) if few else {}

        features = {"encoder": encoded} | ({"core": outputs} if few else {})
        spectra = {name: singular_values(feature) for name, feature in features.items()}
        scalars = parameter_scalars(agent, self._before) | contributions(agent, outputs, encoded)
        scalars |= {f"output_rms/{name}": _rms(feature) for name, feature in features.items()}
        scalars |= {f"effective_rank/{name}": effective_rank(values) for name, values in spectra.items()}
        scalars |= inspection_scalars(inspection) | effects
        if inspection.attention is not None:
            slots = inspection.attention.shape[-2]
            if any(leaf.shape[1:2] == (slots,) and leaf[0].numel() == outputs.shape[-1] for leaf in few):
                scalars["slot_difference"] = slot_difference(outputs, slots)  # the output is the slots, as for an rmc
        for name, value in scalars.items():
            self._writer.add_scalar(f"diagnostics/{name}", value, frames)
        if self._points % PICTURES_EVERY == 0:
            for name, figure in _pictures(spectra, inspection):
                self._writer.add_figure(f"diagnostics/{name}", figure, frames, close=False)
        self._points += 1


def parameter_scalars(agent: ActorCritic, before: dict[str, Tensor]) -> dict[str, float]:
    """Norms of gradients, weights and the change from the weights `before`, by module.

    Args:
      agent: after an update, still with its gradients.
      before: the parameters before the update, by name.
    """
    scalars = {}
    for module, names in _modules(agent).items():
        parameters = [agent.get_parameter(name) for name in names]
        weight_norm = _norm(parameters)
        change = _norm([p - before[name] for p, name in zip(parameters, names, strict=True)])
        scalars[f"gradient_norm/{module}"] = _norm([p.grad for p in parameters if p.grad is not None])
        scalars[f"weight_norm/{module}"] = weight_norm
        scalars[f"update_ratio/{module}"] = change / max(weight_norm, TINY)
    return scalars


def _modules(agent: ActorCritic) -> dict[str, list[str]]:
    """The names of the parameters of each part of the agent, and of each matrix in its core."""
    modules: dict[str, list[str]] = {}
    for name, parameter in agent.named_parameters():
        part = name.split(".")[0]
        modules.setdefault(part, []).append(name)
        if part == "core" and parameter.dim() > 1:
            modules[name] = [name]
    return modules


def contributions(agent: ActorCritic, outputs: Tensor, encoded: Tensor) -> dict[str, float]:
    """How much the core's output `[T, B, H]` and the encoder's `[T, B, D]` contribute to logits and value, or, where
    there are layers before the heads, to the first of them.

    A core without memory returns the encoder's output, so everything counts for the encoder.
    """
    weights = agent.readout()
    outputs, encoded = outputs.to(weights.core.dtype), encoded.to(weights.core.dtype)  # own parts may return bfloat16
    remembers = len(agent.initial_state(1)) > 0
    parts = {"core" if remembers else "encoder": functional.linear(outputs, weights.core)}  # [T, B, M]
    if weights.encoder is not None:
        parts["encoder"] = functional.linear(encoded, weights.encoder)
    scalars = {}
    for name, part in parts.items():
        if agent.head_layers:
            scalars[f"head_layers/{name}"] = _rms(part)
            continue
        scalars[f"policy/{name}"] = _rms(centred(agent.spec, part[..., :-1]))
        scalars[f"value/{name}"] = _rms(part[..., -1])
    return scalars


def centred(spec: SpaceSpec, logits: Tensor) -> Tensor:
    """The policy's outputs `[..., P]`, without the mean over the values of each choice, which has no effect on it."""
    if spec.num_actions:
        return logits - logits.mean(dim=-1, keepdim=True)
    columns: list[Tensor] = []
    for part in spec.action_parts:
        own, logits = logits.tensor_split([part.num_outputs], dim=-1)
        choices = own.split(part.sizes, dim=-1) if part.kind == "discrete" else ()
        columns += [choice - choice.mean(dim=-1, keepdim=True) for choice in choices] or [own]
    return torch.cat(columns, dim=-1)


def singular_values(features: Tensor) -> Tensor:
    """Singular values of features `[T, B, H]` as a matrix `[T*B, H]`, subsampled evenly if it is long; their sum is 1.

    In descending order. NaN if a feature is not finite; 0 if all are 0.
    """
    rows = features.flatten(0, 1)
    rows = rows[:: math.ceil(len(rows) / MAX_SAMPLES)]
    if not rows.isfinite().all():
        return torch.full((min(rows.shape),), math.nan)
    values = torch.linalg.svdvals(rows.double().cpu())
    return values / values.sum().clamp_min(TINY)


def effective_rank(values: Tensor) -> float:
    """The exponential of the entropy of singular values that sum to 1 (Roy & Vetterli, 2007).

    Between 1 and their number: k directions of equal strength count as k; a single dominant one as 1.
    """
    return torch.special.entr(values).sum().exp().item()


def inspection_scalars(inspection: Inspection) -> dict[str, float]:
    """Mean and saturation of every gate, and the attention's entropy relative to the maximum."""
    scalars = {}
    for name, gate in inspection.gates.items():
        scalars[f"gate_mean/{name}"] = gate.mean().item()
        saturated = (gate < SATURATED) | (gate > 1 - SATURATED)
        scalars[f"gate_saturated/{name}"] = saturated.float().mean().item()
    if inspection.attention is not None:
        entropy = torch.special.entr(inspection.attention).sum(dim=-1)  # [T, B, blocks, heads, N]
        scalars["attention_entropy"] = entropy.mean().item() / math.log(inspection.attention.shape[-1])
        to_input = inspection.attention[..., -1].mean(dim=(0, 1, 2, 4))  # [heads]
        scalars |= {f"attention_to_input/head{i}": share for i, share in enumerate(to_input.tolist(), 1)}
    return scalars


def memory_effects(
    agent: ActorCritic, steps: TimeStep, encoded: Tensor, inspection: Inspection, targets: Tensor | None = None
) -> dict[str, float]:
    """The KL divergence, in nats, from the policy to itself with another memory at one step.

    The other memory is the initial state (reset), or that of the next lane at the same step (other_lane).

    Args:
      agent: an agent with memory.
      steps: `[T, B, ...]`.
      encoded: `[T, B, D]`, the agent's features of the steps.
      inspection: of its core for these steps.
      targets: `[T, B]`, of supervised learning; only steps with one (not -1) count. Without targets, the last
        observations of episodes do not count: their actions are ignored.
    """

    def policy(outputs: Tensor) -> Distribution:
        return agent.spec.distribution(agent.heads(outputs, encoded, steps.action_mask).policy_logits)

    counts = ~(steps.terminated | steps.truncated) if targets is None else targets >= 0
    if not counts.any():
        return {}
    shape, is_first = steps.is_first.shape, steps.is_first.flatten()
    others = {"reset": (torch.ones_like(is_first), inspection.before)}
    if shape[1] > 1:
        next_lane = map_leaves(lambda x: x.unflatten(0, shape).roll(-1, 1).flatten(0, 1), inspection.before)
        others["other_lane"] = is_first, next_lane
    own, scalars = policy(inspection.outputs), {}
    for name, (should_reset, state) in others.items():
        outputs, _ = agent.core.step(encoded.flatten(0, 1), should_reset, state)
        divergence = own.kl(policy(outputs.unflatten(0, shape)))
        scalars[f"memory_effect/{name}"] = divergence[counts].mean().item()
    return scalars


def slot_difference(outputs: Tensor, slots: int) -> float:
    """How different the slots of an RMC with outputs `[T, B, N * D]` are: 0 if all are equal.

    The mean is over the slots at each step in each lane; orthogonal slots of equal norm give √(1 - 1/N).
    """
    memory = outputs.unflatten(-1, (slots, -1))
    return _rms(memory - memory.mean(dim=-2, keepdim=True)) / max(_rms(memory), TINY)


def _rms(x: Tensor) -> float:
    return x.square().mean().sqrt().item()


def _norm(tensors: Sequence[Tensor]) -> float:
    return math.sqrt(sum(x.square().sum().item() for x in tensors))


def _pictures(spectra: dict[str, Tensor], inspection: Inspection) -> Iterator[tuple[str, Figure]]:
    yield "singular_values", draw_spectra(spectra)
    if inspection.gates:
        yield "gates", draw_gates(inspection.gates)
    if inspection.attention is not None:
        yield "attention", draw_attention(inspection.attention[-1, :MAX_LANES, -1])


def draw_spectra(spectra: dict[str, Tensor]) -> Figure:
    """Plot the singular values of each kind of feature, relative to their sum."""
    figure = Figure(figsize=(5, 3.5), layout="constrained")
    axes = figure.add_subplot(xlabel="index of the singular value", ylabel="share of the sum", yscale="log")
    axes.set_ylim(1e-6, 1)
    for name, values in spectra.items():
        label = f"{name}: effective rank {effective_rank(values):.1f} of {len(values)}"
        axes.plot(range(1, len(values) + 1), values.numpy(), label=label)
    axes.legend()
    return figure


def draw_gates(gates: dict[str, Tensor]) -> Figure:
    """Histogram of each gate over steps, lanes and units; bars at the edges are saturation."""
    figure = Figure(figsize=(3 * len(gates), 2.8), layout="constrained")
    for axes, (name, gate) in zip(figure.subplots(1, len(gates), squeeze=False)[0], gates.items(), strict=True):
        values = gate.flatten().float().cpu().numpy()
        axes.hist(values, bins=20, range=(0, 1), weights=[1 / len(values)] * len(values))
        axes.set(title=f"{name} gate", xlim=(0, 1), xlabel="value", ylabel="share")
    return figure


def draw_attention(attention: Tensor) -> Figure:
    """Attention maps: one row per lane, one column per head; `attention` `[B, heads, rows, columns]`."""
    attention = attention[:, :MAX_HEADS].float().cpu()
    lanes, heads, rows, columns = attention.shape
    names = attention_columns(rows, columns)
    figure = Figure(figsize=(2.2 * heads + 1, 2 * lanes), layout="constrained")
    grid = figure.subplots(lanes, heads, squeeze=False)
    for (lane, head), axes in np.ndenumerate(grid):
        image = axes.imshow(attention[lane, head].numpy(), vmin=0, vmax=1, aspect="auto" if rows == 1 else None)
        axes.set(title=f"lane {lane}, head {head}", xticks=[0, columns - 1], yticks=[0, rows - 1])
        axes.set_xticklabels([names[0], names[-1]])
    figure.supylabel("query slot" if rows > 1 else "")
    figure.colorbar(image, ax=grid, label="attention")
    return figure
