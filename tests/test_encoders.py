"""Encoders: images, grids, categories, and custom ones."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

from helpers.agents import SPEC, random_steps
from rmc_agents.agent import ActorCritic
from rmc_agents.encoders import MANY, Encoder, orthogonal_layer, register_encoder
from rmc_agents.encoders.trunks import Trunks
from rmc_agents.spaces import SpaceSpec
from rmc_agents.types import TimeStep, at

ALL_FIRST = torch.ones(2, dtype=torch.bool)


class Sums(torch.nn.Module):
    """A custom encoder: the sums of the rows, times a weight."""

    def __init__(self, spec: SpaceSpec, width: int = 5) -> None:
        super().__init__()
        self.output_size, self.weight = np.int64(width), torch.nn.Parameter(torch.ones(5))

    def forward(self, steps: TimeStep) -> torch.Tensor:
        rows = steps.obs.float().flatten(2).sum(dim=2)  # of [N, 5, 5, 3] only, not of [T, B, 5, 5, 3]
        return rows * self.weight


def test_a_custom_encoder_sees_time_and_lanes_as_one_axis() -> None:
    register_encoder("sums", Sums)
    steps = random_steps(3, 2)
    for encoder in (Sums, Sums(SPEC), partial(Sums, width=5), "sums"):
        agent = ActorCritic(SPEC, "lstm", encoder)
        output, _ = agent.unroll(steps, agent.initial_state(2))
        one, _ = agent.step(at(steps, 0), agent.initial_state(2))
        torch.testing.assert_close(output.value[0], one.value)
        assert agent.encode(steps).shape == (3, 2, 5)
    assert ActorCritic(SPEC, "lstm", Sums, encoder_args={"width": 7}).core.input_size == 7


class Centred(Sums):
    """Features minus those of the other time steps: mixes lanes."""

    def forward(self, steps: TimeStep) -> torch.Tensor:
        features = super().forward(steps)
        return features - features.mean(dim=0)


class Averaged(Sums):
    """Features plus half the last call's: a memory."""

    last: torch.Tensor | float = 0.0

    def forward(self, steps: TimeStep) -> torch.Tensor:
        self.last = super().forward(steps) + 0.5 * torch.as_tensor(self.last).mean()
        return self.last


class Noisy(Sums):
    """Features with noise."""

    def forward(self, steps: TimeStep) -> torch.Tensor:
        features = super().forward(steps)
        return features + torch.randn_like(features)


def test_encoders_that_mix_lanes_or_remember_are_refused() -> None:
    with pytest.raises(ValueError, match="the same of Centred for a time step alone and beside another"):
        ActorCritic(SPEC, "lstm", Centred)
    with pytest.raises(ValueError, match=r"expected Averaged to return the same .* it has to keep no memory"):
        ActorCritic(SPEC, "lstm", Averaged)
    ActorCritic(SPEC, "lstm", Noisy)  # random numbers are allowed


def test_an_axis_too_many_is_not_taken_for_mixed_lanes() -> None:
    class Deeper(Sums):
        def forward(self, steps: TimeStep) -> torch.Tensor:
            return super().forward(steps).unsqueeze(0)

    with pytest.raises(ValueError, match=r"encoder: expected features \[2, \d\], got \[1, 2, \d\]"):
        ActorCritic(SPEC, "lstm", Deeper).encode(random_steps(2))


@pytest.mark.parametrize(
    ("encoder", "expected"),
    [
        ("sumz", "there is no encoder 'sumz'; did you mean 'sums'.* rmc.register_encoder"),
        ("xyz", "there is no encoder 'xyz'; expected one of auto, mlp, conv, grid, sums"),
        (lambda spec: torch.nn.Linear(1, 1), "expected a module with an attribute output_size.* got Linear"),
        (lambda spec: 3, "output_size.* got int"),
        (3, "encoder: expected a name, a class, a function or a module, got int"),
        (lambda spec: torch.nn.LazyLinear(2), "expected initialised parameters, got lazy ones in LazyLinear"),
    ],
)
def test_what_is_no_encoder_is_named(encoder: Any, expected: str) -> None:
    register_encoder("sums", Sums)
    with pytest.raises(ValueError, match=expected):
        ActorCritic(SPEC, "lstm", encoder)


def test_encoders_are_registered_under_names_of_their_own() -> None:
    with pytest.raises(ValueError, match="register_encoder: 'mlp' is built-in"):
        register_encoder("mlp", Sums)
    with pytest.raises(ValueError, match="register_encoder: expected a class or a function, got Sums"):
        register_encoder("sums", Sums(SPEC))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="encoder_args: expected none for encoder Sums, got width"):
        ActorCritic(SPEC, "lstm", Sums(SPEC), encoder_args={"width": 7})
    agent = ActorCritic(SPEC, "lstm", partial(Sums, width=4))
    with pytest.raises(ValueError, match=r"encoder: expected features \[2, 4\], got \[2, 5\]"):
        agent.encode(random_steps(2)._replace(obs=torch.zeros(2, 5, 5, 3)))


def test_pictures_go_through_convolutions() -> None:
    spec = SpaceSpec((36, 40, 3), "uint8", 1 / 255, 4)
    encoder = Encoder(spec)
    assert encoder(random_steps(3, spec=spec)).shape == (3, 128)
    assert any(isinstance(module, torch.nn.Conv2d) for module in encoder.modules())
    with pytest.raises(ValueError, match=r"expected images .* got observations of shape \(5, 5, 3\); use encoder mlp"):
        Encoder(SPEC, "conv")


def test_a_grid_shares_weights_between_cells() -> None:
    """A cell's surroundings give the same features wherever they are."""
    grid = Encoder(SPEC, "grid").trunk
    obs = torch.rand(2, 5, 5, 3)
    features = grid(obs).unflatten(1, (-1, 3, 3))  # each of 3 x 3 cells
    torch.testing.assert_close(grid(obs.roll(1, 1)).unflatten(1, (-1, 3, 3))[..., 1:, :], features[..., :-1, :])
    assert not torch.equal(grid(obs.roll(1, 1)), grid(obs))
    with pytest.raises(ValueError, match=r"grid: expected images .* 3x3 pixels, got observations of shape \(2, 5, 3\)"):
        Encoder(SpaceSpec((2, 5, 3), "uint8", 1 / 255, 4), "grid")


def test_in_nested_observations_a_grid_takes_the_images() -> None:
    view, key = Box(0, 255, (5, 5, 3), np.uint8), Box(-1, 1, (3,), np.float32)
    spec = SpaceSpec.from_spaces(Dict({"view": view, "key": key}), Discrete(4))
    trunks = Encoder(spec, "grid").trunk
    assert isinstance(trunks, Trunks)
    convolved = [
        array.name for array, trunk in zip(trunks.arrays, trunks.each, strict=True) if len([*trunk.modules()]) > 1
    ]
    assert convolved == ["view"]
    with pytest.raises(ValueError, match=r"encoder grid: expected an image among the observations, got 'key' \(3,\)"):
        Encoder(SpaceSpec.from_spaces(Dict({"key": key}), Discrete(4)), "grid")


def test_pictures_are_brought_to_0_to_1() -> None:
    steps, features = random_steps(3), []
    for scale, brightest in ((1 / 255, 255), (1.0, 1)):
        torch.manual_seed(0)
        encoder = Encoder(SpaceSpec(SPEC.obs_shape, "uint8", scale, SPEC.num_actions))
        features.append(encoder(steps._replace(obs=torch.full_like(steps.obs, brightest))))
    torch.testing.assert_close(*features)


def test_the_layouts_of_pictures_are_recognised() -> None:
    """A picture says the same with its channels last, first or, where it has one, without an axis for it."""
    picture = torch.randint(0, 256, (2, 40, 44, 1), dtype=torch.uint8)
    features = []
    for obs in (picture, picture.movedim(-1, 1), picture[..., 0]):
        torch.manual_seed(0)
        spec = SpaceSpec(tuple(obs.shape[1:]), "uint8", 1 / 255, 4)
        features.append(Encoder(spec)(random_steps(2, spec=spec)._replace(obs=obs, is_first=ALL_FIRST)))
    torch.testing.assert_close(features[1], features[0])
    torch.testing.assert_close(features[2], features[0])
    for shape in ((4, 84, 84), (84, 84), (84, 84, 4)):
        encoder = Encoder(SpaceSpec(shape, "uint8", 1 / 255, 4))
        assert sum(parameter.numel() for parameter in encoder.parameters()) < 1e6


def test_a_large_picture_is_not_flattened_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    Encoder(SPEC)
    assert not caplog.records
    Encoder(SpaceSpec((84, 84), "uint8", 1 / 255, 4), "mlp")
    assert "(84, 84) are flattened to 7,056 numbers" in caplog.text
    assert "1,806,336 parameters" in caplog.text


def test_categories_are_looked_up_and_not_taken_as_amounts() -> None:
    space = MultiDiscrete([3, 2, 4], dtype=np.uint8)
    spec = SpaceSpec.from_spaces(space, Discrete(2))
    assert spec == SpaceSpec((3,), "uint8", 1.0, 2, (3, 2, 4))
    encoder = Encoder(spec, sizes=(8,))
    steps = random_steps(5, spec=spec)._replace(obs=torch.tensor([2, 1, 3], dtype=torch.uint8).expand(5, 3))
    table, bias = encoder.trunk.table, encoder.trunk.bias
    expected = torch.relu(table[2] + table[3 + 1] + table[3 + 2 + 3] + bias)
    torch.testing.assert_close(encoder.trunk(steps.obs)[0], expected)
    assert encoder(steps).shape == (5, 8)


def test_features_of_another_dtype_are_refused() -> None:
    class Double(Encoder):
        def forward(self, steps: Any) -> torch.Tensor:
            return super().forward(steps).double()

    with pytest.raises(ValueError, match=r"encoder: expected features of torch.float32, got torch.float64"):
        ActorCritic(SPEC, "lstm", Double).encode(random_steps(3))


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
def test_categories_keep_their_places_in_every_dtype(dtype: Any) -> None:
    spec = SpaceSpec.from_spaces(Dict(x=MultiDiscrete([3, 3], dtype=dtype)), Discrete(2))
    seen = spec.observe({"x": np.array([[0, 1], [1, 0]], dtype)})
    steps = random_steps(2)._replace(obs=seen, prev_action=torch.zeros(2, dtype=torch.int64), is_first=ALL_FIRST)
    one, other = Encoder(spec)(steps)
    assert not torch.allclose(one, other)


def test_what_came_before_an_episode_is_not_read() -> None:
    spec = SpaceSpec.from_spaces(Box(-1, 1, (2,)), Box(-1, 1, (1,)))
    nothing = torch.full((2, 1), float("nan"))
    steps = random_steps(2)._replace(
        obs=torch.ones(2, 2), prev_action=nothing, prev_reward=nothing[:, 0], is_first=ALL_FIRST
    )
    assert Encoder(spec)(steps).isfinite().all()


def test_the_weights_of_very_many_outputs_are_nearly_orthogonal() -> None:
    weight = orthogonal_layer(4, MANY + 1, gain=2.0).weight
    torch.testing.assert_close(weight.t() @ weight, 4.0 * torch.eye(4), rtol=0.02, atol=0.1)
