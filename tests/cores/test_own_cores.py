"""Custom cores: two methods, or any module with three; once registered, they work like built-in ones."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.own_cores import Counter, Decay, InPlace, Module, Odd, Trace
from rmc_agents.cores import GRU, LSTM, RMC, Core, Feedforward, MinGRU, as_core
from rmc_agents.cores.adapter import AdaptedCore
from rmc_agents.cores.inspection import inspect, products_of
from rmc_agents.kernels.weights import HiddenState, RMCState
from rmc_agents.sb3.packed_core import PackedCore
from rmc_agents.types import map_leaves

STEPS, LANES, SIZE = 6, 3, 4


def build(name: str) -> Core:
    torch.manual_seed(0)
    return as_core({"decay": Decay, "odd": Odd, "module": Module}[name](SIZE), SIZE)


@pytest.fixture(params=["decay", "odd", "module"])
def core(request: pytest.FixtureRequest) -> Core:
    return build(request.param)


def arguments() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(STEPS, LANES, SIZE), torch.rand(STEPS, LANES) < 0.3


def test_the_example_of_the_docs() -> None:
    x, should_reset = arguments()
    outputs, _ = Decay(SIZE).unroll(x, should_reset, Trace(torch.ones(LANES, SIZE)))
    for lane in range(LANES):
        trace = torch.ones(SIZE)
        for t in range(STEPS):
            trace = 0.9 * (torch.zeros(SIZE) if should_reset[t, lane] else trace) + 0.1 * x[t, lane]
            torch.testing.assert_close(outputs[t, lane], trace)


def test_unroll_is_steps_and_each_lane_alone(core: Core) -> None:
    x, should_reset = arguments()
    start = state = core.initial_state(LANES)
    outputs, final = core.unroll(x, should_reset, state)
    for t in range(STEPS):
        output, state = core.step(x[t], should_reset[t], state)
        torch.testing.assert_close(output, outputs[t])
    torch.testing.assert_close(tuple(state), tuple(final))
    for lane in range(LANES):
        own = (slice(None), slice(lane, lane + 1))
        alone = core.unroll(x[own], should_reset[own], map_leaves(lambda leaf, i=lane: leaf[i : i + 1], start))[0]
        torch.testing.assert_close(outputs[own], alone)


def test_a_reset_is_a_fresh_sequence(core: Core) -> None:
    x, _ = arguments()
    should_reset = torch.zeros(STEPS, LANES, dtype=torch.bool)
    should_reset[2] = True
    spoilt = map_leaves(lambda leaf: torch.full_like(leaf, 7), core.initial_state(LANES))
    outputs, _ = core.unroll(x, should_reset, spoilt)
    torch.testing.assert_close(outputs[2:], core(x[2:])[0])


def test_nan_does_not_survive_a_reset() -> None:
    x, _ = arguments()
    outputs, _ = Decay(SIZE).step(
        x[0], torch.ones(LANES, dtype=torch.bool), Trace(torch.full((LANES, SIZE), torch.nan))
    )
    assert outputs.isfinite().all()


def test_a_learned_initial_state_gets_its_gradient() -> None:
    core, (x, _) = build("odd"), arguments()
    data = map_leaves(torch.Tensor.detach, core.initial_state(LANES))
    outputs, _ = core.unroll(x, torch.ones(STEPS, LANES, dtype=torch.bool), data)
    (gradient,) = torch.autograd.grad(outputs.sum(), [core.get_parameter("first")])
    assert gradient.any()


def test_it_follows_its_device_and_dtype() -> None:
    """Even though `initial_leaves` makes plain tensors; integers stay integers."""
    for dtype in (torch.float64, torch.float32):
        (trace,) = Decay(SIZE).to(dtype).initial_state(2)
        count, *_ = Odd(SIZE).to(dtype).initial_state(2)
        assert (trace.dtype, count.dtype) == (dtype, torch.int64)
    assert Decay(SIZE).to("meta").initial_state(2).trace.device.type == "meta"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs, (_, cube, _) = Odd(SIZE)(arguments()[0].bfloat16())
    assert (outputs.dtype, cube.dtype) == (torch.float32, torch.float32)


def test_an_inspection_has_the_cores_gates_and_attention(core: Core) -> None:
    x, should_reset = arguments()
    inspection = inspect(core, x, should_reset, core.initial_state(LANES))
    torch.testing.assert_close(inspection.outputs, core.unroll(x, should_reset, core.initial_state(LANES))[0])
    odd = isinstance(core, Odd)
    assert inspection.gates.keys() == ({"open"} if odd else set())
    assert (inspection.attention is not None) == odd
    assert core.matrix_products(STEPS, LANES) is None


def test_stable_baselines3_packs_its_state() -> None:
    core, (x, _) = build("decay"), arguments()
    packed = PackedCore(core)
    state = (torch.rand(1, LANES, 2), torch.rand(1, LANES, 2))
    outputs, after = packed(x[0], state, torch.zeros(LANES))
    expected, _ = core.step(x[0], torch.zeros(LANES, dtype=torch.bool), packed.unpack(state))
    assert torch.equal(outputs, expected)
    torch.testing.assert_close(packed.unpack(after).trace, expected)


@pytest.mark.parametrize(
    "leaf",
    [torch.tensor([[1 + 2j]]), torch.zeros(1, 0), torch.ones(1, dtype=torch.bool), torch.full((1, 2, 2), -12345)],
    ids=["complex", "empty", "bool", "integer"],
)
def test_stable_baselines3_packs_states_of_any_dtype(leaf: torch.Tensor) -> None:
    core = build("decay")
    core.initial_leaves = lambda: (leaf,)
    packed = PackedCore(core)
    state = (torch.cat([leaf, torch.zeros_like(leaf), leaf]),)
    (restored,) = packed.unpack(packed.pack(state))
    assert restored.dtype == leaf.dtype
    assert torch.equal(restored, state[0])


def test_stable_baselines3_cannot_pack_an_infinite_initial_state() -> None:
    core = build("decay")
    core.initial_leaves = lambda: (torch.full((1, 2), -torch.inf),)
    with pytest.raises(ValueError, match="initial_leaves: sb3-contrib's recurrent PPO takes finite numbers"):
        PackedCore(core)


def test_a_feedforward_core_with_a_cell_of_its_own_computes_something() -> None:
    doubling = type("Doubling", (Feedforward,), {"cell": lambda self, x, state: (2 * x, state)})(SIZE)
    assert (doubling.chosen_backend(), Feedforward(SIZE).chosen_backend()) == ("reference", "none")
    doubling.backend = "fused"
    with pytest.raises(ValueError, match="Doubling has no kernels"):
        doubling.chosen_backend()


class Unborn(LSTM):
    """Does not call its base's constructor."""

    def __init__(self) -> None:
        nn.Module.__init__(self)


class TestRefusals:
    def test_backends_it_has_not(self, core: Core) -> None:
        x, _ = arguments()
        assert core.chosen_backend() == "reference"
        core.backend = "fused"
        reason = "(Decay|Odd|Module) has no kernels: expected backend auto or reference and precision float32"
        with pytest.raises(ValueError, match=reason):
            core(x)
        core.backend, core.precision = "reference", "bf16"
        with pytest.raises(ValueError, match="got reference and bf16"):
            core(x)

    def test_a_cell_of_another_width(self) -> None:
        class Wide(Decay):
            def cell(self, x: Tensor, state: Trace) -> tuple[Tensor, Trace]:
                return torch.cat([x, x], 1), state

        with pytest.raises(
            ValueError, match=r"Wide.cell: expected an output \[3, 4\] \[B, output_size\], got \[3, 8\]"
        ):
            Wide(SIZE)(arguments()[0])

    def test_a_module_under_a_methods_name(self) -> None:
        class Hidden(Decay):
            def __init__(self, input_size: int) -> None:
                super().__init__(input_size)
                self.cell = nn.GRUCell(input_size, input_size)  # type: ignore[assignment,method-assign]

        with pytest.raises(ValueError, match=r"Hidden.cell is a method: expected another name for this attribute"):
            Hidden(SIZE)

    def test_a_number_under_a_methods_name(self) -> None:
        core = Decay(SIZE)
        with pytest.raises(ValueError, match=r"Decay\.step is a method: expected another name for this attribute"):
            core.step = 0  # type: ignore[assignment,method-assign]

    def test_a_state_of_another_core(self) -> None:
        with pytest.raises(ValueError, match=r"state: expected tuple of 3, as initial_state gives it, got \(\)"):
            build("odd").step(arguments()[0][0], torch.zeros(LANES, dtype=torch.bool), ())
        count, cube, row = build("odd").initial_state(LANES)
        with pytest.raises(ValueError, match=r"state.1: expected \[3, 2, 2, 3\], got \[3, 2\]"):
            build("odd")(arguments()[0], (count, cube[..., 0, 0], row))
        with pytest.raises(ValueError, match=r"state.0: expected a tensor of torch.int64, got torch.int32"):
            build("odd")(arguments()[0], (count.int(), cube, row))

    @pytest.mark.parametrize(
        ("module", "message"),
        [
            (
                nn.Linear(SIZE, 2),
                "a Core, or a module with the methods initial_state, step, unroll; Linear has no",
            ),
            (LSTM(SIZE + 1), "expected input size 4, got LSTM with 5"),
            ("lstm", "expected a torch module, got str"),
            (Unborn(), r"core: Unborn.__init__ has to call super\(\).__init__\(input_size\), Core's"),
        ],
    )
    def test_what_is_no_core(self, module: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            as_core(module, SIZE)

    def test_a_state_that_is_a_tensor(self) -> None:
        module = Module(SIZE)
        module.initial_state = lambda batch_size: torch.zeros(batch_size, 5)  # type: ignore[method-assign]
        with pytest.raises(
            ValueError, match=r"Module.initial_state: expected a tuple of tensors \[B, ...\], got a tensor"
        ):
            as_core(module, SIZE)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
    def test_a_state_that_is_not_reset(self, dtype: torch.dtype) -> None:
        class Endless(Module):
            def initial_state(self, batch_size: int) -> Any:
                return (torch.zeros(batch_size, 5, dtype=dtype),)

            def step(self, x: Tensor, should_reset: Tensor, state: Any) -> Any:
                after = ~state[0] if dtype == torch.bool else state[0] + 1
                return after.float(), (after,)

        with pytest.raises(ValueError, match=r"Endless.step: expected the same result after a reset"):
            as_core(Endless(SIZE), SIZE)

    def test_wrong_products(self) -> None:
        core = Decay(SIZE)
        core.matrix_products = lambda steps, lanes: 7  # type: ignore[method-assign, assignment, return-value]
        with pytest.raises(ValueError, match=r"Decay.matrix_products: expected None or a list of Product, got 7"):
            products_of(core, STEPS, LANES)

    def test_hooks_that_agents_do_not_run(self) -> None:
        core = nn.utils.spectral_norm(GRU(SIZE, hidden_size=5), "weight_ih")
        with pytest.raises(ValueError, match=r"GRU has forward pre-hooks, .* use torch.nn.utils.parametrizations"):
            as_core(core, SIZE)

    def test_lazy_parameters(self) -> None:
        module = Module(SIZE)
        module.late = nn.LazyLinear(3)
        with pytest.raises(ValueError, match="expected initialised parameters, got lazy ones in Module"):
            as_core(module, SIZE)

    def test_a_constructor_that_forgets_the_base_class(self) -> None:
        class Forgetful(Decay):
            def __init__(self, input_size: int) -> None:
                self.input_size = input_size

        with pytest.raises(ValueError, match=r"core: Forgetful.__init__ has to call super"):
            as_core(Forgetful(SIZE), SIZE)

    @pytest.mark.parametrize("method", ["step", "unroll"])
    def test_a_state_that_survives_a_reset(self, method: str) -> None:
        module = Module(SIZE)
        resetting = getattr(module, method)
        setattr(module, method, lambda x, resets, state: resetting(x, torch.zeros_like(resets), state))
        with pytest.raises(ValueError, match=f"Module.{method}: expected the same result after a reset"):
            as_core(module, SIZE)

    def test_a_memory_in_an_attribute(self) -> None:
        class Hiding(Decay):
            trace: Tensor | float = 0.0

            def cell(self, x: Tensor, state: Any) -> Any:
                self.trace = 0.9 * self.trace + 0.1 * x
                return self.trace, state

        with pytest.raises(ValueError, match=r"Hiding.step: expected .* after a reset.* keep no memory in attributes"):
            as_core(Hiding(SIZE), SIZE)

    def test_lanes_that_are_mixed(self) -> None:
        class Centred(Decay):
            def cell(self, x: Tensor, state: Any) -> Any:
                return super().cell(x - x.mean(dim=0), state)

        with pytest.raises(ValueError, match=r"Centred.step: expected the same for a lane alone and beside another"):
            as_core(Centred(SIZE), SIZE)

    def test_outputs_that_are_not_finite(self) -> None:
        class Dividing(Decay):
            def cell(self, x: Tensor, state: Any) -> Any:
                return x / (state[0] - state[0]), state

        with pytest.raises(ValueError, match=r"Dividing.step: expected finite outputs for inputs of 1"):
            as_core(Dividing(SIZE), SIZE)

    def test_an_unroll_that_forgets_the_state(self) -> None:
        module = Module(SIZE)

        def unroll(x: Tensor, resets: Tensor, state: Any) -> Any:
            outputs, states = zip(*(module.step(*step, state) for step in zip(x, resets, strict=True)), strict=True)
            return torch.stack(outputs), states[-1]

        module.unroll = unroll  # type: ignore[method-assign, assignment]
        with pytest.raises(ValueError, match=r"Module.unroll: expected the outputs and the last state of its step"):
            as_core(module, SIZE)

    def test_a_reset_to_another_state_than_the_initial_one(self) -> None:
        module = Module(SIZE)
        begin = module.initial_state
        module.initial_state = lambda batch: map_leaves(lambda leaf: leaf + 1, begin(batch))  # type: ignore[method-assign]
        with pytest.raises(ValueError, match=r"Module.step: expected .* begin with the initial state"):
            as_core(module, SIZE)

    def test_a_scan_that_differs_from_its_cell(self) -> None:
        class Scanning(Decay):
            def scan(self, inputs: Tensor, should_reset: Tensor, state: Any) -> Any:
                outputs, last = super().scan(inputs, should_reset, state)
                return 2 * outputs, last

        with pytest.raises(ValueError, match=r"Scanning.scan: expected the outputs and the last state of its cell"):
            as_core(Scanning(SIZE), SIZE)

    def test_a_random_step_and_an_unroll_that_draws_in_another_order(self) -> None:
        module = Module(SIZE)
        resetting, unrolling = module.step, module.unroll
        module.step = lambda x, *rest: resetting(x + torch.randn_like(x), *rest)  # type: ignore[method-assign]
        module.unroll = lambda x, *rest: unrolling(x + torch.randn_like(x).flip(0), *rest)  # type: ignore[method-assign]
        assert as_core(module, SIZE).module is module

    def test_a_list_in_place_of_a_tuple(self) -> None:
        class Listing(Decay):
            def cell(self, x: Tensor, state: Any) -> Any:
                return x, [x]

        with pytest.raises(ValueError, match=r"got \(a tensor \[3, 4\], a list \[a tensor \[3, 4\]\]\)"):
            Listing(SIZE).step(arguments()[0][0], arguments()[1][0], Listing(SIZE).initial_state(LANES))

    @pytest.mark.parametrize("name", ["precision", "backend"])
    def test_names_of_the_implementation(self, name: str) -> None:
        with pytest.raises(ValueError, match=f"Decay.{name} selects the implementation: expected a str, or another"):
            setattr(Decay(SIZE), name, nn.Parameter(torch.ones(1)))


@pytest.mark.parametrize("kind", [LSTM, GRU, MinGRU, RMC, Feedforward])
def test_a_subclass_of_a_built_in_core_may_override_its_cell(kind: type[Core]) -> None:
    class Halved(kind):  # type: ignore[misc,valid-type]
        def cell(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
            output, state = super().cell(x, state)
            return output / 2, state

    whole, halved, x = kind(SIZE), Halved(SIZE), torch.randn(STEPS, LANES, SIZE)
    halved.load_state_dict(whole.state_dict())
    torch.testing.assert_close(halved(x)[0], whole(x)[0] / 2)
    state, never = whole.initial_state(LANES), torch.zeros(LANES, dtype=torch.bool)
    with torch.no_grad(), halved.stepping(state) as step:
        torch.testing.assert_close(step(x[0], never, state)[0], whole.step(x[0], never, state)[0] / 2)


RESULTS = {
    "nothing": (None, "got NoneType"),
    "no state": (torch.zeros(LANES, SIZE), r"got a tensor \[3, 4\]"),
    "a list as state": ((torch.zeros(LANES, SIZE), [torch.zeros(LANES, SIZE)]), "got \\(a tensor"),
    "a leaf more": ((torch.zeros(LANES, SIZE), (torch.zeros(LANES, SIZE),) * 2), "got \\(a tensor"),
    "a leaf of another shape": ((torch.zeros(LANES, SIZE), (torch.zeros(LANES, 2),)), r"a tensor \[3, 2\]"),
}


def test_a_module_may_change_its_state_in_place() -> None:
    core, state = as_core(InPlace(SIZE), SIZE), (torch.ones(LANES, SIZE),)
    x, never = torch.rand(STEPS, LANES, SIZE), torch.zeros(STEPS, LANES, dtype=torch.bool)
    core.unroll(x, never, state)
    core.step(x[0], never[0], state)
    assert torch.equal(state[0], torch.ones(LANES, SIZE))


class TestWhatTheMethodsReturn:
    def test_of_cell_with_another_dtype(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Counter, "cell", lambda _, x, state: (x, (state[0] + 0.5,)))
        with pytest.raises(ValueError, match=r"Counter.cell: expected a next state of .*int64.*, got one of .*float32"):
            Counter(SIZE)(torch.zeros(STEPS, LANES, SIZE))

    def test_of_cell_on_another_device(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Decay, "cell", lambda _, x, state: (x, (state[0].to("meta"),)))
        with pytest.raises(
            ValueError, match=r"Decay.cell: expected an output and a next state on cpu, got one on meta"
        ):
            Decay(SIZE)(torch.zeros(STEPS, LANES, SIZE))

    def test_of_a_modules_output_size(self) -> None:
        module = InPlace(SIZE)
        core, x = as_core(module, SIZE), torch.zeros(STEPS, LANES, SIZE)
        module.output_size = core.output_size = SIZE + 1
        with pytest.raises(ValueError, match=r"InPlace.step: expected an output \[1, 5\] .*, got \[1, 4\]"):
            as_core(module, SIZE)
        for method, call in (("unroll", lambda: core(x)), ("step", lambda: core.step(x[0], x[0, :, 0] > 0, (x[0],)))):
            with pytest.raises(
                ValueError, match=rf"InPlace.{method}: expected an output .*3, {SIZE + 1}\].*, got .*3, {SIZE}\]"
            ):
                call()

    def test_of_a_module_with_one_row_for_all_lanes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        core, x = as_core(InPlace(SIZE), SIZE), torch.zeros(LANES, SIZE)
        for result, expected in (
            (lambda state: (x[:1], state), r"expected an output \[3, 4\] \[B, output_size\], got \[1, 4\]"),
            (lambda state: (x, (x[:1],)), r"expected an output and the next state, .* with 3 lanes, got"),
            (lambda state: (x, [x]), "expected an output and the next state"),
        ):
            monkeypatch.setattr(InPlace, "step", lambda _, x, should_reset, state, result=result: result(state))
            with pytest.raises(ValueError, match=f"InPlace.step: {expected}"):
                core.step(x, x[:, 0] > 0, core.initial_state(LANES))
        monkeypatch.setattr(InPlace, "step", lambda _, x, should_reset, state: x)
        with pytest.raises(ValueError, match=r"InPlace.step: expected an output and the next state"):
            as_core(InPlace(SIZE), SIZE)
        monkeypatch.setattr(InPlace, "initial_state", lambda _, batch_size: (torch.tensor(0.0),))
        with pytest.raises(ValueError, match=r"InPlace.initial_state: expected a tuple of tensors \[B, ...\]"):
            as_core(InPlace(SIZE), SIZE)

    def test_of_gate_values_and_attention_weights(self, monkeypatch: pytest.MonkeyPatch) -> None:
        core, x = Decay(SIZE), torch.zeros(STEPS, LANES, SIZE)
        arguments = (core, x, torch.zeros(STEPS, LANES, dtype=torch.bool), core.initial_state(LANES))
        for method, result, expected in (
            (
                "gate_values",
                {"open": torch.zeros(2)},
                r"expected a dict of tensors \[18, ...\] of floats, got torch.float32 \[2\]",
            ),
            ("gate_values", {"open": torch.zeros(18) > 0}, r".* got torch.bool \[18\]"),
            ("gate_values", None, "expected a dict of tensors .* got None"),
            (
                "attention_weights",
                torch.zeros(18, 2, 3),
                r"expected \[18, blocks, heads, N, N\+1\], .* got \[18, 2, 3\]",
            ),
        ):
            with monkeypatch.context() as patched:
                patched.setattr(Decay, method, lambda *_, result=result: result)
                with pytest.raises(ValueError, match=f"Decay.{method}: {expected}"):
                    inspect(*arguments)

    @pytest.mark.parametrize("case", RESULTS)
    def test_of_cell(self, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
        result, got = RESULTS[case]
        monkeypatch.setattr(Decay, "cell", lambda *_: result)
        with pytest.raises(ValueError, match=rf"Decay.cell: expected an output and the next state, .*{got}"):
            Decay(SIZE)(torch.zeros(STEPS, LANES, SIZE))

    @pytest.mark.parametrize("leaves", [5, {"a": torch.zeros(1, 2)}, (torch.zeros(2),), (torch.zeros(2, 3),), [None]])
    def test_of_initial_leaves(self, leaves: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Decay, "initial_leaves", lambda _: leaves)
        with pytest.raises(ValueError, match=r"Decay.initial_leaves: expected a tuple of tensors \[1, ...\], got"):
            Decay(SIZE).initial_state(LANES)


def test_a_complex_state_follows_the_cores_dtype() -> None:
    class Turning(Core):
        def initial_leaves(self) -> Any:
            return (torch.zeros(1, self.output_size, dtype=torch.complex64),)

        def cell(self, x: Tensor, state: Any) -> Any:
            turned = 1j * state[0] + x
            return turned.real, (turned,)

    core = Turning(SIZE).double()
    _, state = core(torch.ones(STEPS, LANES, SIZE, dtype=torch.float64))
    assert state[0].dtype == torch.complex128


class Begun(nn.Module):
    """Begins with a view of a parameter."""

    output_size = 4

    def __init__(self, input_size: int) -> None:
        super().__init__()
        self.layer, self.start = nn.GRUCell(input_size, 4), nn.Parameter(torch.zeros(1, 4))

    def initial_state(self, batch_size: int) -> tuple[torch.Tensor]:
        return (self.start.expand(batch_size, -1),)

    def step(self, x: torch.Tensor, should_reset: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
        new = self.layer(x, torch.where(should_reset.unsqueeze(1), self.start, state[0]))
        return new, (new,)

    def unroll(self, xs: torch.Tensor, should_reset: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
        outputs = []
        for x, reset in zip(xs, should_reset, strict=True):
            output, state = self.step(x, reset, state)
            outputs.append(output)
        return torch.stack(outputs), state


def test_an_initial_state_that_is_a_view_of_a_parameter_does_not_change_with_it() -> None:
    core = as_core(Begun(SIZE), SIZE)
    with torch.no_grad():
        state = core.initial_state(3)
    with torch.no_grad():
        core.module.start.fill_(9.0)
    assert torch.equal(state[0], torch.zeros(3, 4))
    outputs, _ = core.unroll(torch.randn(2, 3, SIZE), torch.zeros(2, 3, dtype=torch.bool), core.initial_state(3))
    outputs.sum().backward()
    assert core.module.start.grad.abs().sum() > 0


class Plain(Core):
    """Its state is a NamedTuple, which its cell forgets."""

    def initial_leaves(self) -> RMCState:
        return RMCState(torch.zeros(1, self.output_size))

    def cell(self, x: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
        new = 0.5 * state.memory + x
        return new, (new,)


def test_a_cell_may_return_its_state_as_a_plain_tuple() -> None:
    core, x, never = Plain(SIZE, SIZE), torch.randn(2, 3, SIZE), torch.zeros(2, 3, dtype=torch.bool)
    _, state = core.step(x[0], never[0], core.initial_state(3))
    output, state = core.step(x[1], never[1], state)
    assert isinstance(state, RMCState)
    assert torch.equal(output, core.unroll(x, never, core.initial_state(3))[0][1])


class LastCode(Core):
    """A core whose state is an index, which only its own steps can set."""

    def __init__(self, input_size: int) -> None:
        super().__init__(input_size)
        self.table = nn.Embedding(3, input_size)

    def initial_leaves(self) -> tuple[Tensor]:
        return (torch.full((1, 1), 2),)

    def cell(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        return x + self.table(state[0][:, 0]), ((x[:, :1] > 0).long(),)


class RunningSum(Core):
    """Its unroll subtracts the sum at the last reset: equal to its steps up to rounding."""

    def initial_leaves(self) -> tuple[Tensor]:
        return (torch.zeros(1, self.output_size),)

    def cell(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        total = state[0] + x / 3
        return total, (total,)

    def unroll(self, inputs: Tensor, should_reset: Tensor, state: Any) -> tuple[Tensor, Any]:
        totals = state[0] + (inputs / 3).cumsum(0)
        before = torch.cat([state[0][None], totals[:-1]])
        start = torch.zeros_like(before[0])
        outputs = []
        for t, reset in enumerate(should_reset):
            start = torch.where(reset.unsqueeze(1), before[t], start)
            outputs.append(totals[t] - start)
        return torch.stack(outputs), (outputs[-1],)


@pytest.mark.parametrize("kind", [LastCode, RunningSum])
def test_cores_with_an_index_as_state_or_rounding_at_resets_are_taken(kind: type[Core]) -> None:
    assert as_core(core := kind(4), 4) is core


def test_an_own_start_of_a_built_in_core_is_in_its_dtype_and_of_one_lane() -> None:
    class Started(GRU):
        lanes = 1

        def initial_leaves(self) -> Any:
            return HiddenState(torch.ones(self.lanes, self.output_size))

    core = Started(3, hidden_size=6).double()
    assert core(torch.zeros(2, 4, 3, dtype=torch.float64))[0].dtype == torch.float64
    core.lanes = 2
    with pytest.raises(ValueError, match=r"Started.initial_leaves: expected a tuple of tensors \[1, ...\]"):
        core.unroll(torch.zeros(2, 4, 3), torch.zeros(2, 4, dtype=torch.bool), HiddenState(torch.ones(4, 6)))


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ((torch.ones(1, 6),), "Started.initial_leaves: expected HiddenState of 1, got tuple of 1"),
        (HiddenState(torch.ones(1, 3)), r"Started.initial_leaves.hidden: expected \[1, 6\], got \[1, 3\]"),
    ],
)
def test_an_own_start_that_the_kernels_do_not_take(start: Any, message: str) -> None:
    class Started(GRU):
        def initial_leaves(self) -> Any:
            return start

    with pytest.raises(ValueError, match=message):
        Started(3, hidden_size=6).initial_state(2)


def test_a_module_on_another_device_takes_inputs_there() -> None:
    core = AdaptedCore(Begun(SIZE).to("meta"), SIZE)
    inputs, resets = torch.zeros(2, SIZE, device="meta"), torch.zeros(2, dtype=torch.bool, device="meta")
    assert core.step(inputs, resets, core.initial_state(2))[0].is_meta


class Adapted(nn.Module):
    """A wrapper that shows the weights of its layer, as adapters (LoRA) do."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias, self.more = layer.weight, layer.bias, nn.Linear(*layer.weight.shape[::-1])

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight, self.bias) + self.more(x)


@pytest.mark.parametrize("replace", [Adapted, nn.Sequential, lambda layer: nn.Linear(*layer.weight.shape[::-1], False)])
def test_layers_that_the_kernels_would_not_run_are_refused(replace: Any) -> None:
    core = RMC(4, mem_slots=2, head_size=4)
    core.input = replace(core.input)
    with pytest.raises(ValueError, match=r"expected an nn.Linear or nn.LayerNorm with a bias.* got (Adapt|Seq|Linear)"):
        core(torch.zeros(2, 3, 4))
