"""The cores as a policy of Stable-Baselines3's recurrent PPO."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

pytest.importorskip("sb3_contrib", reason="Stable-Baselines3 is not installed: pip install rmc-agents[sb3]")

from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from sb3_contrib import RecurrentPPO
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv

from rmc_agents.sb3 import RmcPolicy, copy_lstm_policy, make_sb3_env
from rmc_agents.sb3.extractors import DictFeatures, MlpFeatures

SMALL = {"mem_slots": 3, "num_heads": 2, "head_size": 4, "hidden_size": 7, "net_arch": [8]}
LANES, STEPS = 4, 6


def make_model(env: str = "minipacman", **options: Any) -> RecurrentPPO:
    return RecurrentPPO(
        "RmcPolicy",
        make_sb3_env(env, LANES, seed=3),
        n_steps=8,
        batch_size=16,
        n_epochs=1,
        seed=5,
        device="cpu",
        policy_kwargs=SMALL | options,
    )


def make_policy(**options: Any) -> RmcPolicy:
    return make_model(**options).policy


def random_sequences(policy: RmcPolicy, seed: int = 0) -> tuple[np.ndarray, torch.Tensor]:
    """Observations [STEPS, LANES, ...] and where episodes start."""
    generator = np.random.default_rng(seed)
    obs = generator.integers(0, 256, (STEPS, LANES, *policy.observation_space.shape)).astype(np.uint8)
    return obs, torch.from_numpy(generator.random((STEPS, LANES)) < 0.3)


def by_lane(steps: Any) -> torch.Tensor:
    """[T, B, ...] as [B * T, ...], the order of minibatches."""
    return torch.as_tensor(steps).transpose(0, 1).flatten(0, 1)


def random_state(policy: RmcPolicy, lanes: int = LANES) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (1, lanes, policy.lstm_actor.hidden_size)
    return torch.randn(shape), torch.randn(shape)


@pytest.mark.parametrize(("env", "core"), [("minipacman", "rmc"), ("recall", "gru")])
def test_training_reaches_every_parameter(env: str, core: str) -> None:
    model = make_model(env, core=core)
    before = {name: parameter.clone() for name, parameter in model.policy.named_parameters()}
    model.learn(256)
    for name, parameter in model.policy.named_parameters():
        assert parameter.isfinite().all()
        assert not torch.equal(parameter, before[name]), name


def test_observations_may_be_categories() -> None:
    model = make_model("memory-s7", core="rmc").learn(32)
    categories = model.observation_space.nvec
    assert model.policy.lstm_actor.input_size == int(categories.sum()) > 255
    actions, _ = model.predict(model.env.reset())
    assert actions.shape == (LANES,)


def test_a_core_without_memory_is_a_policy_too() -> None:
    model = make_model(core="none")
    model.learn(32)
    _, state = model.predict(model.env.reset())
    assert state[0].shape == (1, LANES, 0)


@pytest.mark.parametrize("core", ["rmc", "lstm", "gru"])
def test_predict_step_by_step_is_the_unroll(core: str) -> None:
    policy = make_policy(core=core)
    obs, starts = random_sequences(policy)
    first = random_state(policy)
    state: Any = tuple(half.numpy() for half in first)
    actions = []
    for obs_t, starts_t in zip(obs, starts.numpy(), strict=True):
        action, state = policy.predict(obs_t, state=state, episode_start=starts_t, deterministic=True)
        actions.append(action)
    with torch.no_grad():
        distribution, last = policy.get_distribution(by_lane(obs), first, by_lane(starts).float())
    np.testing.assert_array_equal(by_lane(np.stack(actions)), distribution.get_actions(deterministic=True))
    for half, expected in zip(state, last, strict=True):
        np.testing.assert_allclose(half, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("core", ["rmc", "relational-rnn", "lstm"])
def test_an_episode_starts_at_the_cores_initial_state_exactly(core: str) -> None:
    policy = make_policy(core=core)
    packed = policy.lstm_actor
    features, none = torch.randn(LANES, packed.input_size), torch.zeros(LANES, dtype=torch.bool)
    expected, state = packed.core.step(features, none, packed.core.initial_state(LANES))
    poisoned = tuple(torch.full_like(half, torch.nan) for half in random_state(policy))
    fresh = tuple(torch.zeros_like(half) for half in poisoned)
    for before, starts in ((poisoned, torch.ones(LANES)), (fresh, torch.zeros(LANES))):
        outputs, after = packed(features, before, starts)
        assert torch.equal(outputs, expected)
        torch.testing.assert_close(packed.unpack(after), state, rtol=0, atol=1e-6)


def test_what_fills_up_a_sequence_does_not_matter() -> None:
    policy = make_policy(core="rmc")
    obs, starts = random_sequences(policy)
    state, actions = random_state(policy), torch.randint(5, (LANES, STEPS))
    lengths = [6, 2, 5, 1]
    mask = torch.arange(STEPS) < torch.tensor(lengths)[:, None]  # [B, T]

    def evaluate(obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        flags = by_lane(starts).float() * mask.flatten()
        values, log_prob, _ = policy.evaluate_actions(obs, actions.flatten(), RNNStates(state, state), flags)
        policy.zero_grad()
        (values.flatten() + log_prob)[mask.flatten()].sum().backward()
        return values.detach(), torch.cat([parameter.grad.flatten() for parameter in policy.parameters()])

    values, gradient = evaluate(by_lane(obs))
    other_values, other_gradient = evaluate(by_lane(obs) * mask.flatten()[:, None, None, None])
    torch.testing.assert_close(other_values[mask.flatten()], values[mask.flatten()], rtol=0, atol=1e-6)
    torch.testing.assert_close(other_gradient, gradient, rtol=1e-4, atol=1e-5)
    lane = 2  # by itself, in its own length
    alone = tuple(half[:, lane : lane + 1] for half in state)
    with torch.no_grad():
        expected = policy.predict_values(
            torch.as_tensor(obs[: lengths[lane], lane]), alone, starts[: lengths[lane], lane].float()
        )
    torch.testing.assert_close(values.unflatten(0, (LANES, STEPS))[lane, : lengths[lane]], expected, rtol=0, atol=1e-5)


def test_lstm_is_sb3_contribs_own_policy() -> None:
    options = {"net_arch": [8], "lstm_hidden_size": 7, "shared_lstm": True, "enable_critic_lstm": False}
    theirs = RecurrentPPO(
        "MlpLstmPolicy", make_sb3_env("minipacman", LANES), policy_kwargs=options, device="cpu"
    ).policy
    ours = make_policy(core="lstm", core_skip=False)
    torch.nn.init.normal_(theirs.action_net.weight)  # so that the policies are not uniform
    copy_lstm_policy(theirs, ours)
    obs, starts = random_sequences(ours)
    state, actions = random_state(ours), torch.randint(5, (LANES * STEPS,))
    arguments = (by_lane(obs), actions, RNNStates(state, state), by_lane(starts).float())
    for mine, other in zip(ours.evaluate_actions(*arguments), theirs.evaluate_actions(*arguments), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-5)
    mine, other = (
        policy.forward(torch.as_tensor(obs[0]), RNNStates(state, state), starts[0].float(), deterministic=True)
        for policy in (ours, theirs)
    )
    torch.testing.assert_close(mine, other, rtol=0, atol=1e-5)


def test_copying_a_policy_of_another_size_or_kind_is_refused() -> None:
    options = {"lstm_hidden_size": 9, "shared_lstm": True, "enable_critic_lstm": False}
    theirs = RecurrentPPO("MlpLstmPolicy", make_sb3_env("minipacman"), policy_kwargs=options, device="cpu").policy
    for source in (theirs, make_policy(core="none")):
        with pytest.raises(ValueError, match="do not fit"):
            copy_lstm_policy(source, make_policy(core="lstm", core_skip=False))


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("core", ["rmc", "none"])
def test_the_heads_read_the_core_times_its_gain_and_past_it_their_own_features(core: str, shared: bool) -> None:
    options = {"features_extractor_class": MlpFeatures, "features_extractor_kwargs": {"sizes": [6]}, "net_arch": []}
    policy = make_policy(core=core, core_gain=0.25, share_features_extractor=shared, **options)
    obs, starts = random_sequences(policy)
    state = random_state(policy)
    values = policy.predict_values(by_lane(obs), state, by_lane(starts).float())
    scaled = by_lane(obs).float() / 255
    actors, critics = policy.pi_features_extractor(scaled), policy.vf_features_extractor(scaled)
    assert torch.equal(actors, critics) == shared
    latent, _ = policy.lstm_actor(actors, state, by_lane(starts).float())
    read = [0.25 * latent, critics] if core == "rmc" or not shared else [0.25 * latent]
    torch.testing.assert_close(values, policy.value_net(torch.cat(read, dim=-1)), rtol=0, atol=1e-6)


def test_an_extractor_that_nothing_would_read_is_refused() -> None:
    with pytest.raises(ValueError, match="share_features_extractor=False: expected core_skip=True"):
        make_policy(core="lstm", core_skip=False, share_features_extractor=False)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ("coupled", True, 1.0, 0.0)),
        ({"slot_embedding": False, "core_gain": 0.25}, ("coupled", False, 0.25, 0.0)),
        ({"gate_style": "coupled"}, ("coupled", False, None, 1.0)),  # as asked for, and as archives tell it
        ({"core": "lstm"}, (None, None, None, 1.0)),
    ],
)
def test_an_rmcs_gates_are_coupled_unless_others_are_asked_for(options: dict[str, Any], expected: tuple) -> None:
    parameters = make_policy(**options)._get_constructor_parameters()
    names = ("gate_style", "slot_embedding", "core_gain", "forget_bias")
    assert tuple(map(parameters.get, names)) == expected


@pytest.mark.parametrize("options", [{}, {"slot_embedding": True}])
def test_an_archive_of_when_the_papers_gates_were_the_default_is_what_it_was(
    options: dict[str, Any], tmp_path: Path
) -> None:
    model = make_model(gate_style="unit", **options).learn(32)
    model.policy_kwargs = SMALL | options  # as stored in such an archive
    model.save(tmp_path / "model")
    loaded = RecurrentPPO.load(tmp_path / "model", device="cpu")
    obs, starts = random_sequences(model.policy)
    for mine, other in zip(play(model.policy, obs, starts), play(loaded.policy, obs, starts), strict=True):
        np.testing.assert_array_equal(mine, other)
    trained = loaded.policy.optimizer.param_groups[0]["params"]
    assert {id(parameter) for parameter in trained} == {id(parameter) for parameter in loaded.policy.parameters()}


class DictEnv(gym.Env):
    """Pictures too small to be convolved, and pictures that are not, in a dictionary; an episode lasts 3 steps."""

    observation_space = Dict(
        {
            "small": Box(0, 255, (7, 7, 3), np.uint8),
            "large": Box(0, 255, (36, 40, 3), np.uint8),
            "vector": Box(-1, 1, (2,), np.float32),
            "name": Discrete(4),
        }
    )
    action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        super().reset(seed=seed)
        self.left = 3
        return self.observation_space.sample(), {}

    def step(self, action: int) -> tuple[dict, float, bool, bool, dict]:
        self.left -= 1
        return self.observation_space.sample(), 1.0, self.left == 0, False, {}


@pytest.mark.parametrize("shared", [True, False])
def test_a_dictionarys_pictures_may_be_small(shared: bool) -> None:
    model = RecurrentPPO(
        "RmcPolicy", DummyVecEnv([DictEnv]), n_steps=8, n_epochs=1, device="cpu",
        policy_kwargs=SMALL | {"share_features_extractor": shared},
    )  # fmt: skip
    assert isinstance(model.policy.features_extractor, DictFeatures)
    assert model.policy.features_dim == 7 * 7 * 3 + 256 + 2 + 4
    model.learn(16)


def test_saved_and_loaded_plays_the_same(tmp_path: Path) -> None:
    model = make_model(core="rmc", core_gain=0.25, gate_style="memory", share_features_extractor=False).learn(64)
    model.save(tmp_path / "model")
    model.policy.save(str(tmp_path / "policy"))
    obs, starts = random_sequences(model.policy)
    others = [
        RecurrentPPO.load(tmp_path / "model", device="cpu").policy,
        RmcPolicy.load(str(tmp_path / "policy"), "cpu"),
    ]
    expected = play(model.policy, obs, starts)
    assert len(np.unique(expected[0])) > 1
    for policy in others:
        for mine, other in zip(expected, play(policy, obs, starts), strict=True):
            np.testing.assert_array_equal(mine, other)


def play(policy: RmcPolicy, obs: np.ndarray, starts: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Actions and the last state."""
    actions, state = [], None
    torch.manual_seed(0)
    for obs_t, starts_t in zip(obs, starts.numpy(), strict=True):
        action, state = policy.predict(obs_t, state=state, episode_start=starts_t)
        actions.append(action)
    assert state is not None
    return np.stack(actions), state[0]


def test_evaluate_policy_counts_whole_episodes() -> None:
    model = make_model("recall")
    returns, lengths = evaluate_policy(model, model.env, n_eval_episodes=9, return_episode_rewards=True)
    assert len(returns) == 9
    assert set(returns) <= {-1.0, 0.0, 1.0}
    assert all(1 <= length <= 5 for length in lengths)


def test_options_without_effect_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    model = RecurrentPPO(
        "RmcPolicy",
        make_sb3_env("recall", 1),
        policy_kwargs={"core": "lstm", "hidden_size": 4, "mem_slots": 2},
        device="cpu",
    )
    again = type(model.policy)(**model.policy._get_constructor_parameters())  # no further warning
    assert again._config.core.hidden_size == 4
    assert [record.getMessage() for record in caplog.records] == [
        "policy_kwargs: without effect with the core lstm: mem_slots"
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mem_slot": 4}, "no option 'mem_slot'; did you mean 'mem_slots'"),
        ({"lstm_hidden_size": 4}, "did you mean 'hidden_size'"),
        ({"mem_slots": 0}, "mem_slots: input should be greater than 0, got 0"),
        ({"core": "rmd"}, "there is no core 'rmd'; did you mean 'rmc'"),
    ],
)
def test_wrong_options_are_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        make_policy(**options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("observations", "actions", "message"),
    [
        (Dict(a=MultiDiscrete([[2, 3]])), Discrete(2), r"MultiDiscrete \(1, 2\) for observation 'a'"),
        (Box(-1, 1, ()), Discrete(2), r"Box \(\) for observations"),
        (Box(-1, 1, (2,)), MultiDiscrete([[2, 3]]), r"MultiDiscrete \(1, 2\) for actions"),
        (Box(-1, 1, (2,)), MultiBinary((2, 2)), r"MultiBinary \(2, 2\) for actions"),
    ],
)
def test_shapes_that_only_the_bridge_flattens_are_refused(
    observations: gym.Space, actions: gym.Space, message: str
) -> None:
    with pytest.raises(ValueError, match=f"spaces: expected vectors, got {message}; flatten them, or use make_sb3_env"):
        RmcPolicy(observations, actions, lambda _: 1e-3)


def test_states_of_others_are_refused() -> None:
    policy = make_policy(core="rmc")
    obs = np.zeros((LANES, *policy.observation_space.shape), np.uint8)
    state = tuple(half.numpy() for half in random_state(policy, lanes=2))
    with pytest.raises(ValueError, match=r"state and episode_start of 4 lanes.* got 2 and 4"):
        policy.predict(obs, state=state)
    with pytest.raises(ValueError, match=r"state: expected two arrays \[1, lanes, 12\]"):
        policy.predict(obs, state=(np.zeros((1, LANES, 3)), np.zeros((1, LANES, 3))))


def test_an_environment_with_other_spaces_is_refused(tmp_path: Path) -> None:
    make_model().save(tmp_path / "model")
    with pytest.raises(ValueError, match="spaces do not match"):
        RecurrentPPO.load(tmp_path / "model", env=make_sb3_env("recall"))
