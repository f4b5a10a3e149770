"""Elementary functions for compiled kernels, written so that LLVM turns loops over them into vector instructions.

Sums may be reassociated (otherwise reductions are not vectorised), but NaN and infinity keep their meaning. Results are
reproducible on one machine. All float32.

Functions that other compiled functions call are `inlined`. Otherwise the cached code and the process that compiles it
would use separately compiled copies, with possibly different orders of summation: the first run would differ from later
ones.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rmc_agents.numba_cache import compiled

float32, int32 = np.float32, np.int32
LOG2_E = float32(1.44269504)
LN2_HIGH, LN2_LOW = float32(0.693359375), float32(-2.12194440e-4)  # their sum is ln 2; n * LN2_HIGH is exact


OPTIONS: Any = {
    "nogil": True,  # threads can run in parallel
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "nsz", "arcp"},
}


def jit(function: Callable[..., Any], **options: Any) -> Any:
    """Compiles a function at its first call, or loads the code from the cache."""
    return compiled(function, Path(__file__).parent, **OPTIONS, **options)


def is_cached() -> bool:
    """Whether compiled kernels are kept for later processes."""
    return sigmoid._cache.cache_path is not None


def inlined(function: Callable[..., Any]) -> Any:
    """As `jit`, for a function that compiled ones call; constants of the caller remain constants inside.

    Called by Python it would crash: what that needs is left out, to compile faster.
    """
    return jit(function, forceinline=True, no_cpython_wrapper=True)


def buffer(*shape: int) -> Tensor:
    """Uninitialised memory for the compiled passes, float32 on the CPU whatever torch's defaults are."""
    return torch.empty(shape, dtype=torch.float32, device="cpu")


def view(x: Tensor) -> np.ndarray:
    """The memory of x as a NumPy array for the compiled passes; a copy if x is not contiguous."""
    return x.detach().contiguous().numpy()


@inlined
def exp(x):
    """e^x to about 1e-7, relatively: 2^n e^r with |r| <= ln(2) / 2, and Taylor's series for e^r."""
    x = min(max(x, float32(-87.0)), float32(88.0))  # beyond, 2^n leaves the normal range
    n = np.floor(x * LOG2_E + float32(0.5))
    r = x - n * LN2_HIGH
    r = r - n * LN2_LOW
    e = float32(1 / 5040)
    e = e * r + float32(1 / 720)
    e = e * r + float32(1 / 120)
    e = e * r + float32(1 / 24)
    e = e * r + float32(1 / 6)
    e = e * r + float32(1 / 2)
    e = e * r + float32(1.0)
    e = e * r + float32(1.0)
    exponent = (int32(n) + int32(127)) << int32(23)  # the bits of 2^n
    return e * int32(exponent).view(np.float32)


@inlined
def sigmoid(x):
    """1 / (1 + e^-x)."""
    return float32(1.0) / (float32(1.0) + exp(-x))


@inlined
def tanh(x):
    """2 σ(2x) - 1, to about 2e-7 absolutely."""
    return float32(1.0) - float32(2.0) / (float32(1.0) + exp(float32(2.0) * x))


@jit
def select_state(should_reset, initial, state, out):
    """out [B, W] = initial [1, W] where should_reset [B], else state [B, W]."""
    for b in range(len(out)):
        source = initial[0] if should_reset[b] else state[b]
        for j in range(out.shape[1]):
            out[b, j] = source[j]


@jit
def select_state_backward(should_reset, d_state, d_initial):
    """In place: where should_reset, d_state [B, W] goes to d_initial [1, W] instead."""
    for b in range(len(d_state)):
        if should_reset[b]:
            for j in range(d_state.shape[1]):
                d_initial[0, j] += d_state[b, j]
                d_state[b, j] = float32(0.0)


@jit
def rectify(x, bias, out):
    """out = max(0, x + bias), [R, D]."""
    for r in range(len(x)):
        for j in range(x.shape[1]):
            out[r, j] = max(x[r, j] + bias[j], float32(0.0))


@jit
def rectify_backward(d_out, out, d_x, d_bias):
    """d_x = d_out where out > 0."""
    for r in range(len(out)):
        for j in range(out.shape[1]):
            d = d_out[r, j] if out[r, j] > float32(0.0) else float32(0.0)
            d_x[r, j] = d
            d_bias[j] += d
