"""The Relational Memory Core's scan over time as one Triton kernel forward and one backward, for CUDA GPUs.

The contract is `rmc.reference.rmc_unroll`'s. Importing this module needs Triton (`pip install rmc-agents[triton]`).

How the work is divided. A program owns a few lanes, that is ROWS rows = lanes x N slots, for all T steps: their
memory (backward: its gradient) never leaves the registers, and no program waits for another. The matrix products
of a step read the weights, and rows that the program itself has just written, in blocks of the inner axis; a barrier
separates writing from reading. Attention is limited to the few rows of one lane, so it is elementwise: each row
reads its lane's keys and values, one slot after another.

What does not depend on the memory is computed outside by ordinary autograd: the input row's key and value and its
part of the gates. The weights' gradients are one product each over all T * B * N rows, after the backward kernel.
There are no atomics, so results are bitwise reproducible.

`_Kept` holds what forward keeps for backward, for every step; if no gradient is needed, all steps share the scratch
memory of one step. `_Gradients` holds what backward writes.

Heads whose number or size is no power of two are padded with zero columns outside the kernels, again by autograd.
"""

import functools
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from rmc_agents.kernels.modes import check_backward
from rmc_agents.kernels.weights import RMCState, RMCWeights

from .reference import rmc_inputs
from .triton_kernels import _backward, _forward, _Gradients, _Inputs, _Kept, _Sizes, _Weights

MAX_SLOTS, MAX_WIDTH = 16, 512
MAX_TILE = 4096  # numbers in a [ROWS, D] tile: with twice as many, the dozen tiles of a step overflow the registers


class _Scan(torch.autograd.Function):
    """The part that depends on the memory; see `rmc_unroll`."""

    @staticmethod
    def forward(ctx: Any, sizes: _Sizes, saved: bool, should_reset: Tensor, *tensors: Any) -> Tensor:
        """tensors: those of `_Inputs` except should_reset, then those of `_Weights`. Returns `[T, B, N, D]`."""
        contiguous: list[Any] = [x if x is None else x.contiguous() for x in tensors]
        key, value, gates, state, initial, embedding, *rest = contiguous
        inputs = _Inputs(key, value, gates, should_reset.contiguous().view(torch.uint8), state, initial, embedding)
        weights = _Weights(*rest)
        steps, lanes, width = value.shape
        new, rows = value.new_empty, (steps if saved else 1, lanes, sizes.slots)
        kept = _Kept(
            memories=new(*rows, width),
            qkv=new(*rows, sizes.qkv),
            scores=new(*rows, sizes.slots + 1, sizes.heads),
            peaks=new(*rows, sizes.heads),
            attended=new(*rows, width),
            attention_normal=new(*rows, width),
            mlp_inputs=new(sizes.layers, *rows, width),
            mlp_normal=new(*rows, width),
            gates=None if gates is None else new(*rows, gates.shape[-1]),
            rstds=new(3, *rows),
        )
        outputs = new(steps, lanes, sizes.slots, width)
        with torch.cuda.device_of(outputs):
            _forward[_grid(lanes, sizes)](
                inputs, weights, kept, outputs, steps, lanes, int(saved), sizes, **_warps(sizes)
            )
        if saved:
            ctx.sizes = sizes
            ctx.save_for_backward(*inputs, *weights, *kept)
        return outputs

    @staticmethod
    def backward(ctx: Any, d_outputs: Tensor) -> tuple[Tensor | None, ...]:
        """One kernel for what runs back through the memory, then a product or a sum for every gradient."""
        check_backward(d_outputs)
        sizes, saved = ctx.sizes, iter(ctx.saved_tensors)
        inputs = _Inputs(*islice(saved, len(_Inputs._fields)))
        weights = _Weights(*islice(saved, len(_Weights._fields)))
        kept = _Kept(*saved)
        steps, lanes, _ = inputs.value.shape
        gradients = _Gradients(
            memories=torch.empty_like(kept.memories),
            qkv=torch.empty_like(kept.qkv),
            projected=torch.empty_like(kept.qkv),
            scores=torch.empty_like(kept.scores),
            attended=torch.empty_like(kept.memories),
            attention_norm=torch.empty_like(kept.memories),
            mlp=torch.empty_like(kept.mlp_inputs),
            mlp_norm=torch.empty_like(kept.memories),
            gates=None if kept.gates is None else torch.empty_like(kept.gates),
        )
        with torch.cuda.device_of(d_outputs):
            _backward[_grid(lanes, sizes)](
                inputs, weights, kept, gradients, d_outputs.contiguous(), steps, lanes, sizes, **_warps(sizes)
            )
        initial, embedding = ctx.needs_input_grad[7:9]  # usually constants
        of_inputs = _input_gradients(inputs, weights, kept, gradients, initial)
        d_embedding = _embedding_gradient(inputs, kept, gradients, d_outputs, sizes) if embedding else None
        return None, None, None, *of_inputs, d_embedding, *_weight_gradients(kept, gradients)


def _input_gradients(
    inputs: _Inputs, weights: _Weights, kept: _Kept, gradients: _Gradients, initial: bool
) -> tuple[Tensor | None, ...]:
    """Gradients of `_Inputs`, except should_reset and embedding; of the initial state only if asked for."""
    heads = (kept.scores.shape[-1], -1)
    keys = inputs.key.shape[-1]
    query = kept.qkv[..., :keys] * weights.qkv_gain[:keys] + weights.qkv_shift[:keys]
    weight = torch.exp(kept.scores[..., -1, :] - kept.peaks)  # on the input's row
    resets = inputs.should_reset.bool()[..., None, None]  # [T, B, 1, 1]
    return (
        (gradients.scores[..., -1, :, None] * query.unflatten(-1, heads)).sum(2).flatten(2),
        (weight[..., None] * gradients.attended.unflatten(-1, heads)).sum(2).flatten(2),
        None if gradients.gates is None else gradients.gates.sum(2),
        torch.where(resets[0], 0.0, gradients.memories[0]),
        torch.where(resets, gradients.memories, 0.0).sum((0, 1)).unsqueeze(0) if initial else None,
    )


def _embedding_gradient(
    inputs: _Inputs, kept: _Kept, gradients: _Gradients, d_outputs: Tensor, sizes: _Sizes
) -> Tensor:
    """Gradient of the slots as a step reads them, without the part that the forget gate carries over: `[1, N, D]`."""
    d_seen = gradients.memories
    if kept.gates is not None:
        goes_on = ~inputs.should_reset[1:].bool()[..., None, None]
        d_new = d_outputs.clone()  # [T, B, N, D], of the memory after each step
        d_new[:-1] += goes_on * gradients.memories[1:]
        d_seen = d_seen - d_new * kept.gates[..., -sizes.gate :]
    return d_seen.sum((0, 1)).unsqueeze(0)


def _weight_gradients(kept: _Kept, gradients: _Gradients) -> tuple[Tensor | None, ...]:
    """Gradients of `_Weights`: sums over all steps, lanes and slots."""

    def norm(gradient: Tensor, normal: Tensor) -> tuple[Tensor, Tensor]:
        return (gradient * normal).sum((0, 1, 2)), gradient.sum((0, 1, 2))

    gates = None
    if gradients.gates is not None:
        gates = gradients.gates.flatten(0, 2).T @ torch.tanh(kept.memories).flatten(0, 2)
    return (
        gradients.projected.flatten(0, 2).T @ kept.memories.flatten(0, 2),
        gradients.projected.sum((0, 1, 2)),
        *norm(gradients.qkv, kept.qkv),
        *norm(gradients.attention_norm, kept.attention_normal),
        gradients.mlp.flatten(1, 3).mT @ kept.mlp_inputs.flatten(1, 3),
        gradients.mlp.sum((1, 2, 3)),
        *norm(gradients.mlp_norm, kept.mlp_normal),
        gates,
    )


def _grid(lanes: int, sizes: _Sizes) -> tuple[int]:
    return (triton.cdiv(lanes, sizes.lanes),)


def _warps(sizes: _Sizes) -> dict[str, int]:
    """Options of a launch: none of the sizes up to MAX_WIDTH runs out of shared memory with them."""
    widest = max(sizes.keys, sizes.width)
    return {"num_warps": 4 if sizes.rows * widest <= 1024 else 8, "num_stages": 3 if widest <= 256 else 2}


@functools.cache
def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 128  # interpreted
    return torch.cuda.get_device_properties(device).multi_processor_count


def _sizes(weights: RMCWeights, slots: int, lanes: int) -> _Sizes:
    """Programs are small until there are more of them than the GPU has processors."""
    width = len(weights.input.bias)
    heads = triton.next_power_of_2(weights.num_heads)
    real_key, real_head = weights.key_size, width // weights.num_heads
    key, head = (max(16 // heads, triton.next_power_of_2(size)) for size in (real_key, real_head))  # 16: tl.dot's least
    gates = "none"
    if weights.gates is not None:
        uncoupled = "unit" if len(weights.gates[1].bias) == 2 * width else "memory"
        gates = "coupled" if weights.coupled else uncoupled
    rows, processors = 16, _processors(weights.input.bias.device)
    while triton.cdiv(lanes, rows // slots) > processors and 2 * rows * heads * max(key, head) <= MAX_TILE:
        rows *= 2
    return _Sizes(
        real_heads=weights.num_heads,
        real_key=real_key,
        real_head=real_head,
        slots=slots,
        heads=heads,
        key=key,
        head=head,
        layers=len(weights.mlp),
        gates=gates,
        lanes=rows // slots,
        rows=rows,
    )


def _padded(x: Tensor, sizes: _Sizes, *sections: tuple[int, int]) -> Tensor:
    """Pads the heads in each section of the last axis; a section is a head's size and its padded size."""
    if sizes.heads == sizes.real_heads and all(size == wider for size, wider in sections):
        return x
    parts = []
    for part, (size, wider) in zip(
        x.split([sizes.real_heads * size for size, _ in sections], -1), sections, strict=True
    ):
        heads = part.unflatten(-1, (sizes.real_heads, size))
        parts.append(F.pad(heads, (0, wider - size, 0, sizes.heads - sizes.real_heads)).flatten(-2))
    return torch.cat(parts, -1)


def _padded_gates(x: Tensor, sizes: _Sizes) -> Tensor:
    """Pads each gate of the last axis that is as wide as the memory."""
    if sizes.gates == "memory":
        return x
    return _padded(x, sizes, *[(sizes.real_head, sizes.head)] * (x.shape[-1] // sizes.real_width))


def _padded_weights(weights: RMCWeights, sizes: _Sizes) -> _Weights:
    block = weights.blocks[0]
    key, head = (sizes.real_key, sizes.key), (sizes.real_head, sizes.head)
    mlp, mlp_bias = (torch.stack(layers) for layers in zip(*weights.mlp, strict=True))
    gates = None
    if weights.gates is not None:
        gates = _padded_gates(_padded(weights.gates[1].weight, sizes, head).T, sizes).T
    tensors = (
        _padded(_padded(block.qkv.weight, sizes, head).T, sizes, key, key, head).T,
        *(_padded(x, sizes, key, key, head) for x in (block.qkv.bias, *block.qkv_norm)),
        *(_padded(x, sizes, head) for x in block.attention_norm),
        _padded(_padded(mlp, sizes, head).mT, sizes, head).mT,
        *(_padded(x, sizes, head) for x in (mlp_bias, *block.mlp_norm)),
        gates,
    )
    return _Weights(*tensors)


def obstacle(weights: RMCWeights, initial_state: RMCState) -> str | None:
    """The reason why the kernels cannot run a core with one block; None if they can."""
    slots = initial_state.memory.shape[1]
    if slots > MAX_SLOTS:
        return f"mem_slots: expected at most {MAX_SLOTS}, got {slots}"
    sizes = _sizes(weights, slots, 1)
    for name, size in (("key_size", sizes.key), ("head_size", sizes.head)):
        if sizes.heads * size > MAX_WIDTH:
            product = f"num_heads * {name}, each rounded up to a power of two"
            return f"{product}: expected at most {MAX_WIDTH}, got {sizes.heads * size}"
    return None


def rmc_unroll(
    inputs: Tensor,
    should_reset: Tensor,
    state: RMCState,
    initial_state: RMCState,
    weights: RMCWeights,
) -> tuple[Tensor, RMCState]:
    """`rmc.reference.rmc_unroll`, whose arguments it takes; all tensors float32, for a core without `obstacle`."""
    lanes, slots, width = state.memory.shape
    sizes = _sizes(weights, slots, lanes)
    key, head = (sizes.real_key, sizes.key), (sizes.real_head, sizes.head)
    _, _, input_key, input_value, *gates = (x.squeeze(1) for x in rmc_inputs(inputs, weights))
    embedding = torch.zeros_like(initial_state.memory)
    if weights.slot_embedding is not None:
        embedding = weights.slot_embedding.unsqueeze(0)
    tensors: tuple[Tensor | None, ...] = (
        _padded(input_key, sizes, key),
        _padded(input_value, sizes, head),
        _padded_gates(gates[0], sizes) if gates else None,
        _padded(state.memory, sizes, head),
        _padded(initial_state.memory, sizes, head),
        _padded(embedding, sizes, head),
        *_padded_weights(weights, sizes),
    )
    saved = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
    outputs = _Scan.apply(sizes, saved, should_reset, *tensors)  # [T, B, N, D]
    if sizes.width != width:
        heads = outputs.unflatten(-1, (sizes.heads, sizes.head))
        outputs = heads[..., : sizes.real_heads, : sizes.real_head].flatten(-2)
    return outputs.flatten(2), RMCState(outputs[-1].clone())
