"""Results of compiled passes must not depend on whether this process compiled them or loaded them from the cache."""

from importlib import import_module
from pathlib import Path

import pytest
from numba.core.dispatcher import Dispatcher

from helpers import forked
from rmc_agents import kernels
from rmc_agents.kernels.rmc.fused_attention import attention_kernels

FOLDER = Path(kernels.__file__).parent
MODULES = ["pointwise", "lookup", *(f"{p.parent.name}.{p.stem}" for p in sorted(FOLDER.glob("*/fused*.py")))]


def is_inlined(function: Dispatcher) -> bool:
    return bool(function.targetoptions.get("forceinline"))


def compiled_functions(module: str) -> list[Dispatcher]:
    found = vars(import_module(f"rmc_agents.kernels.{module}")).values()
    return [each for each in found if isinstance(each, Dispatcher)]


@pytest.mark.parametrize("module", MODULES)
def test_what_a_compiled_function_calls_is_inlined(module: str) -> None:
    """Otherwise the process that compiles would have a separate copy, with possibly another order of summation."""
    functions = compiled_functions(module)
    if module == "rmc.fused_attention":
        functions += attention_kernels(3, 2, 4, 4)
    assert any(not is_inlined(each) for each in functions)
    for function in functions:
        code, known = function.py_func.__code__, function.py_func.__globals__
        called = [known[name] for name in code.co_names if isinstance(known.get(name), Dispatcher)]
        assert all(map(is_inlined, called)), (function, called)


SCRIPT = """
import hashlib

import numba

numba.config.CACHE_DIR = sys.argv[1]
for name in [name for name in sys.modules if name.split(".")[0] == "rmc_agents"]:
    del sys.modules[name]  # what is imported again uses that folder

import torch

from rmc_agents.config import CoreConfig
from rmc_agents.cores import make_core

torch.set_num_threads(1)
torch.manual_seed(0)
STEPS, LANES, INPUT = 3, 6, 21
core = make_core(CoreConfig(core="rnn", hidden_size=72), INPUT)
inputs = torch.randn(STEPS, LANES, INPUT, requires_grad=True)
outputs, state = core.unroll(inputs, torch.rand(STEPS, LANES) < 0.3, core.initial_state(LANES))
(outputs * torch.randn(outputs.shape)).sum().backward()
seen = outputs, *state, inputs.grad, *(p.grad for p in core.parameters())
print(hashlib.sha256(b"".join(x.detach().contiguous().numpy().tobytes() for x in seen)).hexdigest())
"""


@pytest.mark.slow
def test_the_process_that_compiles_computes_what_later_ones_do(tmp_path: Path) -> None:
    """An rnn, which compiles fast; the test above holds for all."""
    cache = tmp_path / "cache"
    compiling = forked.run(SCRIPT, str(cache), log=tmp_path / "first")
    files = {path: path.stat().st_mtime_ns for path in cache.rglob("*.nbc")}
    cached = forked.run(SCRIPT, str(cache), log=tmp_path / "second")
    assert files
    assert files == {path: path.stat().st_mtime_ns for path in cache.rglob("*.nbc")}
    assert compiling == cached != ""
