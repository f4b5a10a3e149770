"""Which code runs a core's scan: one contract (see `reference`), several backends.

| backend   | cores               | where                                                       |
|-----------|---------------------|-------------------------------------------------------------|
| reference | all                 | anywhere, any dtype; plain torch, the specification         |
| fused     | lstm, gru, rnn, rmc | CPU, float32; rmc with one block                            |
| triton    | lstm, rmc           | CUDA, float32, with the extra `triton`; rmc with one block  |

`auto` takes fused where it can do it, else reference; triton has to be asked for.
"""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

Backend = Literal["auto", "reference", "fused", "triton"]


class Scan(NamedTuple):
    """A core's scan on one backend."""

    backend: str
    unroll: Callable[..., tuple[Tensor, Any]]  # (inputs, should_reset, state, initial_state, weights)
    tape: Any  # the class of its tape, or None: see `fused.tape`


def choose(core: str, backend: str, weights: Any, initial_state: Any) -> Scan:
    """The scan of a core.

    Args:
      core: 'rmc', 'lstm', 'gru', 'rnn' or 'relational_rnn'.
      backend: one of `Backend`.
      weights: the core's.
      initial_state: the core's; its device and dtype are those that the scan is to run with.

    Raises:
      ValueError: for a backend that does not exist or cannot do it, with the reason.
    """
    if backend not in get_args(Backend):
        raise ValueError(f"backend: expected one of {', '.join(get_args(Backend))}, got {backend!r}")
    wanted = [backend] if backend != "auto" else ["fused", "reference"]
    for name in wanted:
        obstacle = None if name == "reference" else _obstacle(core, name, weights, initial_state)
        if obstacle is None:
            return _load(core, name)
    raise ValueError(f"backend {backend}: {obstacle}; --backend auto takes one that can do it")


def _obstacle(core: str, backend: str, weights: Any, initial_state: Any) -> str | None:
    """Why a backend cannot run a core, in words; None if it can."""
    cores, device = {"fused": (("lstm", "gru", "rnn", "rmc"), "cpu"), "triton": (("lstm", "rmc"), "cuda")}[backend]
    if core not in cores:
        return f"there is none for core {core.replace('_', '-')}, only for {', '.join(cores)}"
    like = initial_state[0]
    if like.device.type != device or like.dtype != torch.float32:
        dtype = str(like.dtype).removeprefix("torch.")
        return f"expected float32 on {device}, got {dtype} on {like.device.type}"
    if core == "rmc" and len(weights.blocks) != 1:
        return f"expected an rmc with one block, got {len(weights.blocks)}"
    return _triton_obstacle(core, weights, initial_state) if backend == "triton" else None


def _triton_obstacle(core: str, weights: Any, initial_state: Any) -> str | None:
    if find_spec("triton") is None:
        return "it needs Triton: pip install 'rmc-agents[triton]'"
    reason: str | None = import_module(f"rmc_agents.kernels.triton_{core}").supports(weights, initial_state)
    return reason


def _load(core: str, backend: str) -> Scan:
    """Imports what is wanted, and no more: compiling libraries are slow to load."""
    module = import_module(
        {
            "reference": "rmc_agents.kernels.reference",
            "fused": f"rmc_agents.kernels.fused.{core}",
            "triton": f"rmc_agents.kernels.triton_{core}",
        }[backend]
    )
    return Scan(backend, getattr(module, f"{core}_unroll"), getattr(module, f"{core.upper()}Tape", None))
