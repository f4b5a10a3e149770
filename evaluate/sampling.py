"""Text generation with a language model: each sampled token is the next input."""

import os
from contextlib import closing
from numbers import Real

import torch

from rmc_agents.distributions import Categorical
from rmc_agents.envs.checks import checked_int
from rmc_agents.envs.making import EnvFactory, make_env, name_of
from rmc_agents.envs.sequences.text import Text
from rmc_agents.player import device_of
from rmc_agents.types import TimeStep

from .scoring import Agent, evaluating, policy_and_env
from .statistics import EVALUATION_SEED

COLD = 1e-30
"""At lower temperatures the most likely token is taken, since logits divided by them overflow."""


@torch.no_grad()
def sample_text(
    agent: Agent,
    tokens: int = 200,
    *,
    env: str | EnvFactory | None = None,
    prompt: str = "",
    temperature: float = 1.0,
    seed: int = EVALUATION_SEED,
) -> str:
    """Read a prompt, then generate text, like rmc-evaluate --sample.

    Args:
      agent: trained on a text; as in `evaluate`.
      tokens: number of tokens to generate.
      env: the environment of that text, which has the vocabulary; None: the one that a saved agent was trained in.
      prompt: the text to read first; empty: the first token of the environment's text.
      temperature: sampling temperature; 0: always the most likely token.
      seed: of the sampling.

    Returns:
      The prompt and the generated text.

    Raises:
      ValueError: if the environment is not text, or for an invalid number of tokens or temperature.
    """
    checked_int("tokens", tokens, 1)
    seed = checked_int("seed", seed, 0)
    if not isinstance(temperature, Real) or not temperature >= 0:
        raise ValueError(f"temperature: expected a number of at least 0, got {temperature!r}")
    if not isinstance(prompt, str):
        raise ValueError(f"prompt: expected a text, got {prompt!r}")
    policy, env = policy_and_env(agent, env)
    with closing(make_env(env)) as lanes:
        text = getattr(lanes, "lanes", None)  # of a native environment
        if not isinstance(text, Text):
            raise ValueError(f"sample: expected an agent of a text, such as text:book.txt, got one of {name_of(env)!r}")
        vocabulary = text.vocabulary
        try:
            written = vocabulary.encode(os.fsencode(prompt)).tolist() or [int(text.tokens[0])]
        except ValueError as error:  # also UnicodeEncodeError
            raise ValueError(f"prompt: {error}") from None
    device = device_of(policy)
    generator = torch.Generator(device).manual_seed(seed)
    state = policy.initial_state(1)
    with evaluating(policy):
        for place in range(len(written) + tokens - 1):
            output, state = policy.step(_step(written[place], place == 0, device), state)
            if place + 1 == len(written):
                logits = output.policy_logits - output.policy_logits.amax(-1, keepdim=True)  # none overflows below
                drawn = Categorical(logits / temperature).sample(generator) if temperature > COLD else logits.argmax(-1)
                written.append(int(drawn))
    return vocabulary.decode(written)


def _step(token: int, is_first: bool, device: torch.device | str) -> TimeStep:
    """The time step of a token. As in training, previous action and reward are the last answer, here a correct one."""
    false = torch.zeros(1, dtype=torch.bool, device=device)
    return TimeStep(
        obs=torch.tensor([[token]], dtype=torch.int32, device=device),
        is_first=false | is_first,
        prev_action=torch.tensor([0 if is_first else token], device=device),
        prev_reward=torch.full((1,), 0.0 if is_first else 1.0, device=device),
        terminated=false,
        truncated=false,
    )
