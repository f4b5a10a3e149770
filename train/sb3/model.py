"""From the settings of a run to a model of Stable-Baselines3."""

import warnings
from functools import partial
from typing import Any

import torch
from gymnasium.spaces import Dict, MultiBinary, Space, Tuple
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv
from torch import nn

from rmc_agents.config import Config
from rmc_agents.sb3.extractors import CONVOLUTIONS_FROM, DictFeatures, ImageFeatures, MlpFeatures, is_large_picture
from rmc_agents.sb3.policy import core_options
from rmc_agents.sb3.saved import ALGORITHMS
from rmc_agents.stream import seed_after
from rmc_agents.train.learner import learning_rate_before_end


def make_model(config: Config, env: VecEnv, device: torch.device) -> OnPolicyAlgorithm:
    """Create a model for an environment, which has to apply `reward_scale` itself.

    Args:
      config: all settings, settled.
      env: the training environment.
      device: the model's device.

    Raises:
      ValueError: for convolutions on observations that are not images, unsupported actions, or rollouts too short for
        normalised advantages.
    """
    train = config.train
    policy, policy_kwargs = _policy(config, env.observation_space)
    if isinstance(env.action_space, Tuple):
        raise ValueError(f"Tuple actions: expected another algorithm than {train.algo}, which does not take them")
    if isinstance(env.action_space, MultiBinary) and policy != "RmcPolicy":
        raise ValueError(
            "MultiBinary actions: expected --algo recurrent-ppo --sb3-policy rmc; Stable-Baselines3's own policies fail"
        )
    options: dict[str, Any] = {
        "learning_rate": partial(learning_rate_before_end, train=train),
        "n_steps": train.unroll_length,
        "gamma": train.discount,
        "gae_lambda": train.trace_lambda,
        "ent_coef": train.entropy_cost,
        "vf_coef": train.value_cost / 2,  # of the whole squared error, ours of half
        "max_grad_norm": train.max_grad_norm,
        "normalize_advantage": train.normalize_advantages,
    }
    frames, least = config.env.num_envs * train.unroll_length, 2 if train.normalize_advantages else 1
    batch_size = _batch_size(frames, train.ppo_minibatches, least)
    if train.algo == "sb3-a2c":
        options["use_rms_prop"] = False  # so that the learning rate means the same for all algorithms
    else:
        options["batch_size"] = batch_size
        options["n_epochs"], options["clip_range"] = train.ppo_epochs, train.ppo_clip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # advice on minibatch sizes and GPUs
        return ALGORITHMS[train.algo](
            policy, env, policy_kwargs=policy_kwargs, seed=seed_after(config.run.seed, 0), device=device, **options
        )


def _policy(config: Config, space: Space) -> tuple[str, dict[str, Any]]:
    """The policy's name and its options.

    With the core, `encoder_sizes` are the layers before it, as in this project's own agent, and `head_sizes` those
    after it, for actor and critic each. In Stable-Baselines3's policies `encoder_sizes` are the actor and critic
    networks after the flattened observation, the convolutions or the LSTM.

    Raises:
      ValueError: for an encoder that Stable-Baselines3 lacks, convolutions of other observations than images, and for
        `head_sizes` without the core.
    """
    algo, chosen, sizes = config.train.algo, config.train.sb3_policy, config.agent.encoder_sizes
    convolves = _convolves(config, space)
    is_nested = isinstance(space, Dict)
    options: dict[str, Any] = {"optimizer_kwargs": {"eps": config.train.adam_epsilon}}
    if algo == "recurrent-ppo" and chosen in ("auto", "rmc"):
        options |= core_options(config)
        options |= {"net_arch": list(config.agent.head_sizes), "activation_fn": nn.ReLU}
        if is_nested:
            return "RmcPolicy", options | _features(DictFeatures, sizes=sizes, convolve=convolves)
        return "RmcPolicy", options | _features(ImageFeatures if convolves else MlpFeatures, sizes=sizes)
    if config.agent.head_sizes:
        raise ValueError(
            f"head_sizes: expected none with sb3_policy mlp or cnn, whose layers are encoder_sizes, got "
            f"{' '.join(map(str, config.agent.head_sizes))}"
        )
    options["net_arch"] = list(sizes)
    kind = "MultiInput" if is_nested else "Cnn" if convolves else "Mlp"
    if is_nested:
        options |= _features(DictFeatures, convolve=convolves)
    if algo != "recurrent-ppo":
        return f"{kind}Policy", options
    options["lstm_hidden_size"] = config.core.hidden_size
    return f"{kind}LstmPolicy", options | (_features(MlpFeatures, sizes=()) if kind == "Mlp" else {})


def _features(extractor: type, **arguments: Any) -> dict[str, Any]:
    return {"features_extractor_class": extractor, "features_extractor_kwargs": arguments}


def _convolves(config: Config, space: Space) -> bool:
    """Whether images are convolved. Raises ValueError for settings that contradict the observations or each other."""
    encoder, chosen = config.agent.encoder, config.train.sb3_policy
    if encoder not in ("auto", "mlp", "conv"):
        raise ValueError(f"encoder: expected auto, mlp or conv with algo {config.train.algo}, got {encoder}")
    if config.agent.encoder_args:
        raise ValueError(
            f"encoder_args: expected none for encoder {encoder}, got {', '.join(config.agent.encoder_args)}"
        )
    if (encoder, chosen) in (("conv", "mlp"), ("mlp", "cnn")):
        raise ValueError(f"encoder {encoder} contradicts sb3_policy {chosen}; leave one of them at auto")
    found = any(map(is_large_picture, space.spaces.values() if isinstance(space, Dict) else [space]))
    if (encoder == "conv" or chosen == "cnn") and not found:
        raise ValueError(
            f"convolutions: expected images of bytes, of at least {CONVOLUTIONS_FROM}x{CONVOLUTIONS_FROM} pixels, got "
            f"observations {space}; use --sb3-policy auto and --encoder auto"
        )
    return found and encoder != "mlp" and chosen != "mlp"


def _batch_size(frames: int, minibatches: int, least: int) -> int:
    """The batch size for at most `minibatches`, each of at least `least` frames: one has no normalised advantage.

    Raises:
      ValueError: for a rollout of fewer frames.
    """
    if frames < least:
        raise ValueError(
            f"expected rollouts of at least {least} frames to normalise their advantages, got {frames}: take a longer "
            "--unroll-length, or more --num-envs"
        )
    smallest = max(least, -(-frames // minibatches))
    return next(size for size in range(smallest, frames + 1) if frames % size == 0 or frames % size >= least)
