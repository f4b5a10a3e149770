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
from rmc_agents.cores import LSTM, RMC
from rmc_agents.kernels.lstm import triton as triton_lstm
from rmc_agents.kernels.rmc import triton as triton_rmc

class Hopper:
    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
    get_current_device = get_current_stream = staticmethod(lambda *device: 0)
    get_active_torch_device = staticmethod(lambda: torch.device("cuda"))

class Compiled:
    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        return lambda *a, **options: print("mma" in self.kernel.warmup(*a, grid=grid, **options).asm["ptx"])

def unroll(unroll, core, *options):
    inputs, should_reset = torch.zeros(1, 2, 5), torch.zeros(1, 2, dtype=torch.bool)
    state = core.initial_state(2)
    outputs, _ = unroll(inputs, should_reset, state, core.initial_leaves(), core.weights(), *options)
    outputs.sum().backward()

triton.runtime.driver.set_active(Hopper())
for module in (triton_rmc, triton_lstm):
    module.supports = lambda *arguments: None  # the tensors here are on the CPU
    module._forward, module._backward = Compiled(module._forward), Compiled(module._backward)
unroll(triton_rmc.rmc_unroll, RMC(5, mem_slots=3, head_size=5, num_heads=3, key_size=7), "bf16")
unroll(triton_lstm.lstm_unroll, LSTM(5, hidden_size=8))
"""


def test_kernels_compile_for_a_gpu_that_is_not_there(tmp_path):
    """The interpreter takes more than the compiler does."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-W", "ignore", "-c", COMPILE]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["True", "True", "False", "False"]
