"""Torch's modes and defaults: inference, autocast, another dtype, threads; tracing, exporting and compiling."""

import gc
import platform
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from helpers import forked
from helpers.scans import CORES, EVERY_SCAN, INPUT, LANES, STEPS, build, case
from rmc_agents.cores import RMC, RNN, Core
from rmc_agents.kernels.lookup import rectified_lookup
from rmc_agents.kernels.modes import eval_mode, torch_threads
from rmc_agents.kernels.products import rectified_linear
from rmc_agents.kernels.rnn.fused import RNNTape
from rmc_agents.kernels.tape import KEPT, Tape
from rmc_agents.pretrained import find
from rmc_agents.runs.saved import SavedAgent, load_agent
from rmc_agents.types import TimeStep, map_leaves

CPU = torch.device("cpu")
every_core = pytest.mark.parametrize("name", CORES)


@pytest.fixture(autouse=True)
def no_spare_tapes() -> None:
    """Buffers are created again, in the mode that the test sets."""
    Tape._spare.clear()


def forward(core: Core, inputs: Tensor, should_reset: Tensor, state: Any) -> tuple[Tensor, ...]:
    outputs, final = core.unroll(inputs, should_reset, state)
    return outputs, *final


def backward(core: Core, results: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    d_results = [torch.ones_like(x) for x in results]
    return torch.autograd.grad(results, list(core.parameters()), d_results, materialize_grads=True)


def assert_same(actual: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    """Bitwise."""
    for a, b in zip(actual, expected, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


def results_of(core: Core) -> tuple[Tensor, ...]:
    """Outputs, final state and the gradients of all weights."""
    results = forward(core, *case(core, STEPS, LANES)[:3])
    return *results, *backward(core, results)


@every_core
class TestInferenceMode:
    def test_training_after_it(self, name: str) -> None:
        core = build(name)
        inputs, should_reset, state, _ = case(core, STEPS, LANES)
        with torch.inference_mode():
            acted = forward(core, inputs, should_reset, state)
        expected = results_of(core)
        assert_same(acted, expected[: len(acted)])
        with torch.inference_mode():  # in the buffers that training has left
            assert_same(forward(core, inputs, should_reset, state), acted)

    def test_learning_from_a_state_that_was_made_in_it(self, name: str) -> None:
        core = build(name)
        inputs, should_reset, state, _ = case(core, STEPS, LANES)
        expected = core.step(inputs[0], should_reset[0], state)[1]
        with torch.inference_mode():
            state = core.step(inputs[0], should_reset[0], state)[1]
        gradients = (
            backward(core, forward(core, inputs, should_reset, s))
            for s in (state, map_leaves(torch.Tensor.detach, expected))
        )
        assert_same(*gradients)


class TestAutocast:
    """A core works in its own dtype, and takes the outputs of other layers."""

    @pytest.mark.parametrize(("name", "backend"), [scan for scan in EVERY_SCAN if scan[1] != "triton"])
    def test_it_changes_nothing(self, name: str, backend: str) -> None:
        core = build(name)
        core.backend = backend
        expected = results_of(core)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            results = forward(core, *case(core, STEPS, LANES)[:3])
        assert_same((*results, *backward(core, results)), expected)

    @pytest.mark.parametrize("name", [name for name, backend in EVERY_SCAN if backend == "fused"])
    def test_nor_on_the_way_back(self, name: str) -> None:
        core = build(name)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            within = results_of(core)
        assert_same(within, results_of(core))

    @every_core
    def test_inputs_of_another_dtype(self, name: str) -> None:
        core = build(name)
        inputs, should_reset, state, _ = case(core, STEPS, LANES)
        inputs = inputs.bfloat16()
        outputs, _ = core.unroll(inputs.float(), should_reset, state)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            within, _ = core.unroll(inputs.requires_grad_(), should_reset, state)
        assert torch.equal(within, outputs)
        assert torch.autograd.grad(within.sum(), inputs)[0].dtype == torch.bfloat16


def test_autocast_and_the_layers_before_the_core() -> None:
    x, weight, bias = torch.randn(4, 3), torch.randn(5, 3, requires_grad=True), torch.randn(5, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = rectified_linear(x, weight, bias)
    y.sum().backward()
    assert y.dtype == torch.bfloat16
    assert weight.grad is not None


def test_autocast_and_attention() -> None:
    core = build("rmc")
    inputs, should_reset, state, _ = case(core, 1, LANES)
    assert isinstance(core, RMC)
    expected = core.attention_weights(inputs[0], should_reset[0], state)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(core.attention_weights(inputs[0].double(), should_reset[0], state), expected)


@every_core
def test_another_default_dtype_changes_nothing(name: str, request: pytest.FixtureRequest) -> None:
    core = build(name)
    arguments = case(core, STEPS, LANES)[:3]
    expected = results_of(core)
    Tape._spare.clear()
    request.addfinalizer(lambda: torch.set_default_dtype(torch.float32))
    torch.set_default_dtype(torch.float64)
    results = forward(core, *arguments)
    assert_same((*results, *backward(core, results)), expected)


class Interrupted(dict[Any, Any]):
    """Spare tapes; while one thread looks for the oldest, another returns a tape too, if it can."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self.other = threading.Thread(target=meanwhile)

    def __iter__(self) -> Iterator[Any]:
        oldest = next(super().__iter__())
        if not self.other.ident:
            self.other.start()
            self.other.join(timeout=0.2)  # it waits for the lock
        return iter([oldest])


@every_core
def test_buffers_in_the_pool_keep_no_model_alive(name: str) -> None:
    core = build(name)
    core(torch.zeros(2, 3, INPUT))[0].sum().backward()
    alive = [weakref.ref(parameter) for parameter in core.parameters()]
    del core
    gc.collect()
    assert not any(parameter() is not None for parameter in alive)


def test_threads_may_return_buffers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    core = build("rnn")
    assert isinstance(core, RNN)
    leaves = core.initial_state(1), core.initial_leaves(), core.weights()
    *tapes, last, another = (RNNTape.take(steps, *leaves) for steps in range(1, KEPT + 3))
    monkeypatch.setattr(Tape, "_spare", Interrupted(another.put_back))
    for tape in tapes:
        tape.put_back()
    last.put_back()
    Tape._spare.other.join()
    assert len(Tape._spare) == KEPT


@every_core
def test_torchs_function_transforms(name: str) -> None:
    core = build(name)
    inputs, should_reset, state, _ = case(core, STEPS, LANES)

    def loss(x: Tensor) -> Tensor:
        return core.unroll(x, should_reset, state)[0].square().sum()

    leaf = inputs.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(inputs), gradient)
    batch = torch.stack([inputs, 2 * inputs])
    torch.testing.assert_close(torch.func.vmap(loss)(batch), torch.stack([loss(x) for x in batch]))


class Step(nn.Module):
    """A policy's step with only tensors as arguments and results."""

    def __init__(self, saved: SavedAgent[Any]) -> None:
        super().__init__()
        self.agent, self.spec = saved.agent, saved.spec
        self.kind = type(self.agent.initial_state(1))

    def forward(
        self, obs: Tensor, is_first: Tensor, prev_action: Tensor, prev_reward: Tensor, *state: Tensor
    ) -> tuple[Tensor, ...]:
        never = torch.zeros_like(is_first)
        steps = TimeStep(obs, is_first, prev_action, prev_reward, terminated=never, truncated=never)
        output, after = self.agent.step(steps, self.kind(*state))
        return *output, *after

    def arguments(self, seed: int) -> tuple[Tensor, ...]:
        """Of 64 lanes, some of which begin an episode: enough lanes that eager products are not torch's."""
        torch.manual_seed(seed)
        obs = torch.randint(0, 256, (64, *self.spec.obs_shape)).to(getattr(torch, self.spec.obs_dtype))
        state = (leaf + 0.1 * torch.randn_like(leaf) for leaf in self.agent.initial_state(64))
        return obs, torch.rand(64) < 0.3, torch.randint(0, self.spec.num_actions, (64,)), torch.randn(64), *state


def traced(step: Step) -> Callable[..., Any]:
    return torch.jit.trace(step, step.arguments(seed=0))


def compiled(step: Step) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(step, fullgraph=True, backend="eager")


def exported(step: Step) -> Callable[..., Any]:
    program = torch.export.export(step, step.arguments(seed=0))
    operators = {node.target for node in program.graph.nodes if node.op == "call_function"}
    assert {getattr(operator, "namespace", "") for operator in operators} <= {"aten", ""}
    return program.module()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # about the checks of shapes, which are not traced
@pytest.mark.parametrize(
    ("policy", "capture", "with_gradient"),
    [
        ("minipacman-lstm", traced, True),
        ("minipacman-rmc", traced, False),
        ("minipacman-gru", compiled, True),
        ("minipacman-rmc", compiled, False),
        ("minipacman-lstm", exported, True),
        ("minipacman-rmc", exported, False),
    ],
)
def test_a_captured_policy_has_the_eager_outputs(
    policy: str, capture: Callable[[Step], Callable[..., Any]], with_gradient: bool
) -> None:
    """Logits, values and states at other observations than those it was captured with."""
    step = Step(load_agent(find(policy), CPU))
    assert step.agent.core.chosen_backend() == "fused"
    with torch.set_grad_enabled(with_gradient):
        captured = capture(step)
        arguments = step.arguments(seed=1)
        torch.testing.assert_close(tuple(captured(*arguments)), step(*arguments), rtol=1e-4, atol=1e-4)


def test_a_captured_lookup() -> None:
    chosen, table, bias = torch.randint(0, 7, (4, 3), dtype=torch.int32), torch.randn(7, 5), torch.randn(5)
    leaves = chosen, table.requires_grad_(), bias
    captured = torch.compile(rectified_lookup, fullgraph=True, backend="eager")
    assert torch.equal(captured(*leaves), rectified_lookup(*leaves))


@every_core
def test_forward_mode_is_the_derivative(name: str) -> None:
    core = build(name)
    inputs, should_reset, state, _ = case(core, STEPS, LANES)
    direction, step = torch.randn_like(inputs), 1e-6
    with forward_ad.dual_level():
        outputs, _ = core.unroll(forward_ad.make_dual(inputs, direction), should_reset, state)
        slope = forward_ad.unpack_dual(outputs).tangent
    core, state = core.double(), type(state)(*(leaf.double() for leaf in state))
    shifted = (inputs.double() + sign * step * direction for sign in (1, -1))
    ahead, behind = (core.unroll(x, should_reset, state)[0] for x in shifted)
    torch.testing.assert_close(slope.double(), (ahead - behind) / (2 * step), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [name for name in CORES if build(name).chosen_backend() == "fused"])
def test_what_a_fused_scan_cannot_differentiate_is_refused(name: str) -> None:
    core = build(name)
    inputs, should_reset, state, _ = case(core, STEPS, LANES)
    with pytest.raises(RuntimeError, match=r"no batched gradients .*: set the core's attribute backend = 'reference'"):
        torch.autograd.functional.jacobian(lambda x: core.unroll(x, should_reset, state)[0], inputs, vectorize=True)
    outputs, _ = core.unroll(*case(core, STEPS, LANES)[:3])
    with pytest.raises(RuntimeError, match=r"no second derivatives .*: set the core's attribute backend = 'reference'"):
        torch.autograd.grad(outputs.sum(), list(core.parameters()), create_graph=True)


def test_second_derivatives_of_the_layers_before_a_core_are_those_of_torch() -> None:
    torch.manual_seed(0)
    x, weight, bias = (torch.randn(size, requires_grad=True) for size in ((5, 4), (3, 4), (3,)))
    chosen = torch.randint(4, (5, 2))
    layers: list[tuple[Callable[..., Tensor], Callable[..., Tensor]]] = [
        (rectified_linear, lambda x, w, b: nn.functional.linear(x, w, b).relu()),
        (
            lambda x, w, b: rectified_lookup(chosen, w.t().contiguous(), b) * x.sum(),
            lambda x, w, b: (nn.functional.one_hot(chosen, 4).sum(1).float() @ w.t() + b).relu() * x.sum(),
        ),
    ]
    for layer, same in layers:
        found = []
        for make in (layer, same):
            first = torch.autograd.grad(make(x, weight, bias).square().sum(), (weight, bias), create_graph=True)
            found.append(torch.autograd.grad(sum(g.square().sum() for g in first), (x, weight, bias)))
        torch.testing.assert_close(*found)
        several = [torch.eye(15).view(15, 5, 3), (x, weight, bias)]
        got, wanted = (
            torch.autograd.grad(make(x, weight, bias), several[1], several[0], is_grads_batched=True)
            for make in (layer, same)
        )
        torch.testing.assert_close(got, wanted)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_freed_memory_is_not_asked_for_again(tmp_path: Path) -> None:
    program = """if True:
        import resource, torch
        from rmc_agents.kernels.modes import reuse_freed_memory

        reuse_freed_memory()
        faults = []
        for _ in range(30):
            torch.ones(12_000_000)  # above the 32 MB up to which glibc keeps blocks that were freed once
            faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
        print(faults[-1] - faults[20])
    """
    assert int(forked.run(program, log=tmp_path / "log")) < 1000


def test_several_threads_share_eval_mode() -> None:
    module = nn.Dropout()
    first, second = eval_mode(module), eval_mode(module)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not module.training
    second.__exit__(None, None, None)
    assert module.training


def test_several_threads_leave_torch_its_number_of_threads() -> None:
    """New threads take the last number that was set."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other, ThreadPoolExecutor(1) as later:
            users = [(pool, torch_threads(1)) for pool in (one, other)]
            for pool, context in users:
                pool.submit(context.__enter__).result()
            for pool, context in users:
                pool.submit(context.__exit__, None, None, None).result()
            assert later.submit(torch.get_num_threads).result() == 3
    finally:
        torch.set_num_threads(before)
