"""Actor-critic agents for memory tasks, with a recurrent core that one flag selects.

    import rmc_agents as rmc

    saved = rmc.load("minipacman-rmc")
    print(rmc.evaluate(saved, "minipacman", episodes=100))

Public names are imported at first use, so importing the package is fast and loads torch only when it is needed.
"""

TYPE_CHECKING = False  # type checkers assume True; importing `typing` costs time
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
    from rmc_agents.cores import Transformer as Transformer
    from rmc_agents.cores.registry import register_core as register_core
    from rmc_agents.distributions import NotFinite as NotFinite
    from rmc_agents.encoders import register_encoder as register_encoder
    from rmc_agents.envs.making import make_env as make_env
    from rmc_agents.envs.processes import EnvError as EnvError
    from rmc_agents.envs.processes import WorkerError as WorkerError
    from rmc_agents.evaluate.compare import compare as compare
    from rmc_agents.evaluate.episodes import UniformPolicy as UniformPolicy
    from rmc_agents.evaluate.export import export as export
    from rmc_agents.evaluate.plot import plot as plot
    from rmc_agents.evaluate.sampling import sample_text as sample_text
    from rmc_agents.evaluate.scoring import ablate_memory as ablate_memory
    from rmc_agents.evaluate.scoring import evaluate as evaluate
    from rmc_agents.evaluate.scoring import record_attention as record_attention
    from rmc_agents.evaluate.scoring import record_replay as record_replay
    from rmc_agents.evaluate.scoring import record_video as record_video
    from rmc_agents.player import Player as Player
    from rmc_agents.runs.checkpoint import CheckpointError as CheckpointError
    from rmc_agents.runs.saved import load as load
    from rmc_agents.spaces import SpaceSpec as SpaceSpec
    from rmc_agents.train.own_loss import register_loss as register_loss
    from rmc_agents.train.run import resume as resume
    from rmc_agents.train.run import train as train
    from rmc_agents.train.sweep.cli import sweep as sweep
    from rmc_agents.types import AgentOutput as AgentOutput
    from rmc_agents.types import OutputWithRewards as OutputWithRewards
    from rmc_agents.types import Rollout as Rollout
    from rmc_agents.types import TimeStep as TimeStep

    __version__: str

_HOMES = {
    "ActorCritic": "agent",
    "AgentOutput": "types",
    "CheckpointError": "runs.checkpoint",
    "Collector": "collect",
    "Config": "config",
    "Core": "cores",
    "EnvError": "envs.processes",
    "Feedforward": "cores",
    "GRU": "cores",
    "LSTM": "cores",
    "MinGRU": "cores",
    "NotFinite": "distributions",
    "OutputWithRewards": "types",
    "Player": "player",
    "RMC": "cores",
    "RNN": "cores",
    "RelationalRNN": "cores",
    "Rollout": "types",
    "SpaceSpec": "spaces",
    "TimeStep": "types",
    "Transformer": "cores",
    "UniformPolicy": "evaluate.episodes",
    "WorkerError": "envs.processes",
    "ablate_memory": "evaluate.scoring",
    "compare": "evaluate.compare",
    "evaluate": "",
    "export": "evaluate.export",
    "load": "runs.saved",
    "losses": "",
    "make_env": "envs.making",
    "plot": "evaluate.plot",
    "record_attention": "evaluate.scoring",
    "record_replay": "evaluate.scoring",
    "record_video": "evaluate.scoring",
    "register_core": "cores.registry",
    "register_encoder": "encoders",
    "register_loss": "train.own_loss",
    "resume": "train.run",
    "sample_text": "evaluate.sampling",
    "sweep": "train.sweep.cli",
    "train": "",
}
"""Public name -> its module; '': the name is itself a module or a callable package (see `lazy`)."""

__all__ = [*_HOMES]  # noqa: PLE0604


if not TYPE_CHECKING:  # a type checker would accept any name through it

    def __getattr__(name: str) -> "Any":
        """Import a public name at its first use."""
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
