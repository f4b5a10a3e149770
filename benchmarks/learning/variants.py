"""Cores between a GRU, an LSTM and an RMC: which of their parts decides whether an agent uses its memory?

    rmc-train --config minipacman-rmc --core benchmarks.learning.variants:Variant --core-args slots=4 width=64 ...

Results: docs/decisions/slots.md. Plain torch, without fused kernels.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import rmc_agents as rmc
from rmc_agents.cores.base import linear

CANDIDATES = ("gru", "no-reset", "gru-attention", "rmc")


class Variant(rmc.Core):
    """A gated memory of N slots of width D: memory' = z * memory + (1 - z) * candidate. All slots share their weights.

    The defaults are a GRU of 128 units; `candidate=no-reset gates=lstm` is an LSTM of 128. `slots=4 width=64 input=row
    candidate=rmc gate_bias=1` is the RMC of the preset minipacman-rmc; `norms=false`, `attention=false` and
    `residual=false` leave out what they name.

    Args:
      input_size: width of the inputs.
      slots, width: N and D.
      input: "own", each slot has its own projection of the input; "row", all see the same row of width D, as in an RMC.
      candidate: "gru", tanh(W x + r * U memory) with the reset gate r; "no-reset", the same with r = 1;
        "gru-attention", the GRU's with U memory + what attention to the slots takes of them; "rmc", tanh of the slot
        after attention to the slots and the input, and an MLP, both residual.
      norms: with the candidate "rmc", LayerNorms of queries, keys and values, and after attention and MLP.
      attention: with the candidate "rmc"; without, a slot takes the mean of its own value and the input's.
      residual: with the candidate "rmc"; without, it is made of what attention takes, not of the slot itself too.
      heads: of the attention.
      gates: "coupled", as above; "lstm", memory' = z * memory + i * candidate, and the output, which is what the next
        step sees of the memory, is o * tanh(memory').
      gate_bias: initial bias of z; above 0, the memory lasts longer from the start of training.
    """

    def __init__(
        self,
        input_size: int,
        slots: int = 1,
        width: int = 128,
        input: str = "own",
        candidate: str = "gru",
        norms: bool = True,
        attention: bool = True,
        residual: bool = True,
        heads: int = 2,
        gates: str = "coupled",
        gate_bias: float = 0.0,
    ) -> None:
        super().__init__(input_size, output_size=slots * width)
        for name, value, known in (
            ("input", input, ("own", "row")),
            ("candidate", candidate, CANDIDATES),
            ("gates", gates, ("coupled", "lstm")),
        ):
            if value not in known:
                raise ValueError(f"{name}: expected one of {', '.join(known)}, got {value!r}")
        self.slots, self.width, self.candidate = slots, width, candidate
        self.attention, self.residual, self.heads, self.gate_bias = attention, residual, heads, gate_bias
        self.gates = 3 if gates == "lstm" else 1  # z, i, o or z alone
        # The gates, and for a GRU's candidate itself and r.
        parts = self.gates + {"gru": 2, "gru-attention": 2, "no-reset": 1, "rmc": 0}[candidate]
        own = slots * (parts + (candidate == "rmc"))  # an RMC's candidate takes the row, or one for each slot
        self.row = linear(input_size, width) if input == "row" else None
        self.from_input = linear(width, parts * width) if input == "row" else linear(input_size, own * width)
        self.from_memory = linear(width, parts * width)
        self.embedding = nn.Parameter(torch.randn(slots, width) * width**-0.5) if slots > 1 else None
        if candidate in ("rmc", "gru-attention"):
            self.qkv = linear(width, 3 * width)
        if candidate == "rmc":
            self.mlp = nn.Sequential(linear(width, width), nn.ReLU(), linear(width, width))
            self.norms = nn.ModuleList(
                nn.LayerNorm(size) if norms else nn.Identity() for size in (3 * width, width, width)
            )

    def initial_leaves(self) -> tuple[Tensor, ...]:
        """The memory `[1, N, D]`: zeros for a GRU's candidate, the identity for an RMC's. With an LSTM's gates, also
        the output, which is like it."""
        weight = self.from_memory.weight
        memory = weight.new_zeros(1, self.slots, self.width)
        if self.candidate == "rmc":
            memory = torch.eye(self.slots, self.width, dtype=weight.dtype, device=weight.device).unsqueeze(0)
        return (memory,) if self.gates == 1 else (memory, memory)

    def cell(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """One step; x `[B, input_size]`, output `[B, N * D]`."""
        memory, output = state[0], state[-1]
        seen = output if self.embedding is None else output + self.embedding
        if self.row is None:
            inputs = self.from_input(x).unflatten(-1, (self.slots, -1))
        else:
            row = self.row(x).unsqueeze(1)
            inputs = torch.cat([self.from_input(row), row], dim=-1) if self.candidate == "rmc" else self.from_input(row)
        width, gates = self.width, self.gates * self.width
        candidate_in, *reset_in = inputs[..., gates:].split(width, dim=-1)
        from_memory = self.from_memory(seen.tanh() if self.candidate == "rmc" else seen)
        if self.candidate == "rmc":
            candidate = self._attended(seen, candidate_in)
        else:
            candidate_memory, *reset_memory = from_memory[..., gates:].split(width, dim=-1)
            if self.candidate == "gru-attention":
                candidate_memory = candidate_memory + self._found(self.qkv(seen))
            reset = torch.sigmoid(reset_in[0] + reset_memory[0]) if reset_in else 1.0
            candidate = torch.tanh(candidate_in + reset * candidate_memory)
        keep, *others = (inputs[..., :gates] + from_memory[..., :gates]).split(width, dim=-1)
        keep = torch.sigmoid(keep + self.gate_bias)
        if not others:
            memory = keep * memory + (1 - keep) * candidate
            return memory.flatten(1), (memory,)
        write, show = (torch.sigmoid(each) for each in others)
        memory = keep * memory + write * candidate
        output = show * memory.tanh()
        return output.flatten(1), (memory, output)

    def _attended(self, seen: Tensor, row: Tensor) -> Tensor:
        """The RMC's candidate `[B, N, D]`, from the slots `[B, N, D]` and the input, a row for all or one for each."""
        attended, after_attention, after_mlp = self.norms
        qkv = attended(self.qkv(torch.cat([seen, row], dim=1)))
        if self.attention:
            found = self._found(qkv)
        else:
            value = qkv[..., 2 * self.width :]
            found = 0.5 * (value[:, : self.slots] + value[:, self.slots :])
        rows = after_attention(seen + found if self.residual else found)
        return torch.tanh(after_mlp(rows + self.mlp(rows)))

    def _found(self, qkv: Tensor) -> Tensor:
        """What the slots `[B, N, D]` take of all rows, from the rows' queries, keys and values `[B, rows, 3D]`."""
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in qkv.chunk(3, dim=-1))
        found = functional.scaled_dot_product_attention(query[:, :, : self.slots], key, value)
        return found.transpose(1, 2).flatten(2)


class Queries(rmc.RMC):
    """The RMC of the preset minipacman-rmc, whose queries and keys begin otherwise.

    Args:
      input_size: width of the inputs.
      gain: of the queries at the start; below 1, slots attend more evenly, as with a higher temperature.
      are_keys: the keys begin equal to the queries.
    """

    def __init__(self, input_size: int, gain: float = 1.0, are_keys: bool = False) -> None:
        super().__init__(input_size, gate_style="coupled", slot_embedding=True)
        block: Any = self.blocks[0]
        width = self.num_heads * self.key_size
        with torch.no_grad():
            block.qkv_norm.weight[:width] *= gain
            if are_keys:
                block.qkv.weight[width : 2 * width] = block.qkv.weight[:width]
