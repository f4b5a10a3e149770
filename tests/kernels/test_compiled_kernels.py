"""What compiled passes give must not depend on whether this process compiled them or found them compiled."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import hashlib

import torch

from rmc_agents.config import CoreConfig
from rmc_agents.cores import make_core
from rmc_agents.kernels.lookup import rectified_lookup
from rmc_agents.kernels.products import rectified_linear

torch.set_num_threads(1)
STEPS, LANES, INPUT = 3, 6, 21
CORES = {
    "unit gates": CoreConfig(core="rmc", mem_slots=3, head_size=24),
    "coupled gates": CoreConfig(core="rmc", mem_slots=3, head_size=24, gate_style="coupled", slot_embedding=True),
    "slots' gates": CoreConfig(core="rmc", mem_slots=3, head_size=24, gate_style="memory"),
    **{name: CoreConfig(core=name, hidden_size=72) for name in ("lstm", "gru", "mingru", "rnn")},
}


def digest(*tensors):
    return hashlib.sha256(b"".join(x.detach().contiguous().numpy().tobytes() for x in tensors)).hexdigest()


for name, config in CORES.items():
    torch.manual_seed(0)
    core = make_core(config, INPUT)
    inputs = torch.randn(STEPS, LANES, INPUT, requires_grad=True)
    outputs, state = core.unroll(inputs, torch.rand(STEPS, LANES) < 0.3, core.initial_state(LANES))
    (outputs * torch.randn(outputs.shape)).sum().backward()
    print(name, digest(outputs, *state, inputs.grad, *(p.grad for p in core.parameters())))

table, bias, weight = (torch.randn(*shape, requires_grad=True) for shape in ((30, 40), (40,), (40, 40)))
x = rectified_linear(rectified_lookup(torch.randint(30, (50, 9), dtype=torch.int32), table, bias), weight, bias)
(x * torch.randn(x.shape)).sum().backward()
print("encoder", digest(x, table.grad, bias.grad, weight.grad))
"""


@pytest.mark.slow
def test_the_process_that_compiles_computes_what_later_ones_do(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    compiling, cached = (
        subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    )
    assert len(compiling.stdout.splitlines()) == 8
    assert list(tmp_path.rglob("*.nbc"))
    assert compiling.stdout == cached.stdout
