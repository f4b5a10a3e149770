"""The results of a scan belong to the caller, and gradients may come back in any memory layout."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.scans import EVERY_SCAN, LANES, STEPS, build, case
from rmc_agents.kernels.tape import tensors
from rmc_agents.types import map_leaves

INTERPRETED = pytest.mark.slow
every_scan = pytest.mark.parametrize(
    ("name", "backend"),
    [pytest.param(*scan, marks=INTERPRETED) if scan[1] == "triton" else scan for scan in EVERY_SCAN],
)


class Scan:
    """A scan of STEPS steps of LANES lanes on one backend; Triton's kernels are interpreted where there is no GPU."""

    def __init__(self, name: str, backend: str) -> None:
        self.core = build(name)
        self.core.backend = backend
        inputs, self.should_reset, state, initial_state = case(self.core, STEPS, LANES)
        self.inputs = inputs.requires_grad_()
        self.state, self.initial_state = (map_leaves(torch.Tensor.requires_grad_, s) for s in (state, initial_state))
        self.wanted = [self.inputs, *self.state, *self.initial_state, *tensors(self.core.weights())]
        self.unroll = _triton_unroll() if backend == "triton" else self.core.chosen_scan().unroll

    def __call__(self) -> tuple[Tensor, ...]:
        """Outputs and the leaves of the final state."""
        arguments = self.inputs, self.should_reset, self.state, self.initial_state, self.core.weights()
        outputs, final = self.unroll(*arguments)
        return outputs, *final

    def gradients(self, results: tuple[Tensor, ...], d_results: list[Tensor]) -> tuple[Tensor, ...]:
        return torch.autograd.grad(results, self.wanted, d_results, materialize_grads=True)


def _triton_unroll() -> Callable[..., Any]:
    pytest.importorskip("triton", reason="Triton is not installed: pip install rmc-agents[triton]")
    from rmc_agents.kernels.rmc.triton import rmc_unroll

    if torch.cuda.is_available():
        pytest.skip("the kernels are compiled for the GPU, and these tensors are on the CPU")
    return rmc_unroll


def assert_close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(tuple(actual), tuple(expected), rtol=1e-4, atol=1e-4)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda d: d.mT.contiguous().mT,
    "reversed axes": lambda d: d.permute(*reversed(range(d.dim()))).contiguous().permute(*reversed(range(d.dim()))),
    "with gaps": lambda d: torch.stack([d, torch.full_like(d, torch.nan)], -1)[..., 0],
    "one lane for all": lambda d: d[..., :1, :].expand_as(d),
    "one number for all": lambda d: d.flatten()[0].expand_as(d),
}


@pytest.mark.parametrize(
    ("name", "backend", "layout"),
    [(*scan, layout) for scan in EVERY_SCAN for layout in LAYOUTS if scan[1] == "fused"]
    + [pytest.param("rmc", "triton", layout, marks=INTERPRETED) for layout in ("reversed axes", "one number for all")],
)
def test_gradients_of_any_layout(name: str, backend: str, layout: str) -> None:
    """Gradients through outputs and final state, against the reference's with the same numbers in contiguous memory."""
    scan, plain = Scan(name, backend), Scan(name, "reference")
    results = scan()
    strided = [LAYOUTS[layout](torch.randn_like(x)) for x in results]
    assert not any(d.is_contiguous() for d in strided)
    assert_close(
        scan.gradients(results, strided),
        plain.gradients(plain(), [d.clone(memory_format=torch.contiguous_format) for d in strided]),
    )


@every_scan
def test_the_gradient_handed_in_is_not_written(name: str, backend: str) -> None:
    scan = Scan(name, backend)
    results = scan()
    d_results = [torch.randn_like(x) for x in results]
    before = [d.clone() for d in d_results]
    scan.gradients(results, d_results)
    assert all(map(torch.equal, d_results, before))


@every_scan
def test_gradients_after_a_change_in_place_of_what_was_handed_out(name: str, backend: str) -> None:
    """They are right, or autograd's own check of versions refuses them; never silently wrong."""
    scan, plain = Scan(name, backend), Scan(name, "reference")
    factors = [torch.randn_like(x) for x in plain()]
    expected = plain.gradients(tuple(map(torch.mul, plain(), factors)), [torch.ones_like(x) for x in factors])
    changed = tuple(x.mul_(factor) for x, factor in zip(scan(), factors, strict=True))
    if backend == "reference" and name in ("rnn", "relational-rnn"):  # their h is the result of a tanh
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            scan.gradients(changed, [torch.ones_like(x) for x in factors])
    else:
        assert_close(scan.gradients(changed, [torch.ones_like(x) for x in factors]), expected)


@pytest.mark.parametrize("with_gradient", [True, False])
@every_scan
def test_results_share_no_memory_with_each_other_or_with_a_later_scan(
    name: str, backend: str, with_gradient: bool
) -> None:
    scan = Scan(name, backend)
    with torch.set_grad_enabled(with_gradient):
        results = scan()
    if with_gradient:  # its buffers are free for the next scan only after that
        scan.gradients(results, [torch.ones_like(x) for x in results])
    outputs, *final = (x.detach() for x in results)
    kept, kept_final = outputs.clone(), [x.clone() for x in final]
    with torch.no_grad():
        scan.inputs.mul_(2.0)
        scan()
    assert torch.equal(outputs, kept)
    outputs.zero_()
    assert all(map(torch.equal, final, kept_final))
    places = [x.untyped_storage().data_ptr() for x in (outputs, *final)]
    assert len(set(places)) == len(places)


def test_a_state_may_change_once_it_has_been_read() -> None:
    """As on the reference: the backward pass does not read it."""
    for name in ("lstm", "gru", "mingru", "rnn", "rmc"):
        core, (inputs, should_reset, state, _) = build(name), case(build(name), STEPS, LANES)
        expected = core.unroll(inputs, should_reset, map_leaves(torch.clone, state))[0]
        actual = core.unroll(inputs, should_reset, state)[0]
        for leaf in state:
            leaf.zero_()
        gradients = (torch.autograd.grad(x.square().sum(), list(core.parameters())) for x in (actual, expected))
        assert_close(*gradients)
