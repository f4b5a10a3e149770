"""What a run keeps of the text that it reads: the words, and a hash that shows whether it has changed."""

import hashlib
from contextlib import closing
from pathlib import Path
from typing import Any

from rmc_agents.config import EnvConfig
from rmc_agents.envs.making import EnvFactory, make_env, with_arguments
from rmc_agents.envs.sequences.names import TEXT, find_sequences, is_text
from rmc_agents.envs.sequences.vocabulary import Words
from rmc_agents.files import read_regular, write_atomically

from .folder import run_of
from .saved import SavedAgent

VOCABULARY, HASH = "vocabulary.json", "text.sha256"


def keep_text(config: EnvConfig, folder: Path) -> None:
    """Write the files of a run, if it reads a text: the words, if it reads in words, and the text's hash."""
    if (lanes := _reader(config)) is None:
        return
    if isinstance(lanes.vocabulary, Words):
        write_atomically(folder / VOCABULARY, lanes.vocabulary.to_json().encode())
    write_atomically(folder / HASH, _hash(lanes).encode())


def check_text(config: EnvConfig, folder: Path, remedy: str) -> None:
    """Raises ValueError, with a remedy, if the run in `folder` has read another text than is there now."""
    if not (folder / HASH).is_file() or (lanes := _reader(config)) is None:
        return
    if read_regular(folder / HASH).decode(errors="replace") != _hash(lanes):
        raise ValueError(
            f"{config.env}: its training part is not the one that the run in {folder} has read; put that back, or "
            f"{remedy}"
        )


def check_not_trained_on(agent: Any, env: str | EnvFactory) -> None:
    """Check that a saved agent was not trained on what is now the held-out part of its text.

    Raises:
      ValueError: if `env` reads the text of the agent's run, and that has changed since.
    """
    if not isinstance(agent, SavedAgent):
        return
    config, folder = agent.config.env, run_of(agent.path) or agent.path.parent  # the best agent lies in the run itself
    if not (folder / HASH).is_file():
        return
    _, named = find_sequences(config.env) or ("", {})
    with closing(make_env(env)) as one:
        path = getattr(getattr(one, "lanes", None), "path", None)
    if path is not None and Path(path).resolve() == Path({**named, **config.env_kwargs}["path"]).resolve():
        check_text(config, folder, "name another text, by --env: what is held out now may have been trained on")


def _reader(config: EnvConfig) -> Any:
    """The lanes of a text; None for another environment."""
    if not is_text(config.env) and config.env not in (TEXT, TEXT.partition(":")[2]):
        return None
    with closing(make_env(with_arguments(config.env, config.env_kwargs))) as env:
        return env.lanes  # type: ignore[attr-defined]


def _hash(lanes: Any) -> str:
    return hashlib.sha256(lanes.tokens).hexdigest() + "\n"
