"""The minGRU in NumPy: slow, obvious, one lane and one unit at a time.

Written from the equations (Feng et al. 2024, with a highway around each layer's state), not from the torch code.
Weights are taken by name from a state_dict as float64 arrays.
"""

import numpy as np

Weights = dict[str, np.ndarray]


def sigmoid(x: float) -> float:
    return 1.0 / (1.0 + np.exp(-x))


def mingru_step(weights: Weights, x: np.ndarray, hidden: list[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
    """One lane, one step: input `[I]`, each layer's h `[H]`; the output `[H]` and each layer's next h."""
    after = []
    for number, before in enumerate(hidden):
        size, name = len(before), f"layers.{number}"
        maps = weights[f"{name}.maps.weight"] @ x + weights[f"{name}.maps.bias"]
        skipped = x
        if f"{name}.skip.weight" in weights:
            skipped = weights[f"{name}.skip.weight"] @ x + weights[f"{name}.skip.bias"]
        new_hidden, output = np.zeros(size), np.zeros(size)
        for j in range(size):
            z, new, o = sigmoid(maps[j]), maps[size + j], sigmoid(maps[2 * size + j])
            new_hidden[j] = (1.0 - z) * before[j] + z * new
            output[j] = o * new_hidden[j] + (1.0 - o) * skipped[j]
        after.append(new_hidden)
        x = output
    return x, after


def mingru_unroll(
    weights: Weights, layers: int, inputs: np.ndarray, should_reset: np.ndarray, hidden: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Inputs `[T, B, I]`, flags `[T, B]`, h of all layers `[B, layers * H]`; outputs `[T, B, H]` and the last h."""
    outputs, last = [], []
    for lane, flags in enumerate(should_reset.T):
        state = np.split(hidden[lane], layers)
        for t, begins in enumerate(flags):
            if begins:
                state = [np.zeros_like(h) for h in state]
            output, state = mingru_step(weights, inputs[t, lane], state)
            outputs.append(output)
        last.append(np.concatenate(state))
    steps, lanes = should_reset.shape
    return np.array(outputs).reshape(lanes, steps, -1).swapaxes(0, 1), np.array(last)
