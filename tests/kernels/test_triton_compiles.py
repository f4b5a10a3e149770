"""The Triton kernels through the compiler, without a GPU."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton is not installed: pip install rmc-agents[triton]")


pytestmark = pytest.mark.slow


COMPILE = """
import torch, triton
from triton.backends.compiler import GPUTarget
from rmc_agents.cores import RMC
from rmc_agents.kernels.rmc import triton as kernels

class Hopper:
    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
    get_current_device = get_current_stream = staticmethod(lambda *device: 0)
    get_active_torch_device = staticmethod(lambda: torch.device("cuda"))

class Compiled:
    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        return lambda *a, **options: print("fma" in self.kernel.warmup(*a, grid=grid, **options).asm["ptx"])

triton.runtime.driver.set_active(Hopper())
kernels._forward, kernels._backward = Compiled(kernels._forward), Compiled(kernels._backward)
core = RMC(5, mem_slots=2, head_size=3, num_heads=1, key_size=5, attention_mlp_layers=1)
inputs, should_reset = torch.zeros(1, 2, 5), torch.zeros(1, 2, dtype=torch.bool)
arguments = inputs, should_reset, core.initial_state(2), core.initial_leaves(), core.weights()
kernels.rmc_unroll(*arguments)[0].sum().backward()
"""


def test_kernels_compile_for_a_gpu_that_is_not_there(tmp_path):
    """The interpreter takes more than the compiler does."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-W", "ignore", "-c", COMPILE]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["True", "True"]
