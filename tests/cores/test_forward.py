"""`Core.forward`: `unroll` with defaults, a replacement for `torch.nn.LSTM`."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, distributed, nn

from helpers.cores import INPUT, LANES, STEPS, build, flags, random_inputs, random_state, same
from rmc_agents.cores import GRU, LSTM, RMC, Core
from rmc_agents.types import State, map_leaves

LENGTHS = [4, 7, 1]
NAMES = ["rmc-plain", "lstm", "transformer", "none"]  # one leaf, two, a scan of its own, no state


@pytest.fixture(params=NAMES)
def core(request: pytest.FixtureRequest) -> Core:
    made: Core = build(request.param)
    return made


def test_defaults_are_the_initial_state_and_no_resets(core: Core) -> None:
    x = random_inputs()
    expected, expected_state = core.unroll(x, flags(), core.initial_state(LANES))
    outputs, state = core(x)
    assert torch.equal(outputs, expected)
    assert same(state, expected_state)


def test_batch_first(core: Core) -> None:
    x, should_reset, state = random_inputs(), flags((3, 0), (5, 2)), random_state(core)
    expected, expected_state = core(x, state, should_reset)
    outputs, state = core(x.transpose(0, 1), state, should_reset.transpose(0, 1), batch_first=True)
    assert torch.equal(outputs, expected.transpose(0, 1))
    assert same(state, expected_state)


@pytest.mark.parametrize(
    ("lengths", "batch_first"),
    [(LENGTHS, True), (torch.tensor(LENGTHS, dtype=torch.uint16), False), ([2, 2, 2], False), ([7, 7, 7], False)],
)
def test_padded_sequences_are_each_sequence_alone(core: Core, lengths: Tensor | list[int], batch_first: bool) -> None:
    """Outputs, states and the gradients of inputs, state and weights; the padding is NaN and gets none."""
    x, should_reset, state = random_inputs(), flags((2, 0), (5, 1), (0, 2)), random_state(core)
    padded = x.clone()
    for lane, length in enumerate(lengths):
        padded[length:, lane] = torch.nan
    padded.requires_grad_()
    x.requires_grad_()
    parameters = list(core.parameters())

    def loss(outputs: Tensor, final: State) -> Tensor:
        return outputs.square().sum() + sum((leaf.sin().sum() for leaf in final), torch.zeros(()))

    flip = (lambda y: y.transpose(0, 1)) if batch_first else (lambda y: y)
    outputs, final = core(flip(padded), state, flip(should_reset), lengths, batch_first)
    outputs = flip(outputs)
    total: Tensor = torch.zeros(())
    for lane, length in enumerate(lengths):
        own = (slice(None, int(length)), slice(lane, lane + 1))
        alone, alone_final = core.unroll(x[own], should_reset[own], map_leaves(lambda y, i=lane: y[i : i + 1], state))
        torch.testing.assert_close(outputs[own], alone, rtol=1e-12, atol=1e-12)
        assert not outputs[length:, lane].any()
        torch.testing.assert_close(
            tuple(leaf[lane : lane + 1] for leaf in final), tuple(alone_final), rtol=1e-12, atol=1e-12
        )
        total = total + loss(alone, alone_final)
    expected = torch.autograd.grad(total, [x, *parameters], materialize_grads=True)
    actual = torch.autograd.grad(loss(outputs, final), [padded, *parameters], materialize_grads=True)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


def test_it_takes_the_place_of_torchs_lstm() -> None:
    """Outputs and last states of packed sequences, with the same weights."""
    theirs, ours = nn.LSTM(INPUT, 6, batch_first=True).double(), LSTM(INPUT, hidden_size=6).double()
    with torch.no_grad():
        ours.weight_ih.copy_(theirs.weight_ih_l0)
        ours.weight_hh.copy_(theirs.weight_hh_l0)
        ours.bias.copy_(theirs.bias_ih_l0 + theirs.bias_hh_l0)
    x = random_inputs().transpose(0, 1)
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor(LENGTHS), batch_first=True, enforce_sorted=False)
    expected, (hidden, cell) = theirs(packed)
    outputs, state = ours(x, lengths=LENGTHS, batch_first=True)
    torch.testing.assert_close(outputs, nn.utils.rnn.pad_packed_sequence(expected, batch_first=True)[0])
    torch.testing.assert_close(tuple(state), (hidden[0], cell[0]))
    again, _ = ours(x, tuple(leaf.detach() for leaf in state), batch_first=True)  # as in truncated backpropagation
    assert torch.equal(again, ours(x, state, batch_first=True)[0])


@pytest.mark.parametrize(
    ("lengths", "got"),
    [
        ([1, 2], r"\[1, 2\]"),
        ([0, 2, 3], "0"),
        ([1, 2, 8], "8"),
        ([1.0, 2.0, 3.0], "1.0"),
        ([True] * 3, "True"),
        (3, "3"),
        ("abc", "'abc'"),
        ([1, None, 3], "None"),
    ],
)
def test_wrong_lengths(lengths: object, got: str) -> None:
    with pytest.raises(ValueError, match=f"lengths: expected 3 integers from 1 to 7, got .*{got}"):
        build("gru")(random_inputs(), lengths=lengths)


def test_wrong_inputs() -> None:
    core, x = build("gru"), random_inputs()
    with pytest.raises(ValueError, match=r"x: expected a tensor \[T, B, 5\], with lengths if padded, got \[3, 5\]"):
        core(x[0])
    packed = nn.utils.rnn.pack_sequence([x[:, 0], x[:3, 1]])
    with pytest.raises(
        ValueError, match=r"x: expected a tensor \[B, T, 5\], with lengths if padded, got PackedSequence"
    ):
        core(packed, batch_first=True)
    with pytest.raises(ValueError, match=r"should_reset: expected \[7, 3\] \[T, B\], as of inputs, got \[3, 7\]"):
        core(x, should_reset=flags().t())
    with pytest.raises(ValueError, match="state: expected HiddenState of 1, as initial_state gives it, got tuple"):
        core(x, (x[0], x[0]))
    with pytest.raises(ValueError, match="inputs: expected a tensor, got ndarray"):
        core.step(x[0].numpy(), flags()[0], core.initial_state(3))


class TestModes:
    """The modes of torch, with float32 and the fused kernels."""

    @pytest.fixture
    def rmc(self) -> RMC:
        torch.manual_seed(0)
        return RMC(INPUT, mem_slots=3, head_size=4, num_heads=2)

    @pytest.fixture
    def x(self) -> Tensor:
        return random_inputs().float()

    def test_hooks(self, rmc: RMC, x: Tensor) -> None:
        seen = []
        rmc.register_forward_hook(lambda module, args, result: seen.append(result[0]))
        outputs, _ = rmc(x)
        assert seen[0] is outputs
        nn.utils.spectral_norm(next(part for part in rmc.modules() if isinstance(part, nn.Linear)))
        with pytest.raises(ValueError, match=r"Linear\(.*\) has hooks, which do not run"):
            rmc(x)
        with pytest.raises(ValueError, match="has hooks"), rmc.stepping(rmc.initial_state(LANES)):
            pass

    def test_hooks_run_in_an_overridden_cell(self, x: Tensor) -> None:
        class Own(GRU):
            def __init__(self) -> None:
                super().__init__(INPUT, hidden_size=6)
                self.extra = nn.Linear(INPUT, INPUT)

            def cell(self, x: Tensor, state: State) -> tuple[Tensor, State]:
                return super().cell(self.extra(x), state)

        core, seen = Own(), []
        core.extra.register_forward_hook(lambda *_: seen.append(1))
        core(x)
        assert len(seen) == STEPS
        assert core.chosen_backend() == "reference"

    def test_an_initial_state_of_its_own_follows_the_dtype_everywhere(self, x: Tensor) -> None:
        class Started(GRU):
            def initial_leaves(self) -> State:
                return type(super().initial_leaves())(torch.ones(1, self.output_size, dtype=torch.float32))

        core = Started(INPUT, hidden_size=6).double()
        state = core.initial_state(LANES)
        gates = core.gate_values(x[0], torch.ones(LANES, dtype=torch.bool), state)
        assert {gate.dtype for gate in gates.values()} == {torch.float64}

    @pytest.mark.parametrize("lengths", [None, LENGTHS])
    def test_inference_mode_and_autocast_change_nothing(self, rmc: RMC, x: Tensor, lengths: list[int] | None) -> None:
        expected, _ = rmc(x, lengths=lengths)
        with torch.inference_mode():
            assert torch.equal(rmc(x, lengths=lengths)[0], expected)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(rmc(x, lengths=lengths)[0], expected)
            rough, _ = rmc(x.bfloat16(), lengths=lengths)
        assert rough.dtype == torch.float32

    @pytest.mark.slow
    @pytest.mark.parametrize("lengths", [None, [1, 2, 1]])
    def test_compiled(self, rmc: RMC, x: Tensor, lengths: list[int] | None) -> None:
        torch._dynamo.reset()
        compiled, x = torch.compile(rmc, backend="eager", fullgraph=lengths is None), x[:2]  # each step takes time
        torch.testing.assert_close(compiled(x, lengths=lengths), rmc(x, lengths=lengths), rtol=1e-4, atol=1e-4)

    @pytest.mark.slow
    def test_exported_for_any_batch(self, rmc: RMC, x: Tensor) -> None:
        x, other = x[:2], random_inputs(2, lanes=2).float()  # each step takes time
        program = torch.export.export(rmc, (x,), dynamic_shapes={"x": {1: torch.export.Dim("b")}})
        torch.testing.assert_close(program.module()(other), rmc(other), rtol=1e-4, atol=1e-4)

    @pytest.mark.filterwarnings("ignore")  # about the checks of shapes, which are not traced
    def test_traced(self, rmc: RMC, x: Tensor) -> None:
        traced, other = torch.jit.trace(rmc, x), random_inputs(lanes=2).float()
        torch.testing.assert_close(tuple(traced(other)), tuple(rmc(other)), rtol=1e-4, atol=1e-4)

    @pytest.mark.filterwarnings("ignore")
    def test_lengths_are_not_traced(self, rmc: RMC, x: Tensor) -> None:
        with pytest.raises(ValueError, match="lengths: a trace would hard-code them"):
            torch.jit.trace(lambda y: rmc(y, lengths=LENGTHS)[0], x)


@pytest.fixture
def one_process(tmp_path: object) -> Iterator[None]:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("one_process")
def test_data_parallel() -> None:
    torch.manual_seed(0)
    core, x = GRU(INPUT, hidden_size=6), random_inputs().float()
    expected = torch.autograd.grad(core(x, lengths=LENGTHS)[0].square().sum(), list(core.parameters()))
    nn.parallel.DistributedDataParallel(core)(x, lengths=LENGTHS)[0].square().sum().backward()
    torch.testing.assert_close([p.grad for p in core.parameters()], list(expected))
    assert x.shape == (STEPS, LANES, INPUT)
