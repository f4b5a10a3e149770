"""The Relational Memory Core."""

from typing import Literal

import torch
from torch import Tensor, nn

from rmc_agents.kernels.modes import no_autocast
from rmc_agents.kernels.operations import Product, Use, linear_products
from rmc_agents.kernels.rmc.reference import rmc_attention, rmc_gates
from rmc_agents.kernels.weights import RMCBlock, RMCState, RMCWeights, affine

from .base import linear, truncated_normal
from .checks import check_sizes
from .kernel_core import KernelCore

GateStyle = Literal["unit", "coupled", "memory", "none"]


class RMC(KernelCore):
    """Relational Memory Core (Santoro et al. 2018, arXiv:1806.01822; the arithmetic of Sonnet v1).

    The memory is a matrix of N slots of width D = num_heads * head_size. At every step the slots attend to one another
    and to the input by multi-head attention; an input gate controls what each slot writes, and a forget gate what it
    keeps. The output is the whole memory, flattened: `[B, N * D]`.

    The memory starts as the identity matrix, padded or cropped to N x D: slots that start equal would stay equal.

    Args:
      input_size: width of the inputs.
      mem_slots: N, slots of the memory.
      head_size: width of one head's values.
      num_heads: attention heads.
      num_blocks: attention blocks per step; each has its own projection and LayerNorms.
      key_size: width of one head's queries and keys; None: head_size.
      gate_style: 'unit': a pair of gates for each unit; 'memory': a pair for each slot; 'none': no gates; 'coupled': a
        forget gate for each unit, and input gate = 1 - forget gate (Greff et al., 2017, CIFG; not in the paper): the
        memory is then a weighted mean of its initial value and past candidates, between -1 and 1, while with the others
        it can grow.
      attention_mlp_layers: layers of the row-wise MLP after attention, which all blocks share.
      forget_bias: added to the forget gate before its sigmoid.
      input_bias: added to the input gate before its sigmoid; not used by 'coupled'.
      slot_embedding: add a learned vector to each slot at the start of every step (not in the paper). The slots share
        all weights: without it they differ only by the remains of their initial values, and become equal within an
        episode.

    Raises:
      ValueError: for a size that is not a positive integer, or an unknown gate style.
    """

    kernel = "rmc"
    default_gain = 0.5
    """A new RMC's outputs have a magnitude of about 1.2, a new LSTM's about 0.13: at equal gain, one step of Adam would
    change the policy nine times more through the RMC (docs/decisions/minipacman-defaults.md)."""
    initial_memory: Tensor  # [1, N, D]
    slot_embedding: nn.Parameter | None  # [N, D]

    def __init__(
        self,
        input_size: int,
        *,
        mem_slots: int = 4,
        head_size: int = 32,
        num_heads: int = 2,
        num_blocks: int = 1,
        key_size: int | None = None,
        gate_style: GateStyle = "unit",
        attention_mlp_layers: int = 2,
        forget_bias: float = 1.0,
        input_bias: float = 0.0,
        slot_embedding: bool = False,
    ) -> None:
        key_size = head_size if key_size is None else key_size
        check_sizes(mem_slots=mem_slots, head_size=head_size, num_heads=num_heads, key_size=key_size)
        check_sizes(num_blocks=num_blocks, attention_mlp_layers=attention_mlp_layers)
        slot_size = num_heads * head_size
        gate_sizes = {"unit": 2 * slot_size, "coupled": slot_size, "memory": 2, "none": 0}
        if gate_style not in gate_sizes:
            raise ValueError(f"gate_style: expected one of {', '.join(gate_sizes)}, got {gate_style!r}")
        super().__init__(input_size, output_size=mem_slots * slot_size)
        self.num_heads, self.key_size, self.coupled = num_heads, key_size, gate_style == "coupled"
        self.forget_bias, self.input_bias = forget_bias, input_bias
        self.input = linear(input_size, slot_size)
        qkv_size = num_heads * (2 * key_size + head_size)
        self.blocks = nn.ModuleList(_Block(slot_size, qkv_size) for _ in range(num_blocks))
        self.mlp = nn.ModuleList(linear(slot_size, slot_size) for _ in range(attention_mlp_layers))
        gate_size = gate_sizes[gate_style]
        self.input_gates = linear(slot_size, gate_size) if gate_size else None
        self.memory_gates = linear(slot_size, gate_size) if gate_size else None
        embedding = truncated_normal(mem_slots, slot_size, fan_in=slot_size) if slot_embedding else None
        self.register_parameter("slot_embedding", embedding)
        self.register_buffer("initial_memory", torch.eye(mem_slots, slot_size).unsqueeze(0), persistent=False)

    def initial_leaves(self) -> RMCState:
        """The memory, the identity matrix padded or cropped to `[1, N, D]`."""
        return RMCState(self.initial_memory)

    def attention_weights(self, inputs: Tensor, should_reset: Tensor, state: RMCState) -> Tensor:
        """The attention weights of the step that `step` takes with the same arguments.

        Returns:
          The softmax weights, `[B, num_blocks, num_heads, N, N+1]`: from each slot (axis -2) to the N slots
          and, last, the input. They sum to 1 over the last axis.

        Raises:
          ValueError: as `step` does.
        """
        inputs, state = self._after_reset(inputs, should_reset, state)
        with no_autocast(inputs.device.type):
            return rmc_attention(inputs, state, self.weights())

    def gate_values(self, inputs: Tensor, should_reset: Tensor, state: RMCState) -> dict[str, Tensor]:
        """Input and forget gate, each `[B, N, D]` or, with a gate per slot, `[B, N, 1]`; see `Core.gate_values`."""
        inputs, state = self._after_reset(inputs, should_reset, state)
        with no_autocast(inputs.device.type):
            gates = rmc_gates(inputs, state, self.weights())
        return {} if gates is None else gates._asdict()

    def matrix_products(self, steps: int, lanes: int) -> list[Product]:
        """See `Core.matrix_products`.

        The input's row takes part in the attention of all blocks, but the last block computes results only for slots.
        """
        weights, slots = self.weights(), self.initial_memory.shape[1]
        inputs, memory, joint = Use(steps * lanes, 1), Use(lanes * slots, steps), Use(lanes * (slots + 1), steps)
        first, *others = weights.blocks
        products = linear_products(weights.input.weight, inputs) + linear_products(first.qkv.weight, inputs, memory)
        for block in others:
            products += linear_products(block.qkv.weight, joint)
        for layer in weights.mlp:  # shared by all blocks
            products += linear_products(layer.weight, *[joint] * len(others), memory)
        if weights.gates is not None:
            from_input, from_memory = weights.gates
            products += linear_products(from_input.weight, inputs) + linear_products(from_memory.weight, memory)
        return products

    def weights(self) -> RMCWeights:
        gates = None
        if self.input_gates is not None and self.memory_gates is not None:
            gates = (affine(self.input_gates), affine(self.memory_gates))
        return RMCWeights(
            input=affine(self.input),
            blocks=tuple(
                RMCBlock(*map(affine, (b.qkv, b.qkv_norm, b.attention_norm, b.mlp_norm))) for b in self.blocks
            ),
            mlp=tuple(affine(layer) for layer in self.mlp),
            gates=gates,
            num_heads=self.num_heads,
            key_size=self.key_size,
            coupled=self.coupled,
            input_bias=self.input_bias,
            forget_bias=self.forget_bias,
            slot_embedding=self.slot_embedding,
        )


class _Block(nn.Module):
    """The parameters that attention blocks do not share."""

    def __init__(self, slot_size: int, qkv_size: int) -> None:
        super().__init__()
        self.qkv = linear(slot_size, qkv_size)
        self.qkv_norm = nn.LayerNorm(qkv_size)
        self.attention_norm = nn.LayerNorm(slot_size)
        self.mlp_norm = nn.LayerNorm(slot_size)
