"""How the kernels meet torch's modes: tracing, autocast, inference and gradients."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch


def tracing() -> bool:
    """Whether only torch's own operators can run: it traces or transforms what runs.

    The former in jit.trace, onnx.export, export and compile, the latter in torch.func's grad, vmap and so on.
    """
    if torch.jit.is_tracing() or torch.compiler.is_compiling():
        return True
    return torch._C._functorch.peek_interpreter_stack() is not None


def no_autocast(device_type: str) -> AbstractContextManager[object]:
    """Lets operators keep the dtypes they are given; without autocast it is nothing at all, and leaves no trace."""
    return torch.autocast(device_type, enabled=False) if torch.is_autocast_enabled(device_type) else nullcontext()


@contextmanager
def undisturbed() -> Iterator[None]:
    """For work on the CPU in buffers that outlive the call: the caller's modes must not leave their mark on them.

    A tensor made in inference mode, for one, can never again be written outside it.
    """
    with torch.inference_mode(False), torch.no_grad(), no_autocast("cpu"):  # the first enables gradients
        yield
