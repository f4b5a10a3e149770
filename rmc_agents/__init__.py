"""Actor-critic agents for memory tasks, with a recurrent core that is swapped by one flag.

    import rmc_agents as rmc

    saved = rmc.load("minipacman-rmc")
    print(rmc.evaluate(saved, "minipacman", episodes=100))

A name is imported when it is first used: the import of the package costs nothing, and torch is loaded by what needs it.
"""

TYPE_CHECKING = False  # type checkers take it for True; `typing` is not imported
if TYPE_CHECKING:
    from typing import Any

    from rmc_agents import losses as losses
    from rmc_agents.agent import ActorCritic as ActorCritic
    from rmc_agents.collect import Collector as Collector
    from rmc_agents.config import Config as Config
    from rmc_agents.cores import GRU as GRU
    from rmc_agents.cores import LSTM as LSTM
    from rmc_agents.cores import RMC as RMC
    from rmc_agents.cores import RNN as RNN
    from rmc_agents.cores import Core as Core
    from rmc_agents.cores import Feedforward as Feedforward
    from rmc_agents.cores import MinGRU as MinGRU
    from rmc_agents.cores import RelationalRNN as RelationalRNN
    from rmc_agents.cores.registry import register_core as register_core
    from rmc_agents.encoders import register_encoder as register_encoder
    from rmc_agents.envs.making import make_env as make_env
    from rmc_agents.evaluate.scoring import evaluate as evaluate
    from rmc_agents.evaluate.scoring import record_video as record_video
    from rmc_agents.player import Player as Player
    from rmc_agents.runs.saved import load as load
    from rmc_agents.train.run import resume as resume
    from rmc_agents.train.run import train as train
    from rmc_agents.types import SpaceSpec as SpaceSpec

    __version__: str

_HOMES = {
    "ActorCritic": "agent",
    "Collector": "collect",
    "Config": "config",
    "Core": "cores",
    "Feedforward": "cores",
    "GRU": "cores",
    "LSTM": "cores",
    "MinGRU": "cores",
    "Player": "player",
    "RMC": "cores",
    "RNN": "cores",
    "RelationalRNN": "cores",
    "SpaceSpec": "types",
    "evaluate": "",
    "load": "runs.saved",
    "losses": "",
    "make_env": "envs.making",
    "record_video": "evaluate.scoring",
    "register_core": "cores.registry",
    "register_encoder": "encoders",
    "resume": "train.run",
    "train": "",
}
"""Public name -> the module that has it; '': it is a module itself, or a package that is called (see `lazy`)."""

__all__ = [*_HOMES]  # noqa: PLE0604


if not TYPE_CHECKING:  # where a type checker would take it for every other name too

    def __getattr__(name: str) -> "Any":
        """A public name, at its first use."""
        from importlib import import_module, metadata

        if name == "__version__":
            value = metadata.version("rmc-agents")
        elif name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        elif home := _HOMES[name]:
            value = getattr(import_module(f"{__name__}.{home}"), name)
        else:
            value = import_module(f"{__name__}.{name}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, "__version__"})
