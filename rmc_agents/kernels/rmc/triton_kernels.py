"""The Triton kernels of `triton`, which explains how they work together, and the tensors that they read and write."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import triton
import triton.language as tl

EPSILON = tl.constexpr(1e-5)  # torch's LayerNorm
BLOCK = tl.constexpr(16)  # of a product's inner axis at a time


class _Inputs(NamedTuple):
    """The inputs of a scan."""

    key: Any  # [T, B, H * key]: the input row's
    value: Any  # [T, B, D]
    gates: Any  # [T, B, G] or None
    should_reset: Any  # [T, B] uint8
    state: Any  # [B, N, D]
    initial: Any  # [1, N, D]
    embedding: Any  # [1, N, D], added to what a step sees of the memory


class _Weights(NamedTuple):
    """As the kernels take them; gain and shift are a LayerNorm's."""

    qkv: Any  # [Q, D], Q = H * (2 key + head)
    qkv_bias: Any  # [Q]
    qkv_gain: Any
    qkv_shift: Any
    attention_gain: Any  # [D]
    attention_shift: Any
    mlp: Any  # [L, D, D]
    mlp_bias: Any  # [L, D]
    mlp_gain: Any  # [D]
    mlp_shift: Any
    gates: Any  # [G, D] or None


class _Kept(NamedTuple):
    """What forward keeps for backward."""

    memories: Any  # [T, B, N, D], after the reset and with the embedding
    qkv: Any  # [T, B, N, Q], normalised
    scores: Any  # [T, B, N, N+1, H]; last, the input's row
    peaks: Any  # [T, B, N, H]: log of the sum of the scores' exponentials
    attended: Any  # [T, B, N, D]
    attention_normal: Any  # [T, B, N, D]
    mlp_inputs: Any  # [L, T, B, N, D]
    mlp_normal: Any  # [T, B, N, D]
    gates: Any  # [T, B, N, G] or None; after the sigmoid
    rstds: Any  # [3, T, B, N]: 1/σ of queries, keys and values, after attention, after the MLP


class _Gradients(NamedTuple):
    """The gradients that backward writes, each as wide as its variable."""

    memories: Any
    qkv: Any  # with gain and bias
    projected: Any  # queries, keys and values before their LayerNorm
    scores: Any
    attended: Any
    attention_norm: Any  # with gain and bias
    mlp: Any  # of each layer's product
    mlp_norm: Any  # with gain and bias
    gates: Any  # before the sigmoid


@dataclass(frozen=True)
class _Sizes:
    """What the kernels are compiled for; heads, key and head as padded."""

    real_heads: int
    real_key: int
    real_head: int
    slots: int
    heads: int
    key: int
    head: int
    layers: int
    gates: str
    lanes: int  # of a program
    rows: int  # of a program, at least lanes * slots

    @property
    def keys(self) -> int:
        return self.heads * self.key

    @property
    def width(self) -> int:
        return self.heads * self.head

    @property
    def qkv(self) -> int:
        return 2 * self.keys + self.width

    @property
    def gate(self) -> int:
        return 1 if self.gates == "memory" else self.width

    @property
    def real_width(self) -> int:
        return self.real_heads * self.real_head

    @property
    def real_qkv(self) -> int:
        return self.real_heads * (2 * self.real_key + self.real_head)

    @property
    def scale(self) -> float:
        return self.real_key**-0.5


@triton.jit
def _tanh(x):
    """A series near 0, where the exponential form would cancel."""
    square = x * x
    series = x * (1 - square * (1 / 3 - square * (2 / 15 - square * (17 / 315 - square * (62 / 2835)))))
    decay = tl.exp(-2 * tl.abs(x))
    ratio = (1 - decay) / (1 + decay)
    return tl.where(square < 0.04, series, tl.where(x < 0, -ratio, ratio))


@triton.jit
def _own(lanes, S: tl.constexpr):
    """The program's rows of one step and which of them exist: both [ROWS]."""
    within = tl.arange(0, S.rows)
    rows = tl.program_id(0).to(tl.int64) * (S.lanes * S.slots) + within
    return rows, (within < S.lanes * S.slots) & (rows < lanes * S.slots)


@triton.jit
def _real(SIZE: tl.constexpr, REAL_SIZE: tl.constexpr, S: tl.constexpr):
    """Which columns of heads SIZE wide are not padding: [1, heads * SIZE]."""
    column = tl.arange(0, S.heads * SIZE)[None, :]
    return (column // SIZE < S.real_heads) & (column % SIZE < REAL_SIZE)


@triton.jit
def _per_head(x, SIZE: tl.constexpr, S: tl.constexpr):
    """Sums over each head's columns: [ROWS, heads * SIZE] to [ROWS, heads]."""
    ROWS: tl.constexpr = S.rows
    HEADS: tl.constexpr = S.heads
    return tl.sum(tl.reshape(x, [ROWS, HEADS, SIZE]), axis=2)


@triton.jit
def _spread(x, SIZE: tl.constexpr, S: tl.constexpr):
    """Copies to each head's columns: [ROWS, heads] to [ROWS, heads * SIZE]."""
    ROWS: tl.constexpr = S.rows
    HEADS: tl.constexpr = S.heads
    return tl.reshape(tl.broadcast_to(x[:, :, None], [ROWS, HEADS, SIZE]), [ROWS, HEADS * SIZE])


@triton.jit
def _load(x, rows, ok, WIDTH: tl.constexpr, START: tl.constexpr, COUNT: tl.constexpr):
    """COUNT columns from START on of rows of x `[..., WIDTH]`; 0 in rows that are not ok."""
    column = START + tl.arange(0, COUNT)
    return tl.load(x + rows[:, None] * WIDTH + column[None, :], mask=ok[:, None], other=0.0)


@triton.jit
def _store(x, rows, ok, WIDTH: tl.constexpr, START: tl.constexpr, COUNT: tl.constexpr, value):
    column = START + tl.arange(0, COUNT)
    tl.store(x + rows[:, None] * WIDTH + column[None, :], value, mask=ok[:, None])


@triton.jit
def _vector(x, START: tl.constexpr, COUNT: tl.constexpr):
    """COUNT numbers from START on, the same for all rows: [1, COUNT]."""
    return tl.load(x + START + tl.arange(0, COUNT))[None, :]


@triton.jit
def _load_qkv(x, rows, ok, S: tl.constexpr):
    KEYS: tl.constexpr = S.keys
    query = _load(x, rows, ok, S.qkv, 0, KEYS)
    key = _load(x, rows, ok, S.qkv, KEYS, KEYS)
    return query, key, _load(x, rows, ok, S.qkv, 2 * KEYS, S.width)


@triton.jit
def _store_qkv(x, rows, ok, query, key, value, S: tl.constexpr):
    KEYS: tl.constexpr = S.keys
    _store(x, rows, ok, S.qkv, 0, KEYS, query)
    _store(x, rows, ok, S.qkv, KEYS, KEYS, key)
    _store(x, rows, ok, S.qkv, 2 * KEYS, S.width, value)


@triton.jit
def _affine_qkv(K, W, rows, ok, START: tl.constexpr, COUNT: tl.constexpr, S: tl.constexpr):
    """Queries, keys or values of rows: the normalised ones in K, with the LayerNorm's gain and bias."""
    normal = _load(K.qkv, rows, ok, S.qkv, START, COUNT)
    return normal * _vector(W.qkv_gain, START, COUNT) + _vector(W.qkv_shift, START, COUNT)


@triton.jit
def _product(
    total, x, rows, ok, WIDTH: tl.constexpr, weight, COUNT: tl.constexpr,
    FORWARD: tl.constexpr, TANH: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    """total [ROWS, COUNT] plus x `[..., WIDTH]` times weight, a matrix of rows D wide (FORWARD: its transpose)."""
    column = tl.arange(0, COUNT)[None, :]
    for start in range(0, WIDTH, BLOCK):
        inner = start + tl.arange(0, BLOCK)
        part = tl.load(x + rows[:, None] * WIDTH + inner[None, :], mask=ok[:, None], other=0.0)
        if TANH:
            part = _tanh(part)
        at = (column * S.width + inner[:, None]) if FORWARD else (inner[:, None] * S.width + column)
        factor = tl.load(weight + at)
        total = tl.dot(part, factor, total, input_precision="ieee")
    return total


@triton.jit
def _linear(x, rows, ok, weight, bias, START: tl.constexpr, COUNT: tl.constexpr, S: tl.constexpr):
    """x weightᵀ + bias for rows of x `[..., D]`, COUNT columns from START on."""
    ROWS: tl.constexpr = S.rows
    total = tl.broadcast_to(_vector(bias, START, COUNT), [ROWS, COUNT])
    return _product(total, x, rows, ok, S.width, weight + START * S.width, COUNT, True, False, S)


@triton.jit
def _normalize(x, real, S: tl.constexpr):
    """(x - mean) / σ of each row, and 1 / σ; the padding of x, which is 0, stays 0."""
    centred = tl.where(real, x - (tl.sum(x, axis=1) / S.real_width)[:, None], 0.0)
    rstd = 1 / tl.sqrt(tl.sum(centred * centred, axis=1) / S.real_width + EPSILON)
    return centred * rstd[:, None], rstd


@triton.jit
def _normalize_backward(d_normal, normal, rstd, real, S: tl.constexpr):
    """From the gradient of a LayerNorm's normalised rows to that of its input."""
    mean = tl.sum(d_normal, axis=1) / S.real_width
    slope = tl.sum(d_normal * normal, axis=1) / S.real_width
    return tl.where(real, (d_normal - mean[:, None] - normal * slope[:, None]) * rstd[:, None], 0.0)


@triton.jit
def _mean_qkv(query, key, value, S: tl.constexpr):
    """Means over the columns of all three: [ROWS]."""
    return (tl.sum(query, axis=1) + tl.sum(key, axis=1) + tl.sum(value, axis=1)) / S.real_qkv


@triton.jit
def _project(W, K, rows, ok, real, S: tl.constexpr):
    """Stores the memory's queries, keys and values, normalised together; returns the queries with gain and bias."""
    KEYS: tl.constexpr = S.keys
    query = _linear(K.memories, rows, ok, W.qkv, W.qkv_bias, 0, KEYS, S)
    key = _linear(K.memories, rows, ok, W.qkv, W.qkv_bias, KEYS, KEYS, S)
    value = _linear(K.memories, rows, ok, W.qkv, W.qkv_bias, 2 * KEYS, S.width, S)
    mean = _mean_qkv(query, key, value, S)[:, None]
    key_real = _real(S.key, S.real_key, S)
    query = tl.where(key_real, query - mean, 0.0)
    key = tl.where(key_real, key - mean, 0.0)
    value = tl.where(real, value - mean, 0.0)
    rstd = 1 / tl.sqrt(_mean_qkv(query * query, key * key, value * value, S) + EPSILON)
    query *= rstd[:, None]
    _store_qkv(K.qkv, rows, ok, query, key * rstd[:, None], value * rstd[:, None], S)
    tl.store(K.rstds + rows, rstd, mask=ok)
    return query * _vector(W.qkv_gain, 0, KEYS) + _vector(W.qkv_shift, 0, KEYS)


@triton.jit
def _attend(query, X, W, K, rows, inputs, ok, slot, S: tl.constexpr):
    """Each row's attention output, [ROWS, D]: softmax over the input's row and its lane's slots, one after another."""
    ROWS: tl.constexpr = S.rows
    HEADS: tl.constexpr = S.heads
    KEYS: tl.constexpr = S.keys
    KEPT: tl.constexpr = (S.slots + 1) * HEADS
    score = _per_head(query * _load(X.key, inputs, ok, KEYS, 0, KEYS), S.key, S) * S.scale
    _store(K.scores + S.slots * HEADS, rows, ok, KEPT, 0, HEADS, score)
    peak = score
    total = tl.full([ROWS, HEADS], 1.0, tl.float32)
    found = _load(X.value, inputs, ok, S.width, 0, S.width)
    for source in range(S.slots):
        sources = rows - slot + source
        key = _affine_qkv(K, W, sources, ok, KEYS, KEYS, S)
        value = _affine_qkv(K, W, sources, ok, 2 * KEYS, S.width, S)
        score = _per_head(query * key, S.key, S) * S.scale
        _store(K.scores + source * HEADS, rows, ok, KEPT, 0, HEADS, score)
        higher = tl.maximum(peak, score)
        keep, weight = tl.exp(peak - higher), tl.exp(score - higher)
        peak, total = higher, total * keep + weight
        found = found * _spread(keep, S.head, S) + value * _spread(weight, S.head, S)
    _store(K.peaks, rows, ok, HEADS, 0, HEADS, peak + tl.log(total))
    return found / _spread(total, S.head, S)


@triton.jit
def _gated(memory, carried, x, X, W, K, rows, inputs, ok, S: tl.constexpr):
    """The next memory, from `carried` and the candidate `x`; stores the gates, which read `memory`."""
    D: tl.constexpr = S.width
    if S.gates == "none":
        new = x
    elif S.gates == "coupled":
        forget_gate = _load(X.gates, inputs, ok, D, 0, D)
        forget_gate = tl.sigmoid(_product(forget_gate, K.memories, rows, ok, D, W.gates, D, True, True, S))
        _store(K.gates, rows, ok, D, 0, D, forget_gate)
        new = (1 - forget_gate) * _tanh(x) + forget_gate * carried
    elif S.gates == "unit":
        input_gate = _load(X.gates, inputs, ok, 2 * D, 0, D)
        input_gate = tl.sigmoid(_product(input_gate, K.memories, rows, ok, D, W.gates, D, True, True, S))
        forget_gate = _load(X.gates, inputs, ok, 2 * D, D, D)
        forget_gate = tl.sigmoid(_product(forget_gate, K.memories, rows, ok, D, W.gates + D * D, D, True, True, S))
        _store(K.gates, rows, ok, 2 * D, 0, D, input_gate)
        _store(K.gates, rows, ok, 2 * D, D, D, forget_gate)
        new = input_gate * _tanh(x) + forget_gate * carried
    else:
        squashed = _tanh(memory)
        input_gate = tl.sum(squashed * _vector(W.gates, 0, D), axis=1)[:, None]
        input_gate = tl.sigmoid(input_gate + _load(X.gates, inputs, ok, 2, 0, 1))
        forget_gate = tl.sum(squashed * _vector(W.gates, D, D), axis=1)[:, None]
        forget_gate = tl.sigmoid(forget_gate + _load(X.gates, inputs, ok, 2, 1, 1))
        _store(K.gates, rows, ok, 2, 0, 1, input_gate)
        _store(K.gates, rows, ok, 2, 1, 1, forget_gate)
        new = input_gate * _tanh(x) + forget_gate * carried
    return new


@triton.jit(do_not_specialize=["steps", "lanes"])
def _forward(X, W, K, outputs, steps, lanes, SAVED: tl.constexpr, S: tl.constexpr):
    """One program: some lanes through all steps. SAVED: 1 to keep every step for backward, 0 to overwrite it."""
    D: tl.constexpr = S.width
    LAYERS: tl.constexpr = S.layers
    own, ok = _own(lanes, S)
    lane, slot = own // S.slots, own % S.slots
    real = _real(S.head, S.real_head, S)
    per_layer = lanes * S.slots * (steps * SAVED + 1 - SAVED)  # rows
    memory = _load(X.state, own, ok, D, 0, D)
    for t in range(steps):
        rows = own + t * SAVED * lanes * S.slots  # where this step is kept
        inputs = t * lanes + lane
        begins = (tl.load(X.should_reset + inputs, mask=ok, other=0) != 0) & ok
        memory = tl.where(begins[:, None], _load(X.initial, slot, begins, D, 0, D), memory)
        carried = memory
        memory += _load(X.embedding, slot, ok, D, 0, D)
        _store(K.memories, rows, ok, D, 0, D, memory)
        tl.debug_barrier()
        query = _project(W, K, rows, ok, real, S)
        tl.debug_barrier()
        found = _attend(query, X, W, K, rows, inputs, ok, slot, S)
        _store(K.attended, rows, ok, D, 0, D, found)
        normal, rstd = _normalize(memory + found, real, S)
        _store(K.attention_normal, rows, ok, D, 0, D, normal)
        tl.store(K.rstds + per_layer + rows, rstd, mask=ok)
        x = normal * _vector(W.attention_gain, 0, D) + _vector(W.attention_shift, 0, D)
        y = x
        for layer in tl.static_range(LAYERS):
            kept = rows + layer * per_layer
            _store(K.mlp_inputs, kept, ok, D, 0, D, y)
            tl.debug_barrier()
            y = _linear(K.mlp_inputs, kept, ok, W.mlp + layer * D * D, W.mlp_bias + layer * D, 0, D, S)
            if layer < LAYERS - 1:
                y = tl.maximum(y, 0.0)
        normal, rstd = _normalize(x + y, real, S)
        _store(K.mlp_normal, rows, ok, D, 0, D, normal)
        tl.store(K.rstds + 2 * per_layer + rows, rstd, mask=ok)
        x = normal * _vector(W.mlp_gain, 0, D) + _vector(W.mlp_shift, 0, D)
        memory = _gated(memory, carried, x, X, W, K, rows, inputs, ok, S)
        _store(outputs, own + t * lanes * S.slots, ok, D, 0, D, memory)
        tl.debug_barrier()  # unless SAVED, the next step overwrites what this one has read


@triton.jit
def _gated_backward(d_new, proposed, memory, carried, W, K, G, rows, ok, S: tl.constexpr):
    """Gradients of `proposed`, the candidate's tanh, and of the memory; stores those of the gates."""
    ROWS: tl.constexpr = S.rows
    D: tl.constexpr = S.width
    GATES: tl.constexpr = S.gate if S.gates == "coupled" else 2 * S.gate  # width of them all
    forget_gate = _load(K.gates, rows, ok, GATES, GATES - S.gate, S.gate)
    if S.gates == "coupled":
        input_gate = 1 - forget_gate
        d_forget = d_new * (carried - proposed) * forget_gate * input_gate
    else:
        input_gate = _load(K.gates, rows, ok, GATES, 0, S.gate)
        d_input, d_forget = d_new * proposed, d_new * carried
        if S.gates == "memory":
            d_input, d_forget = tl.sum(d_input, axis=1)[:, None], tl.sum(d_forget, axis=1)[:, None]
        d_input *= input_gate * (1 - input_gate)
        d_forget *= forget_gate * (1 - forget_gate)
        _store(G.gates, rows, ok, GATES, 0, S.gate, d_input)
    _store(G.gates, rows, ok, GATES, GATES - S.gate, S.gate, d_forget)
    if S.gates == "memory":
        d_squashed = d_input * _vector(W.gates, 0, D) + d_forget * _vector(W.gates, D, D)
    else:
        tl.debug_barrier()
        d_squashed = tl.zeros([ROWS, D], tl.float32)
        d_squashed = _product(d_squashed, G.gates, rows, ok, GATES, W.gates, D, False, False, S)
    squashed = _tanh(memory)
    return d_new * input_gate, d_new * forget_gate + d_squashed * (1 - squashed * squashed)


@triton.jit
def _attend_backward(d_found, X, W, K, G, rows, inputs, ok, slot, S: tl.constexpr):
    """Gradients of each row's query, key and value from those of the rows' attention outputs, in G.attended.

    All rows of the lane read a key and a value: their gradients are summed over these rows, one at a time.
    """
    ROWS: tl.constexpr = S.rows
    HEADS: tl.constexpr = S.heads
    KEYS: tl.constexpr = S.keys
    D: tl.constexpr = S.width
    KEPT: tl.constexpr = (S.slots + 1) * HEADS
    peak = _load(K.peaks, rows, ok, HEADS, 0, HEADS)
    mean = _per_head(d_found * _load(K.attended, rows, ok, D, 0, D), S.head, S)
    weight = tl.exp(_load(K.scores + S.slots * HEADS, rows, ok, KEPT, 0, HEADS) - peak)
    d_score = weight * (_per_head(d_found * _load(X.value, inputs, ok, D, 0, D), S.head, S) - mean) * S.scale
    _store(G.scores + S.slots * HEADS, rows, ok, KEPT, 0, HEADS, d_score)
    d_query = _load(X.key, inputs, ok, KEYS, 0, KEYS) * _spread(d_score, S.key, S)
    for source in range(S.slots):
        sources = rows - slot + source
        weight = tl.exp(_load(K.scores + source * HEADS, rows, ok, KEPT, 0, HEADS) - peak)
        value = _affine_qkv(K, W, sources, ok, 2 * KEYS, D, S)
        d_score = weight * (_per_head(d_found * value, S.head, S) - mean) * S.scale
        _store(G.scores + source * HEADS, rows, ok, KEPT, 0, HEADS, d_score)
        d_query += _affine_qkv(K, W, sources, ok, KEYS, KEYS, S) * _spread(d_score, S.key, S)
    tl.debug_barrier()
    d_key, d_value = tl.zeros([ROWS, KEYS], tl.float32), tl.zeros([ROWS, D], tl.float32)
    for reader in range(S.slots):
        readers = rows - slot + reader
        read = readers * (S.slots + 1) + slot  # what the reader took from this row
        weight = tl.exp(_load(K.scores, read, ok, HEADS, 0, HEADS) - _load(K.peaks, readers, ok, HEADS, 0, HEADS))
        d_score = _load(G.scores, read, ok, HEADS, 0, HEADS)
        d_key += _affine_qkv(K, W, readers, ok, 0, KEYS, S) * _spread(d_score, S.key, S)
        d_value += _load(G.attended, readers, ok, D, 0, D) * _spread(weight, S.head, S)
    return d_query, d_key, d_value


@triton.jit
def _project_backward(d_memory, d_query, d_key, d_value, W, K, G, rows, ok, real, S: tl.constexpr):
    """Adds the gradient through queries, keys and values to the memory's."""
    KEYS: tl.constexpr = S.keys
    D: tl.constexpr = S.width
    _store_qkv(G.qkv, rows, ok, d_query, d_key, d_value, S)
    d_query *= _vector(W.qkv_gain, 0, KEYS)
    d_key *= _vector(W.qkv_gain, KEYS, KEYS)
    d_value *= _vector(W.qkv_gain, 2 * KEYS, D)
    query, key, value = _load_qkv(K.qkv, rows, ok, S)
    mean = _mean_qkv(d_query, d_key, d_value, S)[:, None]
    slope = _mean_qkv(d_query * query, d_key * key, d_value * value, S)[:, None]
    rstd = tl.load(K.rstds + rows, mask=ok, other=0.0)[:, None]
    key_real = _real(S.key, S.real_key, S)
    d_query = tl.where(key_real, (d_query - mean - query * slope) * rstd, 0.0)
    d_key = tl.where(key_real, (d_key - mean - key * slope) * rstd, 0.0)
    d_value = tl.where(real, (d_value - mean - value * slope) * rstd, 0.0)
    _store_qkv(G.projected, rows, ok, d_query, d_key, d_value, S)
    tl.debug_barrier()
    return _product(d_memory, G.projected, rows, ok, S.qkv, W.qkv, D, False, False, S)


@triton.jit(do_not_specialize=["steps", "lanes"])
def _backward(X, W, K, G, d_outputs, steps, lanes, S: tl.constexpr):
    """One program: some lanes from the last step to the first."""
    ROWS: tl.constexpr = S.rows
    D: tl.constexpr = S.width
    LAYERS: tl.constexpr = S.layers
    own, ok = _own(lanes, S)
    lane, slot = own // S.slots, own % S.slots
    real = _real(S.head, S.real_head, S)
    per_layer = lanes * S.slots * steps  # rows
    d_memory = tl.zeros([ROWS, D], tl.float32)
    for back in range(steps):
        t = steps - 1 - back
        rows = own + t * lanes * S.slots
        inputs = t * lanes + lane
        d_x = d_memory + _load(d_outputs, rows, ok, D, 0, D)
        normal = _load(K.mlp_normal, rows, ok, D, 0, D)
        if S.gates == "none":
            d_memory = tl.zeros([ROWS, D], tl.float32)
        else:
            proposed = _tanh(normal * _vector(W.mlp_gain, 0, D) + _vector(W.mlp_shift, 0, D))
            memory = _load(K.memories, rows, ok, D, 0, D)
            carried = memory - _load(X.embedding, slot, ok, D, 0, D)
            d_x, d_memory = _gated_backward(d_x, proposed, memory, carried, W, K, G, rows, ok, S)
            d_x *= 1 - proposed * proposed

        _store(G.mlp_norm, rows, ok, D, 0, D, d_x)
        rstd = tl.load(K.rstds + 2 * per_layer + rows, mask=ok, other=0.0)
        d_x = _normalize_backward(d_x * _vector(W.mlp_gain, 0, D), normal, rstd, real, S)
        d_y = d_x
        for forth in tl.static_range(LAYERS):
            kept = rows + (LAYERS - 1 - forth) * per_layer
            _store(G.mlp, kept, ok, D, 0, D, d_y)
            tl.debug_barrier()
            weight = W.mlp + (LAYERS - 1 - forth) * D * D
            d_y = _product(tl.zeros([ROWS, D], tl.float32), G.mlp, kept, ok, D, weight, D, False, False, S)
            if forth < LAYERS - 1:  # back through the ReLU
                d_y = tl.where(_load(K.mlp_inputs, kept, ok, D, 0, D) > 0, d_y, 0.0)
        d_x += d_y

        _store(G.attention_norm, rows, ok, D, 0, D, d_x)
        normal = _load(K.attention_normal, rows, ok, D, 0, D)
        rstd = tl.load(K.rstds + per_layer + rows, mask=ok, other=0.0)
        d_found = _normalize_backward(d_x * _vector(W.attention_gain, 0, D), normal, rstd, real, S)
        _store(G.attended, rows, ok, D, 0, D, d_found)
        d_query, d_key, d_value = _attend_backward(d_found, X, W, K, G, rows, inputs, ok, slot, S)
        d_memory = _project_backward(d_memory + d_found, d_query, d_key, d_value, W, K, G, rows, ok, real, S)
        _store(G.memories, rows, ok, D, 0, D, d_memory)
        begins = tl.load(X.should_reset + inputs, mask=ok, other=0) != 0
        d_memory = tl.where(begins[:, None], 0.0, d_memory)
