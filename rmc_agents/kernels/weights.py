"""The arguments and results of the kernels: recurrent states, gates, and weights as plain tensors."""

from typing import Any, NamedTuple

from torch import Tensor, nn


class LSTMState(NamedTuple):
    hidden: Tensor  # [B, H]
    cell: Tensor  # [B, H]


class HiddenState(NamedTuple):
    """State of gru, rnn and mingru."""

    hidden: Tensor  # [B, H]; mingru: [B, layers * H], all layers concatenated


class RMCState(NamedTuple):
    memory: Tensor  # [B, N, D]


class RelationalRNNState(NamedTuple):
    hidden: Tensor  # [B, H]
    cell: Tensor  # [B, H]
    memory: Tensor  # [B, N, D]


class TransformerState(NamedTuple):
    memory: Tensor  # [B, layers, M, D]: each layer's normalised inputs of the last M steps, the oldest first


class LSTMGates(NamedTuple):
    """Between 0 and 1."""

    input: Tensor  # [B, H]
    forget: Tensor  # [B, H]
    output: Tensor  # [B, H]


class GRUGates(NamedTuple):
    """Between 0 and 1."""

    reset: Tensor  # [B, H]
    update: Tensor  # [B, H]: how much of h is kept


class MinGRUGates(NamedTuple):
    """Between 0 and 1; all layers concatenated."""

    input: Tensor  # [B, layers * H]: how much of the candidate goes into h
    output: Tensor  # [B, layers * H]: how much of the output is h; the rest is the layer's input


class RMCGates(NamedTuple):
    """Between 0 and 1; as wide as the slot, or 1 where a slot has one gate."""

    input: Tensor  # [B, N, D or 1]; in the scan [N, B, D or 1]
    forget: Tensor  # as input


class Affine(NamedTuple):
    """Weights of a linear map, or gain and bias of a LayerNorm."""

    weight: Tensor
    bias: Tensor


def affine(layer: Any) -> Affine:
    """The weights of an `nn.Linear` or `nn.LayerNorm` for the kernels.

    Raises:
      ValueError: for another layer, such as a wrapper, whose own `forward` would not run, one without a bias, or with
        hooks.
    """
    if type(layer).forward not in (nn.Linear.forward, nn.LayerNorm.forward) or (bias := layer.bias) is None:
        raise ValueError(
            "expected an nn.Linear or nn.LayerNorm with a bias, whose weights are read without calling it, "
            f"got {layer}; to change how weights are computed, use torch.nn.utils.parametrize"
        )
    if layer._forward_pre_hooks or layer._forward_hooks or layer._backward_pre_hooks or layer._backward_hooks:
        raise ValueError(
            f"{layer} has hooks, which do not run: its weights are read without calling it; instead of spectral_norm, "
            "weight_norm and prune, use torch.nn.utils.parametrizations"
        )
    return Affine(layer.weight, bias)


class RecurrentWeights(NamedTuple):
    """Weights of lstm (G = 4H, rows in the order i, f, g, o), gru (G = 3H, rows r, z, n) and rnn (G = H)."""

    input: Affine  # [G, I], [G]
    hidden: Tensor  # [G, H]
    hidden_bias: Tensor | None  # [G]; only gru, where the reset gate multiplies it


class MinGRULayer(NamedTuple):
    """Weights of one layer of the minGRU, rows in the order z, n, o."""

    maps: Affine  # [3H, I], [3H]
    skip: Affine | None  # [H, I], [H], the highway; None: the input itself, if I = H


class RMCBlock(NamedTuple):
    qkv: Affine  # [heads * (2 * key_size + head_size), D]: all heads' queries, then all keys, then all values
    qkv_norm: Affine
    attention_norm: Affine  # [D]
    mlp_norm: Affine  # [D]


class RMCWeights(NamedTuple):
    """Weights of the Relational Memory Core. Gates: G = 2D for 'unit', 2 for 'memory', input first; D if coupled."""

    input: Affine  # [D, I]
    blocks: tuple[RMCBlock, ...]
    mlp: tuple[Affine, ...]  # each [D, D]; shared by all blocks
    gates: tuple[Affine, Affine] | None  # from the input row and from the memory, each [G, D]; None: no gates
    num_heads: int
    key_size: int
    coupled: bool  # input gate = 1 - forget gate; the linear maps compute only the forget gates
    input_bias: float
    forget_bias: float
    slot_embedding: Tensor | None  # [N, D], added to the memory that a step reads; None: not used


class RelationalRNNWeights(NamedTuple):
    lstm: RecurrentWeights
    row: Affine  # [D, H]
    qkv: Affine  # [3D, D]
    attended: Affine  # [D, D]
    mlp: tuple[Affine, ...]  # [2D, D], [D, 2D]
    gates: Affine  # [3D, D]: i, f, o
    output: Affine  # [H, H + D]
    num_heads: int
