"""The windowed Transformer in NumPy: slow, obvious, one lane, one step and one head at a time.

Written from the equations (LayerNorm before attention and MLP, a key per distance from sinusoids), not from the torch
code. Weights are taken by name from a state_dict as float64 arrays. A layer's past is a list of its normalised inputs,
the oldest first.
"""

import numpy as np

Weights = dict[str, np.ndarray]
Past = list[np.ndarray]  # M vectors [D]


def affine(weights: Weights, name: str, x: np.ndarray) -> np.ndarray:
    return weights[f"{name}.weight"] @ x + weights[f"{name}.bias"]


def layer_norm(weights: Weights, name: str, x: np.ndarray) -> np.ndarray:
    normalised = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
    return weights[f"{name}.weight"] * normalised + weights[f"{name}.bias"]


def sinusoids(distance: int, width: int) -> np.ndarray:
    angles = [distance / 10_000 ** (i / width) for i in range(0, width, 2)]
    return np.array([*map(np.sin, angles), *map(np.cos, angles)])[:width]


def layer_attention(weights: Weights, name: str, heads: int, u: np.ndarray, seen: Past) -> np.ndarray:
    """The attention weights `[heads, M+1]` from u to what is seen."""
    query = affine(weights, f"{name}.query", u)
    size, shares = len(u) // heads, []
    for head in range(heads):
        rows = slice(head * size, (head + 1) * size)
        scores = []
        for index, other in enumerate(seen):
            key = weights[f"{name}.key"][rows] @ other
            of_distance = weights[f"{name}.distance"][rows] @ sinusoids(len(seen) - 1 - index, len(u))
            scores.append(query[rows] @ (key + of_distance) / np.sqrt(size))
        shares.append(np.exp(scores) / np.exp(scores).sum())
    return np.array(shares)


def layer_step(weights: Weights, name: str, heads: int, x: np.ndarray, past: Past) -> tuple[np.ndarray, Past]:
    u = layer_norm(weights, f"{name}.norm", x)
    seen = [*past, u]
    sums = []
    for head, shares in enumerate(layer_attention(weights, name, heads, u, seen)):
        values = weights[f"{name}.value"].reshape(heads, -1, len(u))[head]
        sums += list(sum(share * (values @ other) for share, other in zip(shares, seen, strict=True)))
    x = x + affine(weights, f"{name}.output", np.array(sums))
    between = np.maximum(affine(weights, f"{name}.mlp.0", layer_norm(weights, f"{name}.mlp_norm", x)), 0)
    return x + affine(weights, f"{name}.mlp.1", between), seen[1:]


def transformer_unroll(
    weights: Weights, heads: int, inputs: np.ndarray, should_reset: np.ndarray, memory: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Inputs `[T, B, I]`, flags `[T, B]`, memory `[B, layers, M, D]`; outputs `[T, B, D]` and the last memory."""
    outputs, last = [], []
    for lane, flags in enumerate(should_reset.T):
        pasts = [list(past) for past in memory[lane]]
        for t, begins in enumerate(flags):
            if begins:
                pasts = [[np.zeros_like(u) for u in past] for past in pasts]
            x = affine(weights, "input", inputs[t, lane])
            for number, past in enumerate(pasts):
                x, pasts[number] = layer_step(weights, f"layers.{number}", heads, x, past)
            outputs.append(x)
        last.append(pasts)
    steps, lanes = should_reset.shape
    return np.array(outputs).reshape(lanes, steps, -1).swapaxes(0, 1), np.array(last)
