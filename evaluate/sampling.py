"""Text that a language model writes: each token is drawn, and read as the next one."""

from contextlib import closing

import torch

from rmc_agents.collect import sample_action
from rmc_agents.envs.making import EnvFactory, make_env, name_of
from rmc_agents.envs.sequences.text import Text
from rmc_agents.types import Policy, TimeStep


@torch.no_grad()
def sample_text(
    policy: Policy,
    env: str | EnvFactory,
    tokens: int,
    *,
    prompt: str = "",
    temperature: float = 1.0,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> str:
    """Read a prompt, then write.

    Args:
      policy: trained on the text environment.
      env: that environment, whose vocabulary is used.
      tokens: how many to write.
      prompt: what is read first; empty: the text's first token.
      temperature: divides the logits: below 1, likelier tokens are written more often; 0: the likeliest always.
      seed: of the draws.
      device: where the policy lives.

    Returns:
      The prompt and what follows it.

    Raises:
      ValueError: if the environment is no text, or for a number of tokens or temperature that cannot be.
    """
    if tokens < 1:
        raise ValueError(f"sample: expected at least 1 token, got {tokens}")
    if temperature < 0:
        raise ValueError(f"temperature: expected at least 0, got {temperature:g}")
    with closing(make_env(env)) as lanes:
        text = getattr(lanes, "lanes", None)  # of a native environment
        if not isinstance(text, Text):
            raise ValueError(f"sample: expected an agent of a text, such as text:book.txt, got one of {name_of(env)!r}")
        read = text.vocabulary.encode(prompt.encode()).tolist() or [int(text.tokens[0])]
        vocabulary = text.vocabulary
    generator = torch.Generator(device).manual_seed(seed)
    state = policy.initial_state(1)
    written = list(read)
    for place in range(len(read) + tokens - 1):
        output, state = policy.step(_step(written[place], place == 0, device), state)
        if place + 1 == len(written):
            logits = output.policy_logits
            drawn = logits.argmax(-1) if temperature == 0 else sample_action(logits / temperature, generator)
            written.append(int(drawn))
    return vocabulary.decode(written)


def _step(token: int, is_first: bool, device: torch.device | str) -> TimeStep:
    """A token that is read. In training, the previous action and reward report the last answer; here it was right."""
    false = torch.zeros(1, dtype=torch.bool, device=device)
    return TimeStep(
        obs=torch.tensor([[token]], dtype=torch.int32, device=device),
        is_first=false | is_first,
        prev_action=torch.tensor([0 if is_first else token], device=device),
        prev_reward=torch.full((1,), 0.0 if is_first else 1.0, device=device),
        terminated=false,
        truncated=false,
    )
