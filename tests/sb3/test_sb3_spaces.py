"""Action spaces and pictures that Stable-Baselines3's policies take."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple

from helpers.actions import ACTION_SPACES
from helpers.runs import SMALL, resume, train

pytest.importorskip("sb3_contrib", reason="Stable-Baselines3 is not installed: pip install rmc-agents[sb3]")

from stable_baselines3.common.torch_layers import NatureCNN

from rmc_agents.config import Config
from rmc_agents.envs.making import make_env
from rmc_agents.evaluate import cli as evaluate_cli
from rmc_agents.evaluate.episodes import env_spec
from rmc_agents.runs.saved import load_policy
from rmc_agents.sb3 import make_sb3_env, to_sb3
from rmc_agents.train import cli as train_cli
from rmc_agents.train.algorithms import make_trainer
from rmc_agents.types import TimeStep

pytestmark = pytest.mark.slow
CPU = torch.device("cpu")


@pytest.mark.parametrize("kind", ACTION_SPACES)
def test_every_action_space_of_sb3_contrib_is_trained_played_and_resumed(kind: str, tmp_path: Path) -> None:
    run_dir, env = tmp_path / "run", f"Actions{kind}-v0"
    flags = ["--algo", "recurrent-ppo", "--env", env, "--eval-episodes", "3", "--total-frames", "40"]
    assert train_cli.main([*SMALL, *flags, "--no-video", "--run-dir", str(run_dir)]) == 0
    assert resume(run_dir, "--total-frames", "80", "--trust") == 0
    assert load_policy(run_dir, CPU, trust=True).spec == env_spec(env)


@pytest.mark.parametrize("kind", ACTION_SPACES)
def test_a_players_choices_are_its_distributions(kind: str) -> None:
    settings = {
        "algo": "recurrent-ppo",
        "env": f"Actions{kind}-v0",
        "num_envs": 2,
        "unroll_length": 2,
        "mem_slots": 3,
        "head_size": 4,
    }
    trainer = make_trainer(Config().updated(settings, "test"), CPU)
    player, policy, lanes = trainer.agent, trainer.model.policy, 20_000
    torch.nn.init.normal_(policy.action_net.weight)
    zeros = torch.zeros(lanes)
    steps = TimeStep(torch.rand(1, 2).expand(lanes, 2), zeros == 0, zeros.long(), zeros, zeros > 0, zeros > 0)
    state = player.initial_state(lanes)
    distribution = player.spec.distribution(player.step(steps, state)[0].policy_logits)
    likeliest = player.spec.to_env(distribution.mode().numpy())
    expected, _ = trainer.model.predict(steps.obs.numpy(), deterministic=True)
    np.testing.assert_allclose(likeliest, expected.reshape(likeliest.shape), rtol=0, atol=1e-5)
    drawn = torch.from_numpy(player.spec.to_env(distribution.sample(torch.Generator().manual_seed(0)).numpy())).double()
    torch.manual_seed(0)
    theirs = torch.as_tensor(trainer.model.predict(steps.obs.numpy())[0]).double()
    for moment in (torch.mean, torch.std):
        expected_moment = moment(theirs, dim=0).reshape(drawn.shape[1:])
        torch.testing.assert_close(moment(drawn, dim=0), expected_moment, rtol=0.05, atol=0.03)


def test_actions_that_stable_baselines3_cannot_learn_are_refused() -> None:
    settings = {"algo": "sb3-ppo", "env": "ActionsMultiBinary-v0"}
    with pytest.raises(ValueError, match=r"MultiBinary actions: expected --algo recurrent-ppo --sb3-policy rmc"):
        make_trainer(Config().updated(settings, "test"), CPU)


@pytest.mark.parametrize(("kind", "is_masked"), [("Mask", True), ("MaskInfo", True), ("Nested", False)])
def test_masks_that_are_ignored_are_warned_of(kind: str, is_masked: bool, caplog: pytest.LogCaptureFixture) -> None:
    to_sb3(make_env(f"helpers.zoo:Zoo-{kind}-v0", 2)).reset()
    assert ("algorithms ignore the action masks of" in caplog.text) == is_masked


def test_many_actions_pass_through_workers() -> None:
    settings: dict[str, Any] = {"algo": "recurrent-ppo", "env": "helpers.actions:ActionsMatrix-v0"}
    settings |= {"num_envs": 2, "env_workers": 2, "unroll_length": 4, "mem_slots": 3, "head_size": 4}
    trainer = make_trainer(Config().updated(settings, "test"), CPU)
    trainer.update()
    trainer.close()
    assert trainer.frames == 8


class PicturesEnv(gym.Env):
    """Pictures that are just large enough to be convolved; an episode lasts 3 steps."""

    observation_space = Box(0, 255, (36, 36, 3), np.uint8)
    action_space = Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.left = 3
        return self.observation_space.sample(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.left -= 1
        return self.observation_space.sample(), 1.0, False, self.left == 0, {}


class ChannelsFirstEnv(PicturesEnv):
    """Pictures with their channels first."""

    observation_space = Box(0, 255, (3, 36, 36), np.uint8)


class FloatPicturesEnv(PicturesEnv):
    """Pictures of floats, which Stable-Baselines3 does not convolve."""

    observation_space = Box(0, 1, (36, 36, 3), np.float32)


class SmallInDictEnv(PicturesEnv):
    """A picture that is too small for convolutions, and a category."""

    observation_space = Dict(view=Box(0, 255, (7, 7, 3), np.uint8), cue=Discrete(3))


class LargeInDictEnv(PicturesEnv):
    """A picture that can be convolved, and a category."""

    observation_space = Dict(view=Box(0, 255, (36, 36, 3), np.uint8), cue=Discrete(3))


NESTED = {
    "Table": Dict(table=MultiDiscrete([[2, 3], [4, 5]])),
    "Number": Dict(number=Box(-1, 1, ()), position=Box(-1, 1, (2, 2))),
    "Images": Dict(
        first=Box(0, 255, (3, 36, 40), np.uint8),
        middle=Box(0, 255, (36, 3, 40), np.uint8),
        last=Box(0, 255, (36, 40, 3), np.uint8),
        tie=Box(0, 255, (2, 2, 3), np.uint8),
    ),
    "Names": Dict({"a.b": Box(0, 255, (36, 36, 3), np.uint8), "": Discrete(3), "type": Box(-1, 1, (2,))}),
}
"""Observations with parts that Stable-Baselines3 itself does not take."""


class NestedEnv(PicturesEnv):
    """Observations of `NESTED`, determined by the seed."""

    def __init__(self, kind: str, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.observation_space = NESTED[kind]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        self.observation_space.seed(seed)
        return super().reset(seed=seed)


class TupleActionsEnv(PicturesEnv):
    """Actions of two choices."""

    action_space = Tuple((Discrete(2), Discrete(2)))


PICTURES = {
    "Pictures-v0": PicturesEnv,
    "ChannelsFirst-v0": ChannelsFirstEnv,
    "FloatPictures-v0": FloatPicturesEnv,
    "SmallInDict-v0": SmallInDictEnv,
    "LargeInDict-v0": LargeInDictEnv,
    "TupleActions-v0": TupleActionsEnv,
}
for env_id, env_class in PICTURES.items():
    if env_id not in gym.registry:
        gym.register(env_id, entry_point=env_class)
for kind in NESTED:
    if f"Nested{kind}-v0" not in gym.registry:
        gym.register(f"Nested{kind}-v0", entry_point=NestedEnv, kwargs={"kind": kind})


@pytest.mark.parametrize(
    ("kind", "flags"),
    [(kind, "recurrent-ppo") for kind in NESTED]
    + [("Images", "recurrent-ppo --sb3-policy mlp"), ("Images", "sb3-ppo")],
)
def test_every_nested_observation_is_trained_resumed_and_played_alike(kind: str, flags: str, tmp_path: Path) -> None:
    run_dir, env = tmp_path / "run", f"Nested{kind}-v0"
    flags = f"{flags} --env {env} --total-frames 10 --num-envs 2 --run-dir {run_dir}"
    assert train("--algo", *flags.split()) == 0
    assert resume(run_dir, "--total-frames", "20", "--trust") == 0
    player, lanes, seen = load_policy(run_dir, CPU, trust=True).agent, 5, []
    player.policy.features_extractor.register_forward_hook(lambda *call: seen.append(call[-1]))
    obs, zeros = player.spec.observe(make_env(env, lanes).reset(seed=1)[0]), torch.zeros(lanes)
    steps = TimeStep(obs, zeros == 0, zeros.long(), zeros, zeros > 0, zeros > 0)
    player.step(steps, player.initial_state(lanes))
    player.policy.predict(make_sb3_env(env, lanes, seed=1).reset())
    torch.testing.assert_close(seen[0], seen[-1])
    assert len(seen[0].unique(dim=0)) > 1


def test_images_all_get_their_channels_first_if_some_have_them() -> None:
    raw, _ = make_env("NestedImages-v0", 2).reset(seed=1)
    given = make_sb3_env("NestedImages-v0", 2, seed=1).reset()
    for name, axis in (("first", 1), ("middle", 2), ("last", 3), ("tie", 1)):
        np.testing.assert_array_equal(given[name], np.moveaxis(raw[name], axis, 1))


@pytest.mark.parametrize(
    ("flags", "convolves"),
    [("recurrent-ppo --sb3-policy cnn", True), ("sb3-ppo", True), ("sb3-a2c --sb3-policy mlp", False)],
)
def test_large_pictures_are_convolved_unless_set_otherwise(flags: str, convolves: bool, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    assert (
        train("--algo", *flags.split(), "--env", "Pictures-v0", "--total-frames", "40", "--run-dir", str(run_dir)) == 0
    )
    policy = load_policy(run_dir, CPU, trust=True).agent.policy
    assert isinstance(policy.features_extractor, NatureCNN) == convolves
    assert evaluate_cli.main([str(run_dir), "--trust", "--episodes", "2"]) == 0


@pytest.mark.parametrize(
    ("settings", "convolves", "width"),
    [
        ({"env": "ChannelsFirst-v0", "algo": "sb3-ppo"}, True, 512),
        ({"env": "FloatPictures-v0", "algo": "sb3-a2c"}, False, 36 * 36 * 3),
        ({"env": "SmallInDict-v0", "algo": "sb3-ppo"}, False, 7 * 7 * 3 + 3),
        ({"env": "LargeInDict-v0", "algo": "sb3-ppo"}, True, 256 + 3),
        ({"env": "LargeInDict-v0", "algo": "sb3-ppo", "sb3_policy": "mlp"}, False, 36 * 36 * 3 + 3),
        ({"env": "LargeInDict-v0", "algo": "recurrent-ppo", "encoder_sizes": [9, 7]}, True, 7),
        ({"env": "LargeInDict-v0", "algo": "recurrent-ppo", "encoder": "mlp", "encoder_sizes": []}, False, 3891),
        ({"env": "Pictures-v0", "algo": "recurrent-ppo", "encoder_sizes": [9, 7]}, True, 7),
        ({"env": "Pictures-v0", "algo": "recurrent-ppo", "encoder": "mlp", "encoder_sizes": [9]}, False, 9),
    ],
)
def test_features_are_those_that_the_settings_name(settings: dict[str, Any], convolves: bool, width: int) -> None:
    small = {"num_envs": 2, "unroll_length": 4, "mem_slots": 3, "head_size": 4}
    trainer = make_trainer(Config().updated(settings | small, "test"), CPU)
    features = trainer.model.policy.features_extractor
    assert features.features_dim == width
    assert any(isinstance(module, NatureCNN) for module in features.modules()) == convolves
    linear = [module.out_features for module in features.modules() if isinstance(module, torch.nn.Linear)]
    assert linear[-2:] == settings.get("encoder_sizes", linear[-2:])
    trainer.update()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"env": "TupleActions-v0"}, "Tuple actions: expected another algorithm than sb3-ppo"),
        ({"encoder_args": {"width": 64}}, "encoder_args: expected none for encoder auto, got width"),
        ({"encoder": "conv", "sb3_policy": "mlp"}, "encoder conv contradicts sb3_policy mlp"),
        ({"encoder": "mlp", "sb3_policy": "cnn"}, "encoder mlp contradicts sb3_policy cnn"),
        ({"encoder": "conv", "env": "SmallInDict-v0"}, "convolutions: expected images of bytes, of at least 36x36"),
        ({"core": "lstm", "core_args": {"width": 64}}, "core_args: expected none for core lstm"),
    ],
)
def test_settings_that_would_be_ignored_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_trainer(Config().updated({"algo": "sb3-ppo", "env": "Pictures-v0"} | settings, "test"), CPU)
