"""The contract of every core: shapes, steps and unrolls, and what a reset forgets."""

import pytest
import torch

from helpers.cores import CORES, INPUT, LANES, STEPS, flags, random_inputs, random_state, same
from rmc_agents.cores import RMC
from rmc_agents.types import map_leaves


class TestContract:
    @pytest.mark.parametrize(("steps", "lanes"), [(STEPS, LANES), (1, 1)])
    def test_shapes(self, core, steps, lanes):
        state = core.initial_state(lanes)
        outputs, after = core.unroll(random_inputs(steps, lanes), flags(steps=steps, lanes=lanes), state)
        assert outputs.shape == (steps, lanes, core.output_size)
        assert type(after) is type(state)
        for leaf, leaf_after in zip(state, after, strict=True):
            assert leaf.shape == leaf_after.shape
            assert leaf.shape[0] == lanes
        output, _ = core.step(random_inputs(1, lanes)[0], flags(steps=1, lanes=lanes)[0], state)
        assert output.shape == (lanes, core.output_size)

    @pytest.mark.parametrize("lanes", [1, LANES])
    def test_unroll_is_steps(self, core, lanes):
        inputs, should_reset = random_inputs(lanes=lanes), flags((0, 0), (3, 0), (4, lanes - 1), lanes=lanes)
        state = random_state(core, lanes)
        outputs, after = core.unroll(inputs, should_reset, state)
        for t in range(STEPS):
            output, state = core.step(inputs[t], should_reset[t], state)
            torch.testing.assert_close(output, outputs[t], rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(tuple(state), tuple(after), rtol=1e-13, atol=1e-13)

    def test_step_is_bitwise_an_unroll_of_one(self, core):
        inputs, should_reset, state = random_inputs(1), flags((0, 1), steps=1), random_state(core)
        outputs, after = core.unroll(inputs, should_reset, state)
        output, state = core.step(inputs[0], should_reset[0], state)
        assert torch.equal(output, outputs[0])
        assert same(state, after)

    def test_two_unrolls_are_one(self, core):
        inputs, should_reset, state = random_inputs(), flags((4, 0), (5, 1)), random_state(core)
        outputs, after = core.unroll(inputs, should_reset, state)
        first, between = core.unroll(inputs[:4], should_reset[:4], state)
        second, end = core.unroll(inputs[4:], should_reset[4:], between)
        torch.testing.assert_close(torch.cat([first, second]), outputs, rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(tuple(end), tuple(after), rtol=1e-13, atol=1e-13)

    def test_lanes_do_not_touch_each_other(self, core):
        inputs, state = random_inputs(), random_state(core)
        outputs, after = core.unroll(inputs, flags(), state)
        other_inputs, other = inputs.clone(), map_leaves(torch.clone, state)
        other_inputs[:, 0] = torch.nan
        for leaf in other:
            leaf[0] = torch.nan
        other_outputs, other_after = core.unroll(other_inputs, flags((2, 0), (5, 0)), other)
        assert torch.equal(outputs[:, 1:], other_outputs[:, 1:])
        assert same([leaf[1:] for leaf in after], [leaf[1:] for leaf in other_after])

    def test_nothing_is_changed_in_place(self, core):
        inputs, should_reset, state = random_inputs(), flags((0, 0), (2, 1)), random_state(core)
        copies = inputs.clone(), should_reset.clone(), map_leaves(torch.clone, state)
        fresh = core.initial_state(LANES)
        _, after = core.unroll(inputs, should_reset, state)
        assert same([inputs, should_reset, *state], [*copies[:2], *copies[2]])
        for leaf in [*after, *core.initial_state(LANES)]:
            leaf.detach().fill_(torch.nan)
        assert same(state, copies[2])
        assert same(core.initial_state(LANES), fresh)

    def test_no_state_stays_inside(self, core):
        inputs, state = random_inputs(), random_state(core)
        first = core.unroll(inputs, flags(), state)
        core.unroll(random_inputs(seed=5), flags((1, 1)), random_state(core))
        second = core.unroll(inputs, flags(), state)
        assert torch.equal(first[0], second[0])
        assert same(first[1], second[1])

    def test_state_dict_gives_the_same_core_back(self, core, request):
        kind, options = CORES[request.node.callspec.params["core"]]
        copy = kind(INPUT, **options).double()
        copy.load_state_dict(core.state_dict())
        inputs, state = random_inputs(), random_state(core)
        assert torch.equal(core.unroll(inputs, flags(), state)[0], copy.unroll(inputs, flags(), state)[0])
        assert same(core.initial_state(2), copy.initial_state(2))

    def test_initial_state_is_the_same_for_all_lanes_and_of_the_parameters_dtype(self, core):
        state, single = core.initial_state(4), core.float().initial_state(1)
        for leaf, one in zip(state, single, strict=True):
            assert leaf.dtype == torch.float64
            assert one.dtype == torch.float32
            assert all(torch.equal(leaf[i], leaf[0]) for i in range(4))
            torch.testing.assert_close(leaf[:1], one.double())


class TestReset:
    def test_output_is_bitwise_that_of_a_fresh_sequence(self, recurrent):
        """The past before the reset differs in everything; the arithmetic has equal shapes, so equal bits."""
        inputs, should_reset = random_inputs(), flags((3, 0), (3, 1), (3, 2))
        other_inputs = inputs.clone()
        other_inputs[:3] = random_inputs(3, seed=2)
        outputs, after = recurrent.unroll(inputs, should_reset, recurrent.initial_state(LANES))
        others, other_after = recurrent.unroll(other_inputs, should_reset, random_state(recurrent))
        assert not torch.equal(outputs[2], others[2])
        assert torch.equal(outputs[3:], others[3:])
        assert same(after, other_after)

    def test_at_the_first_step_it_is_bitwise_the_initial_state(self, recurrent):
        inputs, everywhere = random_inputs(), flags((0, 0), (0, 1), (0, 2))
        fresh = recurrent.unroll(inputs, flags(), recurrent.initial_state(LANES))
        reset = recurrent.unroll(inputs, everywhere, random_state(recurrent))
        assert torch.equal(fresh[0], reset[0])
        assert same(fresh[1], reset[1])

    def test_stepping_on_is_bitwise_starting_again(self, recurrent):
        inputs, state = random_inputs(), random_state(recurrent)
        fresh = recurrent.initial_state(LANES)
        for t in range(STEPS):
            output, state = recurrent.step(inputs[t], flags((0, 0), (0, 1), (0, 2))[0] & (t == 3), state)
            if t >= 3:
                expected, fresh = recurrent.step(inputs[t], flags()[0], fresh)
                assert torch.equal(output, expected)
                assert same(state, fresh)

    def test_other_lanes_remember(self, recurrent):
        inputs, state = random_inputs(), random_state(recurrent)
        without, _ = recurrent.unroll(inputs, flags(), state)
        outputs, _ = recurrent.unroll(inputs, flags((3, 1)), state)
        assert torch.equal(without[:, [0, 2]], outputs[:, [0, 2]])
        assert torch.equal(without[:3, 1], outputs[:3, 1])
        assert not torch.equal(without[3, 1], outputs[3, 1])

    def test_gradient_stops_exactly(self, recurrent):
        inputs = random_inputs().requires_grad_()
        state = type(s := random_state(recurrent))(*(leaf.requires_grad_() for leaf in s))
        outputs, after = recurrent.unroll(inputs, flags((3, 0), (3, 1)), state)
        loss = outputs[3:].square().sum() + sum(leaf.square().sum() for leaf in after)
        d_inputs, *d_state = torch.autograd.grad(loss, [inputs, *state])
        assert not d_inputs[:3, :2].any()
        assert d_inputs[3:].all()
        assert d_inputs[:3, 2].any()
        assert all(not leaf[:2].any() for leaf in d_state)
        assert any(leaf[2].any() for leaf in d_state)

    def test_nan_in_the_old_state_is_gone(self, recurrent):
        state = random_state(recurrent)
        for leaf in state:
            leaf.fill_(torch.nan).requires_grad_()
        inputs, everywhere = random_inputs().requires_grad_(), flags((0, 0), (0, 1), (0, 2))
        outputs, after = recurrent.unroll(inputs, everywhere, state)
        fresh, _ = recurrent.unroll(inputs, flags(), recurrent.initial_state(LANES))
        assert torch.equal(outputs, fresh)
        loss = outputs.square().sum() + sum(leaf.square().sum() for leaf in after)
        gradients = torch.autograd.grad(loss, [inputs, *state, *recurrent.parameters()])
        assert all(gradient.isfinite().all() for gradient in gradients)
        assert all(not gradient.any() for gradient in gradients[1 : 1 + len(state)])

    def test_initial_state_gets_its_gradient(self, recurrent):
        """A learned initial state needs it, both where it is passed in and where a reset inserts it."""
        passed = type(s := recurrent.initial_state(LANES))(*(leaf.requires_grad_() for leaf in s))
        outputs, _ = recurrent.unroll(random_inputs(), flags(), passed)
        assert all(leaf.any() for leaf in torch.autograd.grad(outputs.square().sum(), list(passed)))

        learned = type(s)(*(leaf.detach().clone().requires_grad_() for leaf in recurrent.initial_leaves()))
        recurrent.initial_leaves = lambda: learned
        data = type(s)(*(leaf.detach() for leaf in passed))
        outputs, _ = recurrent.unroll(random_inputs(), flags((3, 0), (5, 2)), data)
        assert all(leaf.any() for leaf in torch.autograd.grad(outputs.square().sum(), list(learned)))


def test_coupled_gates_keep_the_memory_between_minus_one_and_one():
    core = RMC(INPUT, mem_slots=3, head_size=4, num_heads=2, gate_style="coupled", slot_embedding=True)
    inputs, never = 10 * torch.randn(200, LANES, INPUT), torch.zeros(200, LANES, dtype=torch.bool)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.mul_(10.0)
        outputs, _ = core.unroll(inputs, never, core.initial_state(LANES))
    assert 0.9 < outputs.abs().max() <= 1.0 + 1e-6
