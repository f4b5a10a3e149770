"""Selects the implementation of a core's scan: one interface (see `kernels.reference`), several backends.

| backend   | cores                       | where                                                           |
|-----------|-----------------------------|-----------------------------------------------------------------|
| reference | all                         | anywhere, any dtype; plain torch, the specification             |
| fused     | lstm, gru, mingru, rnn, rmc | CPU, float32; rmc with one block                                |
| triton    | rmc                         | CUDA, float32, with Triton and a C compiler; rmc with one block |

`auto` selects fused or triton where it is supported, else reference. While torch traces, exports, compiles or
transforms (torch.func), the reference always runs: the others do not consist of torch operators.

With precision bf16 the operands of the scan's matrix products are rounded to bfloat16 (fused, where the processor can
multiply it); weights, sums and everything else stay float32.
"""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from rmc_agents.types import Step

from .gru.reference import gru_unroll
from .lstm.reference import lstm_unroll
from .mingru.reference import mingru_unroll
from .modes import tracing
from .products import Precision, bf16_supported
from .relational_rnn.reference import relational_rnn_unroll
from .rmc.reference import rmc_unroll
from .rnn.reference import rnn_unroll

Backend = Literal["auto", "reference", "fused", "triton"]
DEVICES = {"fused": "cpu", "triton": "cuda"}
REFERENCES: dict[str, Callable[..., tuple[Tensor, Any]]] = {
    "gru": gru_unroll,
    "lstm": lstm_unroll,
    "mingru": mingru_unroll,
    "relational_rnn": relational_rnn_unroll,
    "rmc": rmc_unroll,
    "rnn": rnn_unroll,
}


class Scan(NamedTuple):
    """A core's scan on one backend."""

    backend: str
    unroll: Callable[..., tuple[Tensor, Any]]  # (inputs, should_reset, state, initial_state, weights)
    stepping: Callable[..., AbstractContextManager[Step]] | None = None  # (state, initial_state, weights), see `tape`


def choose(core: str, backend: str, precision: str, weights: Any, initial_state: Any) -> Scan:
    """The scan of a core.

    Args:
      core: one of `REFERENCES`: the name of its folder here.
      backend: one of `Backend`.
      precision: one of `Precision`.
      weights: the core's.
      initial_state: the core's; its device and dtype are those that the scan is to run with.

    Raises:
      ValueError: for an unknown backend or one that cannot run the scan, with the reason.
    """
    if tracing():
        return Scan("reference", REFERENCES[core])
    check_names(backend, precision)
    obstacles = {}
    fastest = [name for name, device in DEVICES.items() if device == initial_state[0].device.type]
    for name in [backend] if backend != "auto" else [*fastest, "reference"]:
        obstacles[name] = _obstacle(core, name, precision, weights, initial_state)
        if obstacles[name] is None:
            return _load(core, name, precision)
    raise ValueError("; ".join(f"backend {name}: {obstacle}" for name, obstacle in obstacles.items()))


def check_names(backend: str, precision: str) -> None:
    """Raises ValueError for a backend or a precision that does not exist."""
    for name, value, known in (("backend", backend, Backend), ("precision", precision, Precision)):
        if value not in get_args(known):
            raise ValueError(f"{name}: expected one of {', '.join(get_args(known))}, got {value!r}")


def _obstacle(core: str, backend: str, precision: str, weights: Any, initial_state: Any) -> str | None:
    """The reason why a backend cannot run a core; None if it can."""
    if backend == "reference":
        return None if precision == "float32" else f"expected precision float32, got {precision}"
    cores, device = _cores(backend), DEVICES[backend]
    if core not in cores:
        return f"there is none for core {core.replace('_', '-')}, only for {', '.join(cores)}"
    like = initial_state[0]
    if like.device.type != device or like.dtype != torch.float32:
        dtype = str(like.dtype).removeprefix("torch.")
        return f"expected float32 on {device}, got {dtype} on {like.device.type}"
    if core == "rmc" and len(weights.blocks) != 1:
        return f"expected an rmc with one block, got {len(weights.blocks)}"
    if backend == "triton":
        if precision != "float32":
            return f"expected precision float32, got {precision}"
        if find_spec("triton") is None:
            return "it needs Triton: pip install 'rmc-agents[triton]'"
        if not (os.environ.get("CC") or which("gcc") or which("clang")):
            return "Triton needs a C compiler: install gcc or clang, or set CC"
        from .rmc.triton import obstacle

        return obstacle(weights, initial_state)
    can = precision == "float32" or bf16_supported()
    return None if can else f"this processor has no instructions for precision {precision}"


@cache
def _cores(backend: str) -> list[str]:
    """The cores with this backend: those with a file of its name in their folder."""
    return [core for core in REFERENCES if (Path(__file__).parent / core / f"{backend}.py").exists()]


def _load(core: str, backend: str, precision: str) -> Scan:
    """Import only the selected backend: compiling libraries are slow to load."""
    if backend == "reference":
        return Scan(backend, REFERENCES[core])
    module = import_module(f"rmc_agents.kernels.{core}.{backend}")
    unroll, stepping = getattr(module, f"{core}_unroll"), getattr(module, f"{core}_stepping", None)
    if precision != "float32":
        unroll, stepping = partial(unroll, precision=precision), stepping and partial(stepping, precision=precision)
    return Scan(backend, unroll, stepping)
