"""The cores as a policy of sb3-contrib's RecurrentPPO."""

import inspect
import logging
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from gymnasium import spaces
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import FlattenExtractor, MlpExtractor, NatureCNN
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from torch import Tensor

from rmc_agents.config import Config, CoreConfig
from rmc_agents.cores import make_core, settings_unused
from rmc_agents.formatting import did_you_mean

from .extractors import DictFeatures, is_large_picture
from .packed_core import PackedCore, PackedState

logger = logging.getLogger(__name__)

CORE_OPTIONS = (*(field.name for field in fields(CoreConfig)), "core_skip", "core_gain", "backend", "precision")
"""Options of `RmcPolicy` besides those of Stable-Baselines3's policies; see `rmc-train --help-all`."""

SB3_OPTIONS = set(inspect.signature(ActorCriticPolicy.__init__).parameters)
SB3_OPTIONS -= {"self", "observation_space", "action_space", "lr_schedule"}
RMC_GATES = {"gate_style": "coupled", "slot_embedding": True, "core_gain": 1.0, "forget_bias": 0.0}
"""Default gates of an rmc if no `gate_style` is given. On CartPole without velocities, after 50,000 steps with
sb3-contrib's settings for its LSTM, three seeds reach returns of 500, 460 and 350 with these, and 442, 170 and 447 with
a forget bias of 1."""

GATES = "lstm_actor.core.memory_gates.bias"  # in the state_dict of a policy with an rmc


class RmcPolicy(RecurrentActorCriticPolicy):
    """Actor and critic on one recurrent core, for `RecurrentPPO(RmcPolicy, env, policy_kwargs={"core": "rmc", ...})`.

    Observations pass through the features extractor, then the core; the networks of `net_arch` read the core's output
    and, by a skip connection, the features, as in this project's own agent: without the skip, a recurrent agent learns
    nothing for a long time. Actor and critic share the core, and both train it (sb3-contrib keeps two LSTMs, or stops
    the critic's gradient). With `core="lstm", core_skip=False` this equals its LSTM policy (see `copy_lstm_policy`).

    With `share_features_extractor=False` the critic has its own extractor, which its networks read through the skip
    connection; the core reads the actor's.

    At the start of an episode, the core starts from its own initial state, which may differ from zero. A minibatch is
    one scan, with the resets inside. `predict` takes and returns states of `PackedCore`.

    Args:
      observation_space, action_space, lr_schedule: passed by RecurrentPPO.
      options: those of `CORE_OPTIONS` (core, hidden_size, mem_slots, core_skip, ...), with this project's defaults
        except for an rmc's gates: without a `gate_style` they are `RMC_GATES`, because it learns little here with the
        paper's gates. Also those of Stable-Baselines3's ActorCriticPolicy (net_arch, features_extractor_class,
        optimizer_class, ...). The features extractor is NatureCNN for images of 36x36 or more, DictFeatures for
        dictionaries, else FlattenExtractor.

    Raises:
      ValueError: for an unknown option (the message suggests the nearest), a value out of range, a critic's extractor
        that nothing would read, or spaces of a shape that Stable-Baselines3 does not take.
    """

    core_gain: Tensor

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        lr_schedule: Schedule,
        **options: Any,
    ) -> None:
        _check_shapes(observation_space, action_space)
        sb3_options = {name: options.pop(name) for name in list(options) if name in SB3_OPTIONS}
        sb3_options.setdefault("features_extractor_class", _extractor_for(observation_space))
        self._config, self._core_options = _checked(_with_gates(options)), options
        if unused := sorted(settings_unused(self._config).intersection(options)):
            core = self._config.core.core
            logger.warning("policy_kwargs: without effect with the core %s: %s", core, ", ".join(unused))
        if not (sb3_options.get("share_features_extractor", True) or self._config.agent.core_skip):
            raise ValueError(
                "share_features_extractor=False: expected core_skip=True, else the critic's extractor is unused"
            )
        # Skips the parent's constructor, which would build its LSTMs.
        super(RecurrentActorCriticPolicy, self).__init__(observation_space, action_space, lr_schedule, **sb3_options)

    def _build_mlp_extractor(self) -> None:
        """Build the core and the networks on top of it; called before the heads and the optimizer are built."""
        config, agent = self._config.core, self._config.agent
        features_size = int(self.features_dim)  # for MultiDiscrete it is a NumPy integer
        core = make_core(config, features_size)
        core.backend, core.precision = self._config.run.backend, self._config.run.precision
        self.lstm_actor = PackedCore(core)  # the name that RecurrentPPO looks for
        self.lstm_hidden_state_shape = (PackedCore.num_layers, 1, self.lstm_actor.hidden_size)
        self.skip = agent.core_skip and (core.initial_state(1) != () or not self.share_features_extractor)
        gain = core.default_gain if agent.core_gain is None else agent.core_gain
        self.register_buffer("core_gain", torch.tensor(float(gain)))  # saved: a later default must not change it
        width = core.output_size + (features_size if self.skip else 0)
        self.mlp_extractor = MlpExtractor(width, self.net_arch, self.activation_fn, device=self.device)

    def _unroll(
        self, obs: PyTorchObs, state: PackedState, episode_starts: Tensor
    ) -> tuple[Tensor, Tensor, PackedState]:
        """The inputs of the actor's and the critic's head, `[B * T, ...]`, and the state after the last step.

        Args:
          obs: B sequences of T observations, concatenated, `[B * T, ...]`.
          state: of the B sequences.
          episode_starts: `[B * T]`: 1 at an episode's first observation.
        """
        features = self.extract_features(obs)
        actors, critics = (features, features) if isinstance(features, Tensor) else features
        outputs, state = self.lstm_actor(actors, state, episode_starts)
        latent_pi = latent_vf = outputs * self.core_gain
        if self.skip:
            latent_pi = torch.cat([latent_pi, actors], dim=-1)
            latent_vf = latent_pi if critics is actors else torch.cat([latent_vf, critics], dim=-1)
        return self.mlp_extractor.forward_actor(latent_pi), self.mlp_extractor.forward_critic(latent_vf), state

    def forward(
        self, obs: PyTorchObs, lstm_states: RNNStates, episode_starts: Tensor, deterministic: bool = False
    ) -> tuple[Tensor, Tensor, Tensor, RNNStates]:
        """Actions, values, the actions' log-probabilities and the next states; arguments as in `_unroll`."""
        latent_pi, latent_vf, state = self._unroll(obs, lstm_states.pi, episode_starts)
        distribution = self._get_action_dist_from_latent(latent_pi)
        actions = distribution.get_actions(deterministic=deterministic)
        log_prob = distribution.log_prob(actions)
        actions = actions.reshape(-1, *self.action_space.shape)
        return actions, self.value_net(latent_vf), log_prob, RNNStates(state, state)

    def get_distribution(
        self, obs: PyTorchObs, lstm_states: PackedState, episode_starts: Tensor
    ) -> tuple[Distribution, PackedState]:
        """The actions' distribution and the next state; arguments as in `_unroll`."""
        latent_pi, _, state = self._unroll(obs, lstm_states, episode_starts)
        return self._get_action_dist_from_latent(latent_pi), state

    def predict_values(self, obs: PyTorchObs, lstm_states: PackedState, episode_starts: Tensor) -> Tensor:
        """The values `[B * T, 1]`; arguments as in `_unroll`."""
        return self.value_net(self._unroll(obs, lstm_states, episode_starts)[1])

    def evaluate_actions(
        self, obs: PyTorchObs, actions: Tensor, lstm_states: RNNStates, episode_starts: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Values, the actions' log-probabilities and the entropies; arguments as in `_unroll`."""
        latent_pi, latent_vf, _ = self._unroll(obs, lstm_states.pi, episode_starts)
        distribution = self._get_action_dist_from_latent(latent_pi)
        if isinstance(self.action_space, spaces.MultiBinary):
            actions = actions.float()  # the buffer stores int8, which Bernoulli's log_prob does not take
        return self.value_net(latent_vf), distribution.log_prob(actions), distribution.entropy()

    def _predict(
        self, observation: PyTorchObs, lstm_states: PackedState, episode_starts: Tensor, deterministic: bool = False
    ) -> tuple[Tensor, PackedState]:
        """One step. Raises ValueError for a state with another number of lanes, which would be read as sequences."""
        lanes = len(next(iter(observation.values())) if isinstance(observation, dict) else observation)
        if lstm_states[0].shape[1] != lanes or episode_starts.numel() != lanes:
            raise ValueError(
                f"predict: expected state and episode_start of {lanes} lanes, as of the observations, got "
                f"{lstm_states[0].shape[1]} and {episode_starts.numel()}"
            )
        return super()._predict(observation, lstm_states, episode_starts, deterministic)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        parameters = super()._get_constructor_parameters() | core_options(self._config)
        return parameters | {"share_features_extractor": self.share_features_extractor}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """As in torch. An archive stores only the options that were given: if `gate_style` is not among them and the
        weights are from the time when the paper's gates were the default, the policy is rebuilt with those."""
        mine, given = self.state_dict().get(GATES), state_dict.get(GATES)
        is_paired = mine is not None and given is not None and len(given) == 2 * len(mine)  # input and forget gate
        if is_paired and "gate_style" not in self._core_options:
            self._config = _checked(self._core_options | {"gate_style": "unit"})
            device, rate = self.device, self.optimizer.param_groups[0]["lr"]
            self._build(lambda _: rate)
            self.to(device)
        return super().load_state_dict(state_dict, strict, assign)


def copy_lstm_policy(source: RecurrentActorCriticPolicy, target: RmcPolicy) -> None:
    """Copy the weights of sb3-contrib's LSTM policy to an `RmcPolicy`.

    Args:
      source: created with `shared_lstm=True, enable_critic_lstm=False`, one layer, a shared features extractor.
      target: created with `core="lstm", core_skip=False` and the same sizes.

    Raises:
      ValueError: if they do not fit.
    """
    weights = dict(source.state_dict())
    bias = [weights.pop(f"lstm_actor.bias_{part}_l0", None) for part in ("ih", "hh")]
    if None not in bias:
        weights["lstm_actor.core.bias"] = sum(bias)
    try:
        for part in ("ih", "hh"):
            weights[f"lstm_actor.core.weight_{part}"] = weights.pop(f"lstm_actor.weight_{part}_l0")
        weights["core_gain"] = torch.ones(())
        target.load_state_dict(weights)
    except (KeyError, RuntimeError) as error:
        raise ValueError(f"the policies do not fit: {' '.join(str(error).split())}") from None


def _with_gates(options: dict[str, Any]) -> dict[str, Any]:
    """The options, with the default gates for an rmc without a `gate_style`."""
    if "gate_style" in options or options.get("core", "rmc") != "rmc":
        return options
    return RMC_GATES | options


def core_options(config: Config) -> dict[str, Any]:
    """The settings among `CORE_OPTIONS` that have an effect, by name."""
    settings, unused = config.to_mapping(), settings_unused(config)
    return {name: settings[name] for name in CORE_OPTIONS if name not in unused}


def _checked(options: dict[str, Any]) -> Config:
    """A configuration with the options of `CORE_OPTIONS`. Raises ValueError for other options and invalid values."""
    for name in options:
        if name not in CORE_OPTIONS:
            known = [*CORE_OPTIONS, *sorted(SB3_OPTIONS)]
            hint = did_you_mean(name, known, f"those of the core are {', '.join(CORE_OPTIONS)}")
            raise ValueError(f"policy_kwargs: RmcPolicy has no option {name!r}; {hint}")
    return Config().updated(options, "policy_kwargs")


def _check_shapes(observation_space: spaces.Space, action_space: spaces.Space) -> None:
    """Raises ValueError for shapes that Stable-Baselines3's extractors and distributions do not take."""
    parts: dict[str, Any] = {"observations": observation_space}
    if isinstance(observation_space, spaces.Dict):
        parts = {f"observation {name!r}": space for name, space in observation_space.items()}
    wrong: dict[str, spaces.Space] = {
        name: space
        for name, space in parts.items()
        if (isinstance(space, spaces.MultiDiscrete) and len(space.shape) > 1)
        or (isinstance(space, spaces.Box) and not space.shape)
    }
    if isinstance(action_space, spaces.MultiDiscrete | spaces.MultiBinary) and len(action_space.shape) > 1:
        wrong["actions"] = action_space
    if wrong:
        got = ", ".join(f"{type(space).__name__} {space.shape} for {name}" for name, space in wrong.items())
        raise ValueError(f"spaces: expected vectors, got {got}; flatten them, or use make_sb3_env, which does")


def _extractor_for(space: spaces.Space) -> type[Any]:
    if isinstance(space, spaces.Dict):
        return DictFeatures
    return NatureCNN if is_large_picture(space) else FlattenExtractor
