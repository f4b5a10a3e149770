"""What a run keeps of the text that it reads: the words, and a hash that shows whether it has changed."""

import hashlib
from contextlib import closing
from pathlib import Path
from typing import Any

from rmc_agents.config import EnvConfig
from rmc_agents.envs.making import EnvFactory, make_env, with_arguments
from rmc_agents.envs.sequences.corpus import files_of
from rmc_agents.envs.sequences.names import TEXT, find_sequences, is_text
from rmc_agents.envs.sequences.text import HELD_OUT, Text
from rmc_agents.envs.sequences.vocabulary import Words
from rmc_agents.files import read_regular, write_atomically

from .folder import HASH, VOCABULARY, run_of
from .saved import SavedAgent


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
    """Check that a saved agent was not trained on what `env` reads as the held-out part of its text.

    Raises:
      ValueError: if `env` holds out more of the text than the agent's training, or the text has changed since.
    """
    if not isinstance(agent, SavedAgent) or not _reads_text(agent.config.env):
        return
    config, folder = agent.config.env, run_of(agent.path) or agent.path.parent  # the best agent lies in the run itself
    _, named = find_sequences(config.env) or ("", {})
    trained = {"part": "train", "held_out": HELD_OUT, **named, **config.env_kwargs}
    with closing(make_env(env)) as one:
        lanes: Any = getattr(one, "lanes", None)
    if not isinstance(lanes, Text) or _files(lanes.path) != _files(trained["path"]):
        return
    unseen = {"train": trained["held_out"], "all": 0.0}.get(trained["part"], 1.0)
    if lanes.part == "heldout" and lanes.held_out > unseen:
        remedy = f"add held_out={unseen} to --env-kwargs, or " if unseen else ""
        raise ValueError(
            f"held_out: expected at most {unseen}, as in the training of {agent.path}, got {lanes.held_out}: it has "
            f"been trained on the rest; {remedy}name another text by --env"
        )
    check_text(config, folder, "name another text, by --env: what is held out now may have been trained on")


def _reads_text(config: EnvConfig) -> bool:
    return is_text(config.env) or config.env in (TEXT, TEXT.partition(":")[2])


def _files(path: str | Path) -> set[Path]:
    """The files of a text, however its path is written; none if it is gone."""
    try:
        return {file.resolve() for file in files_of(path)}
    except ValueError:
        return set()


def _reader(config: EnvConfig) -> Any:
    """The lanes of a text; None for another environment."""
    if not _reads_text(config):
        return None
    with closing(make_env(with_arguments(config.env, config.env_kwargs))) as env:
        return env.lanes  # type: ignore[attr-defined]


def _hash(lanes: Any) -> str:
    return hashlib.sha256(lanes.tokens).hexdigest() + "\n"
