"""Whether a core does what `Core` promises: tried out on a few steps, before it is trained for hours."""

from functools import partial

import torch
from torch import Tensor

from rmc_agents.tryout import is_close, seed_on, trying_out

from .base import Core

is_equal = partial(is_close, rtol=0, atol=0)
is_nearly_equal = partial(is_close, rtol=1e-5, atol=1e-6)


def check_core(core: Core) -> None:
    """Try a custom core on up to four steps of one or two lanes; the global random numbers stay as they were.

    Raises:
      ValueError: if its memory is not all in the state, `unroll` does not return what `step` returns, its own `scan`
        not what `cell` returns, a lane depends on another, or an output for inputs of 1 is not finite.
    """
    like = next(filter(Tensor.is_floating_point, core.parameters()), core._like)  # in dtype and device
    with trying_out(core, like.device):
        _check_resets(core, like)
        _check_steps(core, like)
        _check_scan(core, like)
        _check_lanes(core, like)


def _check_resets(core: Core, like: Tensor) -> None:
    """Raises ValueError if what came before a reset changes what `step` or `unroll` returns after it, or that is not
    finite."""
    inputs = like.new_ones(2, 1, core.input_size)  # [T, B, D]
    resets = torch.tensor([[False], [True]], device=like.device)  # [T, B]

    def after_reset(method: str, is_changed: bool) -> list[Tensor]:
        state = core.initial_state(1)
        if is_changed:
            state = core.step(2 * inputs[0], resets[0], state)[1]
        seed_on(like.device, 0)
        if method == "step":
            output, state = core.step(inputs[1], resets[int(is_changed)], state)  # no reset: the initial state itself
        else:
            outputs, state = core.unroll(inputs, resets, state)
            output = outputs[1]
        return [output, *state]

    for method in ("step", "unroll"):
        first = after_reset(method, is_changed=False)
        if not all(map(is_nearly_equal, first, after_reset(method, is_changed=True))):
            raise ValueError(
                f"core: {core.class_name()}.{method}: expected the same result after a reset, whatever came before it, "
                "got another: where should_reset is set, begin with the initial state, and keep no memory in attributes"
            )
        if not first[0].isfinite().all():
            raise ValueError(f"core: {core.class_name()}.{method}: expected finite outputs for inputs of 1, got others")


def _check_steps(core: Core, like: Tensor) -> None:
    """Raises ValueError if `unroll` does not return what `step` returns, step by step, unless `step` is random."""
    inputs, resets = _sequence(core, like)

    def stepped(seed: int) -> list[Tensor]:
        seed_on(like.device, seed)
        state, outputs = core.initial_state(1), []
        for x, reset in zip(inputs, resets, strict=True):
            output, state = core.step(x, reset, state)
            outputs.append(output)
        return [torch.stack(outputs), *state]

    expected, again = stepped(0), stepped(1)
    outputs, state = core.unroll(inputs, resets, core.initial_state(1))
    if all(map(is_equal, expected, again)) and not all(map(is_close, expected, [outputs, *state])):
        raise ValueError(
            f"core: {core.class_name()}.unroll: expected the outputs and the last state of its step, in turn, got "
            "others: pass each step the last one's state, or the initial state where should_reset is set"
        )


def _check_scan(core: Core, like: Tensor) -> None:
    """Raises ValueError if the core's own `scan` does not return what its `cell` returns, unless that is random."""
    if type(core).scan.__module__.startswith("rmc_agents."):
        return
    inputs, resets = _sequence(core, like)
    state = core.step(2 * inputs[0], resets[0], core.initial_state(1))[1]

    def looped(seed: int) -> list[Tensor]:
        seed_on(like.device, seed)
        outputs, last = Core.scan(core, inputs, resets, state)
        return [outputs, *last]

    expected, again = looped(0), looped(1)
    outputs, last = core.scan(inputs, resets, state)
    if all(map(is_equal, expected, again)) and not all(map(is_close, expected, [outputs, *last])):
        raise ValueError(
            f"core: {core.class_name()}.scan: expected the outputs and the last state of its cell, in turn, got "
            "others: begin with the given state, and with the initial state where should_reset is set"
        )


def _sequence(core: Core, like: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs `[4, 1, D]`, and resets `[4, 1]` at the third."""
    inputs = torch.linspace(-1, 1, 4 * core.input_size).view(4, 1, -1).to(like)
    return inputs, torch.tensor([[False], [False], [True], [False]], device=like.device)


def _check_lanes(core: Core, like: Tensor) -> None:
    """Raises ValueError if `step` returns something else for a lane beside another, unless `step` is random."""
    inputs = torch.linspace(-1, 1, 2 * core.input_size).view(2, -1).to(like)  # [B, D]

    def stepped(lanes: slice, seed: int) -> list[Tensor]:
        seed_on(like.device, seed)
        x = inputs[lanes]
        output, state = core.step(x, torch.zeros(len(x), dtype=torch.bool, device=x.device), core.initial_state(len(x)))
        return [output, *state]

    both, again = stepped(slice(0, 2), seed=0), stepped(slice(0, 2), seed=1)
    alone = [torch.cat(leaves) for leaves in zip(stepped(slice(0, 1), 0), stepped(slice(1, 2), 0), strict=True)]
    if all(map(is_equal, both, again)) and not all(map(is_close, both, alone)):
        raise ValueError(
            f"core: {core.class_name()}.step: expected the same for a lane alone and beside another, got different "
            "results: the lanes (axis 0) are separate episodes, do not compute across them"
        )
