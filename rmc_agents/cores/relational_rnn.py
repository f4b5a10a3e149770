"""An LSTM with a relational memory."""

import torch
from torch import Tensor, nn

from rmc_agents.kernels.operations import Product, Use, linear_products
from rmc_agents.kernels.weights import RelationalRNNState, RelationalRNNWeights, affine

from .base import linear
from .checks import check_sizes
from .kernel_core import KernelCore
from .lstm import LSTM


class RelationalRNN(KernelCore):
    """An LSTM that reads and writes a relational memory at every step.

    The LSTM proposes h from the input and the last h. That h, mapped linearly to the width of a slot, joins the N slots
    of the memory as one more row; all rows attend to one another (multi-head attention, output projection, residual)
    and pass through a row-wise MLP (D -> 2D -> D, ReLU). The slots are updated through gates,
    M' = σ(o) ⊙ tanh(σ(f) ⊙ M + σ(i) ⊙ tanh(row)), and the row of h is the read vector:
    the output and the next h are tanh(W [h ; read] + b).

    The memory starts as small fixed noise (standard deviation 0.01), equal for all lanes and seeds, and saved in the
    state_dict.

    Args:
      input_size: width of the inputs.
      hidden_size: width of h and c, and of the output.
      mem_slots: N, slots of the memory.
      num_heads: attention heads.
      head_size: width of one head; a slot has width D = num_heads * head_size.
      forget_bias: initial bias of the LSTM's forget gate.

    Raises:
      ValueError: for a size that is not a positive integer.
    """

    kernel = "relational_rnn"
    initial_memory: Tensor  # [1, N, D]

    def __init__(
        self,
        input_size: int,
        *,
        hidden_size: int = 256,
        mem_slots: int = 4,
        num_heads: int = 2,
        head_size: int = 32,
        forget_bias: float = 1.0,
    ) -> None:
        check_sizes(hidden_size=hidden_size, mem_slots=mem_slots, num_heads=num_heads, head_size=head_size)
        super().__init__(input_size, output_size=hidden_size)
        slot_size = num_heads * head_size
        self.num_heads = num_heads
        self.lstm = LSTM(input_size, hidden_size=hidden_size, forget_bias=forget_bias)
        self.row = linear(hidden_size, slot_size)
        self.qkv = linear(slot_size, 3 * slot_size)
        self.attended = linear(slot_size, slot_size)
        self.mlp = nn.ModuleList([linear(slot_size, 2 * slot_size), linear(2 * slot_size, slot_size)])
        self.gates = linear(slot_size, 3 * slot_size)
        self.output = linear(hidden_size + slot_size, hidden_size)
        noise = torch.randn(1, mem_slots, slot_size, generator=torch.Generator().manual_seed(0))
        self.register_buffer("initial_memory", 0.01 * noise)

    def initial_leaves(self) -> RelationalRNNState:
        """h and c, zero, `[1, H]`, and the memory's noise, `[1, N, D]`."""
        return RelationalRNNState(*self.lstm.initial_leaves(), self.initial_memory)

    def weights(self) -> RelationalRNNWeights:
        return RelationalRNNWeights(
            lstm=self.lstm.weights(),
            row=affine(self.row),
            qkv=affine(self.qkv),
            attended=affine(self.attended),
            mlp=tuple(affine(layer) for layer in self.mlp),
            gates=affine(self.gates),
            output=affine(self.output),
            num_heads=self.num_heads,
        )

    def matrix_products(self, steps: int, lanes: int) -> list[Product]:
        weights, slots = self.weights(), self.initial_memory.shape[1]
        hidden, memory, joint = Use(lanes, steps), Use(lanes * slots, steps), Use(lanes * (slots + 1), steps)
        products = self.lstm.matrix_products(steps, lanes)
        products += linear_products(weights.row.weight, hidden) + linear_products(weights.output.weight, hidden)
        for layer in (weights.qkv, weights.attended, *weights.mlp):
            products += linear_products(layer.weight, joint)
        return products + linear_products(weights.gates.weight, memory)
