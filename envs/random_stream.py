"""A random stream for each lane of a compiled engine, so that a lane depends only on its own seed.

Draw number n = 1, 2, ... of a lane is SplitMix64 (Steele et al., 2014) of (key, n):

    z = key + n * 0x9E3779B97F4A7C15;  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9  (all modulo 2**64)
    z = (z ^ z >> 27) * 0x94D049BB133111EB;  z = z ^ z >> 31
    uniform() = (z >> 11) * 2**-53 in [0, 1);  integer(n) = ((z >> 32) * n) >> 32 in 0..n-1

The compiled functions take any NamedTuple with the fields `key` and `counter`, both uint64 [N].
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rmc_agents import numba_cache

# Without numba's runtime (nothing here allocates) there is no reference counting of the state's arrays, and inlined
# helpers do not copy the state's hundred fields at every call: together five times faster.
_OPTIONS: dict[str, Any] = {"nogil": True, "_nrt": False, "no_cfunc_wrapper": True}


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    """Compiles a function at its first call, or loads the code from the cache."""
    return numba_cache.compiled(function, Path(__file__).parent, **_OPTIONS, **options)


def subroutine(function: Callable[..., Any], **options: Any) -> Any:
    """As `compiled`, for a function that only compiled ones call.

    Called by Python it would crash: what that needs is left out, to compile faster.
    """
    return compiled(function, no_cpython_wrapper=True, **options)


def inlined(function: Callable[..., Any]) -> Any:
    """As `subroutine`, inserted where it is called."""
    return subroutine(function, forceinline=True)


def key_of_seed(seed: int) -> np.uint64:
    """The key of a lane's random stream."""
    return np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]


@inlined
def _draw(state: Any, lane: int) -> np.uint64:
    state.counter[lane] += np.uint64(1)
    z = state.key[lane] + state.counter[lane] * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@inlined
def uniform(state: Any, lane: int) -> float:
    """The lane's next number in [0, 1)."""
    return float(np.int64(_draw(state, lane) >> np.uint64(11))) * 2.0**-53


@inlined
def integer(state: Any, lane: int, limit: int) -> int:
    """The lane's next number in 0..limit-1."""
    return int(np.int64(((_draw(state, lane) >> np.uint64(32)) * np.uint64(limit)) >> np.uint64(32)))
