"""Torch's modes (tracing, autocast, inference, gradients, threads, eval); the process's random numbers and memory."""

import ctypes
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from threading import Lock, get_ident

import numpy as np
import torch
from torch import Tensor, nn


def by_torch(gradient: Tensor) -> bool:
    """Whether a backward pass needs torch's own operations: with create_graph=True or is_grads_batched=True."""
    return torch.is_grad_enabled() or torch._C._functorch.is_legacy_batchedtensor(gradient)


def tracing() -> bool:
    """Whether only torch operators may run, because torch traces or transforms the code.

    It traces in jit.trace, onnx.export, export and compile, and transforms in torch.func's grad, vmap and so on, and in
    forward-mode differentiation.
    """
    if torch.jit.is_tracing() or torch.compiler.is_compiling() or torch.autograd.forward_ad._current_level >= 0:
        return True
    return torch._C._functorch.peek_interpreter_stack() is not None


def check_backward(gradient: Tensor) -> None:
    """Raises RuntimeError in a backward pass that is to be differentiated again, or that has a batch of gradients."""
    remedy = "set the core's attribute backend = 'reference'"
    if torch.is_grad_enabled():
        raise RuntimeError(f"this backend has no second derivatives (create_graph=True): {remedy}")
    if torch._C._functorch.is_legacy_batchedtensor(gradient):
        raise RuntimeError(f"this backend has no batched gradients (vectorize or is_grads_batched=True): {remedy}")


def autocasts(device_type: str) -> bool:
    """Whether autocast is on for a type of device; some, like meta, do not have it."""
    return torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)


def no_autocast(device_type: str) -> AbstractContextManager[object]:
    """Context without autocast: operators keep the dtypes of their inputs. A no-op if autocast is off."""
    return torch.autocast(device_type, enabled=False) if autocasts(device_type) else nullcontext()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Context for work in CPU buffers that outlive the call, independent of the caller's modes.

    For example, a tensor created in inference mode can never be written outside it.
    """
    with torch.inference_mode(False), torch.no_grad(), no_autocast("cpu"):  # the first enables gradients
        yield


_lock = Lock()
_torch_threads_before: dict[int, int] = {}  # torch_threads, for each of Python's threads: the number before
_modes_before: dict[int, tuple[int, list[tuple[nn.Module, bool]]]] = {}  # eval_mode, by id: users, modes before


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Context with this number of CPU threads for torch; restores the previous number at its end.

    New threads of Python take torch's last number, so one that comes while others are in this context restores theirs.
    """
    thread = get_ident()
    with _lock:
        before, is_outermost = torch.get_num_threads(), thread not in _torch_threads_before
        if is_outermost:
            before = next(iter(_torch_threads_before.values()), before)
            _torch_threads_before[thread] = before
        torch.set_num_threads(number)
    try:
        yield
    finally:
        with _lock:
            torch.set_num_threads(before)
            if is_outermost:
                del _torch_threads_before[thread]


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Context in which a module is in eval mode. Afterwards each of its parts has its own mode again; if several
    threads are in this context with the module, when the last of them leaves."""
    key = id(module)
    with _lock:
        users, modes = _modes_before.get(key) or (0, [(part, part.training) for part in module.modules()])
        _modes_before[key] = users + 1, modes
        module.eval()
    try:
        yield
    finally:
        with _lock:
            users, modes = _modes_before.pop(key)
            if users > 1:
                _modes_before[key] = users - 1, modes
            else:
                for part, mode in modes:
                    part.training = mode


@contextmanager
def untouched_generators() -> Iterator[None]:
    """Context that restores the global random generators, because custom environments may use them."""
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


def reuse_freed_memory() -> None:
    """Let the process keep freed memory for later tensors. Does nothing with another C library than glibc.

    By default glibc returns large blocks to the system, which clears their pages for the next tensor: up to a sixth of
    the time of training.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
            mallopt(parameter, 2**30)
