"""From the settings of a run to a model of Stable-Baselines3."""

import warnings
from typing import Any

import torch
from gymnasium.spaces import MultiBinary
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.torch_layers import NatureCNN
from stable_baselines3.common.vec_env import VecEnv
from torch import nn

from rmc_agents.config import Config, TrainConfig
from rmc_agents.sb3.extractors import CONVOLUTIONS_FROM, DictFeatures, MlpFeatures
from rmc_agents.sb3.policy import CORE_OPTIONS
from rmc_agents.sb3.saved import ALGORITHMS
from rmc_agents.spaces import SpaceSpec


def make_model(config: Config, env: VecEnv, spec: SpaceSpec, device: torch.device) -> OnPolicyAlgorithm:
    """Create a model for an environment, which has to apply `reward_scale` itself.


    Args:
      config: all settings, settled.
      env: the training environment.
      spec: the environment's spaces.
      device: the model's device.

    Raises:
      ValueError: for convolutions on observations that are not images, unsupported actions, or rollouts too short for
        normalised advantages.
    """
    train = config.train
    policy, policy_kwargs = _policy(config, spec)
    if isinstance(env.action_space, MultiBinary) and policy != "RmcPolicy":
        raise ValueError(
            "MultiBinary actions: expected --algo recurrent-ppo --sb3-policy rmc; Stable-Baselines3's own policies fail"
        )
    options: dict[str, Any] = {
        "learning_rate": _schedule(train),
        "n_steps": train.unroll_length,
        "gamma": train.discount,
        "gae_lambda": train.trace_lambda,
        "ent_coef": train.entropy_cost,
        "vf_coef": train.value_cost,
        "max_grad_norm": train.max_grad_norm,
        "normalize_advantage": train.normalize_advantages,
    }
    if train.algo == "sb3-a2c":
        options["use_rms_prop"] = False  # so that the learning rate means the same for all algorithms
    else:
        options["batch_size"] = _batch_size(config.env.num_envs * train.unroll_length, train.ppo_minibatches)
        options["n_epochs"], options["clip_range"] = train.ppo_epochs, train.ppo_clip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # advice on minibatch sizes and GPUs
        return ALGORITHMS[train.algo](
            policy, env, policy_kwargs=policy_kwargs, seed=config.run.seed, device=device, **options
        )


def _policy(config: Config, spec: SpaceSpec) -> tuple[str, dict[str, Any]]:
    """The policy's name and its options.

    With the core, `encoder_sizes` are the layers before it, as in this project's own agent, and `head_sizes` those
    after it, for actor and critic each. In Stable-Baselines3's policies `encoder_sizes` are the actor and critic
    networks after the flattened observation, the convolutions or the LSTM.

    Raises:
      ValueError: for an encoder that Stable-Baselines3 lacks, convolutions of what is no picture, and for `head_sizes`
        without the core.
    """
    algo, chosen, sizes = config.train.algo, config.train.sb3_policy, config.agent.encoder_sizes
    if config.agent.encoder not in ("auto", "mlp", "conv"):
        raise ValueError(f"encoder: expected auto, mlp or conv with algo {algo}, got {config.agent.encoder}")
    is_picture = len(spec.obs_shape) == 3 and min(spec.obs_shape[:2]) >= CONVOLUTIONS_FROM
    if chosen == "cnn" or config.agent.encoder == "conv":
        _check_picture(is_picture, spec)
    convolves = chosen == "cnn" or (chosen != "mlp" and is_picture and config.agent.encoder != "mlp")
    options: dict[str, Any] = {"optimizer_kwargs": {"eps": config.train.adam_epsilon}}
    if algo == "recurrent-ppo" and chosen in ("auto", "rmc"):
        settings = config.to_mapping()
        options |= {name: settings[name] for name in CORE_OPTIONS}
        options |= {"net_arch": list(config.agent.head_sizes), "activation_fn": nn.ReLU}
        extractor = _features(MlpFeatures, sizes=sizes)
        if convolves:
            extractor = _features(NatureCNN, **({"features_dim": sizes[-1]} if sizes else {}))
        elif spec.obs_parts:
            extractor = {}  # the policy's own
        return "RmcPolicy", options | extractor
    if config.agent.head_sizes:
        raise ValueError(
            f"head_sizes: expected none with sb3_policy mlp or cnn, whose layers are encoder_sizes, got "
            f"{' '.join(map(str, config.agent.head_sizes))}"
        )
    options["net_arch"] = list(sizes)
    kind = "MultiInput" if spec.obs_parts else "Cnn" if convolves else "Mlp"
    if algo != "recurrent-ppo":
        return f"{kind}Policy", options
    options["lstm_hidden_size"] = config.core.hidden_size
    extractors = {"Mlp": _features(MlpFeatures, sizes=()), "MultiInput": _features(DictFeatures), "Cnn": {}}
    return f"{kind}LstmPolicy", options | extractors[kind]


def _features(extractor: type, **arguments: Any) -> dict[str, Any]:
    return {"features_extractor_class": extractor, "features_extractor_kwargs": arguments}


def _check_picture(is_picture: bool, spec: SpaceSpec) -> None:
    if not is_picture:
        raise ValueError(
            f"convolutions: expected images of at least {CONVOLUTIONS_FROM}x{CONVOLUTIONS_FROM} pixels, got "
            f"observations of shape {spec.obs_shape}; use --sb3-policy auto and --encoder auto"
        )


def _schedule(train: TrainConfig) -> Any:
    """The learning rate, or a function of the remaining fraction of training."""
    rate = train.learning_rate
    if train.learning_rate_schedule == "constant":
        return rate
    return lambda remaining: rate * max(0.0, remaining)


def _batch_size(frames: int, minibatches: int) -> int:
    """The batch size for at most `minibatches`, none with a single frame, because its advantage cannot be normalised.

    Raises:
      ValueError: for a rollout of one frame.
    """
    if frames < 2:
        raise ValueError(
            f"expected rollouts of at least 2 frames, got {frames}: take a longer --unroll-length, or more --num-envs"
        )
    smallest = max(2, -(-frames // minibatches))
    return next(size for size in range(smallest, frames + 1) if frames % size != 1)
