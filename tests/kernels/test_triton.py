"""The Triton kernels against the reference: on a GPU, or interpreted on the CPU where there is none."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: pip install rmc-agents[triton]")

from rmc_agents.cores import RMC
from rmc_agents.kernels.rmc import triton as triton_rmc
from rmc_agents.kernels.rmc.reference import rmc_unroll
from rmc_agents.kernels.weights import RMCState

pytestmark = pytest.mark.slow
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INPUT = 5
RMC_CASES = {  # steps, lanes, where it resets, the core's options
    "one-step": (1, 1, [], {"mem_slots": 1, "head_size": 16, "num_heads": 1}),
    "many-lanes": (
        2,
        5,
        [(0, 0), (1, 4)],
        {"mem_slots": 4, "head_size": 8, "num_heads": 2, "forget_bias": -0.5, "input_bias": 0.7},
    ),
    "memory-gates, wide keys": (
        3,
        3,
        [(0, 0), (2, 2)],
        {
            "mem_slots": 3,
            "head_size": 4,
            "num_heads": 4,
            "key_size": 16,
            "gate_style": "memory",
            "slot_embedding": True,
        },
    ),
    "coupled-gates": (
        2,
        3,
        [(0, 0), (1, 2)],
        {"mem_slots": 3, "head_size": 5, "num_heads": 3, "gate_style": "coupled", "slot_embedding": True},
    ),
    "no-gates, mlp-1": (
        2,
        3,
        [(1, 1)],
        {"mem_slots": 4, "head_size": 4, "num_heads": 4, "gate_style": "none", "attention_mlp_layers": 1},
    ),
    "padded-heads": (2, 3, [(1, 2)], {"mem_slots": 3, "head_size": 5, "num_heads": 3, "key_size": 7}),
    "one-unit-heads, mlp-3": (
        2,
        2,
        [(0, 1)],
        {"mem_slots": 5, "head_size": 1, "num_heads": 3, "key_size": 1, "attention_mlp_layers": 3},
    ),
    "many-slots": (2, 1, [(1, 0)], {"mem_slots": 16, "head_size": 16, "num_heads": 1}),
}


def build(options, dtype=torch.float32):
    """A core with redrawn weights, so that no bias is 0 and no gain is 1."""
    torch.manual_seed(0)
    core = RMC(INPUT, **options)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return core.to(DEVICE, dtype)


def data(core, steps, lanes, resets=()):
    """Inputs, should_reset, state and initial state, each state a tuple of leaves; float32 on the CPU."""
    torch.manual_seed(1)
    initial = [leaf.cpu().float() + 0.1 * torch.randn(leaf.shape) for leaf in core.initial_leaves()]
    state = [leaf + 0.5 * torch.randn(lanes, *leaf.shape[1:]) for leaf in initial]
    should_reset = torch.zeros(steps, lanes, dtype=torch.bool)
    for step, lane in resets:
        should_reset[step, lane] = True
    return torch.randn(steps, lanes, INPUT), should_reset, state, initial


def run(unroll, core, inputs, should_reset, state, initial, *, outputs=..., **options):
    """Outputs, final state and the gradients of everything, from a loss on outputs[`outputs`] and the final state."""
    dtype = next(core.parameters()).dtype
    inputs, *leaves = (x.detach().to(DEVICE, dtype).clone().requires_grad_() for x in (inputs, *state, *initial))
    kind, half = type(core.initial_leaves()), len(state)
    core.zero_grad()
    result, final = unroll(
        inputs, should_reset.to(DEVICE), kind(*leaves[:half]), kind(*leaves[half:]), core.weights(), **options
    )
    torch.manual_seed(2)
    loss = sum((x * torch.randn(x.shape, dtype=torch.float64).to(x)).sum() for x in (result[outputs], *final))
    loss.backward()
    named = {"outputs": result, **{f"final {i}": leaf for i, leaf in enumerate(final)}, "inputs": inputs.grad}
    named |= {f"state {i}": leaf.grad for i, leaf in enumerate(leaves[:half])}
    named |= {f"initial {i}": leaf.grad for i, leaf in enumerate(leaves[half:])}
    return {name: x.detach().cpu() for name, x in named.items()} | {n: p.grad.cpu() for n, p in core.named_parameters()}


def assert_agrees(got, wanted, tolerance=1e-5):
    """Every tensor, to within `tolerance` of the expected one's largest number."""
    assert got.keys() == wanted.keys()
    for name, want in wanted.items():
        assert got[name].dtype == torch.float32
        assert got[name].shape == want.shape, name
        error, size = (got[name].double() - want).abs().max(), want.abs().max()
        assert error <= tolerance * size, f"{name}: off by {error:.3g}, largest {size:.3g}"


def assert_same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def rmc_case(name):
    """The core and its arguments."""
    steps, lanes, resets, options = RMC_CASES[name]
    core = build(options)
    return core, data(core, steps, lanes, resets)


def wanted_rmc(name, arguments):
    return run(rmc_unroll, build(RMC_CASES[name][3], torch.float64), *arguments)


@pytest.mark.parametrize("name", RMC_CASES)
def test_rmc_agrees_with_the_reference(name, monkeypatch):
    """And reads no uninitialised memory: that is NaN."""
    core, arguments = rmc_case(name)
    wanted = wanted_rmc(name, arguments)
    poison_new_tensors(monkeypatch)
    assert_agrees(run(triton_rmc.rmc_unroll, core, *arguments), wanted)


def test_rmc_with_large_programs(monkeypatch):
    """As on a GPU with fewer processors than lanes."""
    monkeypatch.setattr(triton_rmc, "_processors", lambda device: 1)
    core, arguments = rmc_case("many-lanes")
    assert triton_rmc._sizes(core.weights(), core.initial_memory.shape[1], 5).rows > 16
    assert_agrees(run(triton_rmc.rmc_unroll, core, *arguments), wanted_rmc("many-lanes", arguments))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("steps", "lanes", "options"),
    [
        (20, 4096, {"mem_slots": 4, "head_size": 32, "num_heads": 2, "gate_style": "coupled", "slot_embedding": True}),
        (7, 131, {"mem_slots": 6, "head_size": 21, "num_heads": 3}),
        (5, 257, {"mem_slots": 8, "head_size": 64, "num_heads": 4}),
    ],
)
def test_rmc_of_many_programs(steps, lanes, options):
    """Twice the same to the bit. A ReLU at 0 may fall on the other side, which changes its lane's gradients: so these
    are compared by their norms.
    """
    exact, core = build(options, torch.float64), build(options)
    arguments = data(core, steps, lanes, [(t, lane) for t in range(0, steps, 3) for lane in range(t, lanes, 17)])
    wanted = run(rmc_unroll, exact, *arguments)
    got = run(triton_rmc.rmc_unroll, core, *arguments)
    for name, want in wanted.items():
        error = (got[name].double() - want).norm() / want.norm()
        assert error < (1e-6 if name in ("outputs", "final 0") else 1e-3), f"{name}: off by {error:.3g}"
    assert_same(run(triton_rmc.rmc_unroll, core, *arguments), got)


def poison_new_tensors(monkeypatch):
    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, poisoned(getattr(owner, name)))


def poisoned(new):
    def empty(*arguments, **options):
        tensor = new(*arguments, **options)
        return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor

    return empty


def test_rmc_without_gradients_gives_the_same_bits():
    core, arguments = rmc_case("padded-heads")
    inputs, should_reset, (state,), (initial,) = (
        [leaf.to(DEVICE) for leaf in x] if isinstance(x, list) else x.to(DEVICE) for x in arguments
    )
    with torch.no_grad():
        scratch = triton_rmc.rmc_unroll(inputs, should_reset, RMCState(state), RMCState(initial), core.weights())
    kept = triton_rmc.rmc_unroll(inputs, should_reset, RMCState(state), RMCState(initial), core.weights())
    assert not scratch[0].requires_grad
    assert torch.equal(scratch[0], kept[0])
    assert torch.equal(scratch[1].memory, kept[1].memory)


def test_rmc_after_a_reset_is_a_fresh_sequence():
    core = build(RMC_CASES["padded-heads"][3])
    inputs, should_reset, (state,), (initial,) = data(core, 4, 3, [(2, 1)])
    initial = initial.to(DEVICE)

    def outputs(inputs, should_reset, state):
        arguments = inputs.to(DEVICE), should_reset.to(DEVICE), RMCState(state.to(DEVICE)), RMCState(initial)
        return triton_rmc.rmc_unroll(*arguments, core.weights())[0].detach().cpu()

    before = outputs(inputs, should_reset, state)
    inputs, state = inputs.clone(), state.clone()
    inputs[:2, 1] += 1
    state[1] = torch.nan
    after = outputs(inputs, should_reset, state)
    assert after[:2, 1].isnan().all()
    assert torch.equal(after[2:], before[2:])
    assert torch.equal(after[:2, [0, 2]], before[:2, [0, 2]])
    fresh = outputs(inputs[2:], torch.zeros_like(should_reset[2:]), initial.expand(3, -1, -1))
    assert (fresh[:, 1] - after[2:, 1]).abs().max() <= 1e-5  # x is projected in a product of another size


def test_rmc_lets_no_gradient_through_a_reset():
    core = build(RMC_CASES["padded-heads"][3])
    arguments = data(core, 4, 3, [(2, 0), (2, 1), (2, 2)])
    got = run(triton_rmc.rmc_unroll, core, *arguments, outputs=slice(2, None))
    assert not got["inputs"][:2].any()
    assert not got["state 0"].any()
    assert got["inputs"][2:].all()
    assert got["initial 0"].all()


def test_rmc_forgets_a_nan():
    core = build(RMC_CASES["padded-heads"][3])
    inputs, should_reset, (state,), initial = data(core, 3, 3, [(0, 1)])
    state[1] = torch.nan
    got = run(triton_rmc.rmc_unroll, core, inputs, should_reset, [state], initial)
    for name, tensor in got.items():
        assert tensor.isfinite().all(), name
    assert not got["state 0"][1].any()


def test_rmc_names_what_it_cannot_do():
    def obstacle(**options):
        core = RMC(INPUT, **{"mem_slots": 2, "head_size": 8, "num_heads": 2} | options)
        return triton_rmc.obstacle(core.weights(), core.initial_leaves())

    assert obstacle() is None
    assert obstacle(mem_slots=17) == "mem_slots: expected at most 16, got 17"
    too_wide = "num_heads * key_size, each rounded up to a power of two: expected at most 512, got 1024"
    assert obstacle(num_heads=4, key_size=129) == too_wide
