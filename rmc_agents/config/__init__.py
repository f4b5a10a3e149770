"""All settings of a run: the same names on the command line, in YAML files and in Python.

The sections in `settings.py` group the settings in `--help` and decide which part of the program receives which of
them. A setting's name is unique among all sections: a flag (`--mem-slots 8`) and a line of YAML (`mem_slots: 8`) need
no section in front.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from os import PathLike
from pathlib import Path
from shlex import quote
from typing import Any, Self, TypeVar

from rmc_agents import configs
from rmc_agents.formatting import did_you_mean
from rmc_agents.plugins import find, registered, remedy, suggestion

from .plain_yaml import dump_yaml, read_yaml, shortened
from .settings import ActorConfig, AgentConfig, CoreConfig, EnvConfig, KeywordArguments, RunConfig, TrainConfig

__all__ = [
    "CORES",
    "ENCODERS",
    "LOSSES",
    "SB3_ALGORITHMS",
    "ActorConfig",
    "AgentConfig",
    "Config",
    "CoreConfig",
    "EnvConfig",
    "KeywordArguments",
    "RunConfig",
    "TrainConfig",
]

CORES = ("rmc", "lstm", "gru", "mingru", "rnn", "relational-rnn", "transformer", "none")
"""Built-in cores."""
ENCODERS = ("auto", "mlp", "conv", "grid")
"""Built-in encoders."""
LOSSES = ("auto",)
"""Names of losses that are not a user's: auto is that of the algorithm."""
SB3_ALGORITHMS = ("recurrent-ppo", "sb3-a2c", "sb3-ppo")
"""The values of `algo` that select an algorithm of Stable-Baselines3."""

RETIRED = {"cuda_graphs": False}
"""Settings of older runs that no longer exist. With these values they had no effect: they are read and dropped."""

NAMES_ELSEWHERE = {
    "lr": "learning_rate",
    "gamma": "discount",
    "ent_coef": "entropy_cost",
    "vf_coef": "value_cost",
    "n_steps": "unroll_length",
    "num_steps": "unroll_length",
    "total_timesteps": "total_frames",
    "timesteps": "total_frames",
    "steps": "total_frames",
    "batch_size": "ppo_minibatches",
    "clip_range": "ppo_clip",
    "clip_coef": "ppo_clip",
    "eval_freq": "eval_every",
}
"""Names in Stable-Baselines3 and CleanRL that resemble no setting here -> the setting."""

LEARNING = {each.name for each in fields(TrainConfig)} - {"algo", "total_frames"}
"""The settings for learning."""

Changed = TypeVar("Changed", bound="Config")


@dataclass(frozen=True)
class Config:
    """All settings of a run, by section: `config.core.mem_slots`.

    `Config().updated({"core": "lstm"})` is a copy with other settings, each by its name alone.

    Attributes:
      env: the environment.
      core: the recurrent core.
      agent: encoder and heads.
      train: the learner.
      actors: those of impala.
      run: seed, device, checkpoints, evaluation.

    Raises:
      ValueError: for a section of another type.
    """

    env: EnvConfig = field(default_factory=EnvConfig)
    core: CoreConfig = field(default_factory=CoreConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    actors: ActorConfig = field(default_factory=ActorConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        for each in fields(Config):  # subclasses of commands have further fields
            section: Any = each.default_factory  # the section's class
            if not isinstance(value := getattr(self, each.name), section):
                raise ValueError(
                    f"Config: {each.name}: expected {section.__name__}, got {shortened(value)}; "
                    "settings by name: Config().updated({...})"
                )

    def to_mapping(self) -> dict[str, Any]:
        """All settings by name, without sections, as in a YAML file."""
        return {name: value for section in asdict(self).values() for name, value in section.items()}

    def updated(self, settings: dict[str, Any], source: str = "settings") -> Self:
        """A copy with the given settings changed.

        Args:
          settings: values by name.
          source: where they come from, for the error message.

        Raises:
          ValueError: for an unknown name (the message suggests the nearest) or a value out of range.
        """
        known = self.to_mapping()
        settings = {name: value for name, value in settings.items() if (name, value) not in RETIRED.items()}
        for name in settings:
            if name not in known:
                hint = did_you_mean(name, known, "rmc-train --help-all lists all settings")
                if name in NAMES_ELSEWHERE:
                    hint = f"did you mean {NAMES_ELSEWHERE[name]!r}?"
                raise ValueError(f"{source}: there is no setting {name!r}; {hint}")
        sections = {}
        for section in fields(self):
            values = asdict(getattr(self, section.name))
            values |= {name: value for name, value in settings.items() if name in values}
            try:
                sections[section.name] = type(getattr(self, section.name))(**values)
            except ValueError as error:
                raise ValueError(f"{source}: {error}") from None
        return type(self)(**sections)

    def differing(self, other: "Config") -> list[str]:
        """Names of the settings that differ between two configurations."""
        here, there = self.to_mapping(), other.to_mapping()
        return [name for name in here if here[name] != there[name]]

    @property
    def has_own_parts(self) -> bool:
        """Whether the core or the encoder is a user's."""
        return self.core.core not in CORES or self.agent.encoder not in ENCODERS

    def settled(self) -> Self:
        """A copy with the settings that the algorithm determines: core and optimizer for those of Stable-Baselines3,
        the number of lanes for impala.

        Raises:
          ValueError: if a core is requested for an algorithm without memory.
        """
        algo, policy = self.train.algo, self.train.sb3_policy
        if algo == "impala":
            return self.updated({"num_envs": self.actors.actors * self.actors.lanes_per_actor}, algo)
        if algo not in SB3_ALGORITHMS:
            return self
        if policy == "rmc" and algo != "recurrent-ppo":
            raise ValueError(f"sb3_policy: expected auto, mlp or cnn for {algo}, which has no memory, got rmc")
        used: dict[str, Any] = {"optimizer": "adam"}
        if algo != "recurrent-ppo":
            used["core"] = "none"
        elif policy in ("mlp", "cnn"):
            used["core"] = "lstm"
        return self.updated(used, algo)

    def unused(self) -> set[str]:
        """Names of settings that have no effect, except those that the core does not take."""
        algo, names = self.train.algo, set()
        if algo == "impala":
            names |= {"num_envs"}  # actors * lanes_per_actor
        if algo not in ("ppo", "recurrent-ppo", "sb3-ppo"):
            names |= {"ppo_epochs", "ppo_minibatches", "ppo_clip"}
        if algo != "impala":
            names |= {"vtrace", "clip_rho", "clip_pg_rho", *(each.name for each in fields(ActorConfig))}
        elif not self.train.vtrace:
            names |= {"clip_rho", "clip_pg_rho"}
        if algo not in SB3_ALGORITHMS:
            names |= {"sb3_policy"}
        elif algo != "recurrent-ppo" or self.train.sb3_policy in ("mlp", "cnn"):  # Stable-Baselines3's own policies
            names |= {"core_skip", "core_gain", "forget_bias", "backend", "precision"}
        if (core := self.settled().core.core) == "none":
            names |= {"core_skip", "backend", "precision"}
        elif core == "rmc":
            names |= {"coupled": {"input_bias"}, "none": {"input_bias", "forget_bias"}}.get(self.core.gate_style, set())
        if self.agent.encoder not in ENCODERS:  # a custom one has encoder_args
            names |= {"encoder_sizes"}
        if self.train.learning_rate_schedule == "constant":
            names |= {"decay_start"}
        if self.settled().train.optimizer == "adam":
            names |= {"weight_decay"}
        can_predict = algo not in ("supervised", *SB3_ALGORITHMS)
        names |= set() if can_predict else {"predict_rewards"}
        names |= set() if can_predict and self.agent.predict_rewards else {"reward_cost"}
        costs = {"ppo_clip", "entropy_cost", "value_cost", "reward_cost"}
        names |= {"loss_args"} if self.train.loss in LOSSES else costs  # a custom loss has loss_args
        if algo == "supervised":
            names |= {"discount", "trace_lambda", "reward_scale", "normalize_advantages", "entropy_cost", "value_cost"}
        return names

    def suggested_preset(self) -> str | None:
        """The preset for this environment; None: there is none, or one of its settings for learning was changed."""
        presets = configs.for_env(self.env.env)
        if not presets or self.env.env.startswith("minipacman"):
            return None
        preset = next((name for name in presets if name.endswith(f"-{self.core.core}")), presets[0])
        default, suited = Config(), Config().updated_from_yaml(preset)
        return None if LEARNING.intersection(default.differing(suited), default.differing(self)) else preset

    def leaves_learning(self) -> bool:
        """Whether all settings for learning are the defaults, which are Mini PacMan's, in another environment."""
        defaults = Config().updated({"algo": self.train.algo}).settled()
        return not self.env.env.startswith("minipacman") and not LEARNING.intersection(defaults.differing(self))

    def check_parts(self) -> None:
        """Reject an unknown core, encoder or loss without importing torch.

        Raises:
          ValueError: for a name neither built-in nor registered, with the nearest; for arguments of a built-in core.
        """
        parts = [("core", self.core.core, CORES), ("encoder", self.agent.encoder, ENCODERS)]
        for kind, name, built_in in [*parts, ("loss", self.train.loss, LOSSES)]:
            known = [*built_in, *registered[kind]]
            if name not in known and find(name) is None:
                hint = remedy(name)
                if ":" not in name:
                    hint = suggestion(name, known, f"expected {', '.join(known)}; {hint}")
                raise ValueError(f"{kind}: there is no {kind} {name!r}; {hint}")
        if self.core.core_args and self.core.core in CORES:
            raise ValueError(self.core.core_args_error())

    def to_yaml(self) -> str:
        """YAML text from which `updated_from_yaml` restores an equal configuration."""
        plain = {name: list(v) if isinstance(v, tuple) else v for name, v in self.to_mapping().items()}
        return dump_yaml(plain, sort_keys=False)

    def sections(self) -> dict[str, Any]:
        """The sections by name, without the further fields of a command's subclass."""
        return {each.name: getattr(self, each.name) for each in fields(Config)}

    def changed(self, change: Callable[[Self], Changed], source: object) -> Changed:
        """`change(self)`, for settings that come from a file, `source`: its Ray cluster is not taken over, because what
        a cluster sends can run code here.

        Raises:
          ValueError: if only the file names a cluster.
        """
        address = self.actors.ray_address
        if address is None:
            return change(self)
        config = change(self.updated({"ray_address": None}, "ray_address"))
        if config.actors.actor_engine == "ray" and config.actors.ray_address is None:
            address = quote(address)
            raise ValueError(
                f"{source} names the Ray cluster {address}, which can run code here; if you trust it, add "
                f"--ray-address {address} (rmc-sweep: --set ray_address={address}), or in Python the setting"
            )
        return config

    def updated_from_yaml(self, path: str | PathLike[str] | None) -> Self:
        """A copy with the settings of a YAML file, or of the preset with that name; None changes nothing.

        A file may begin with another one's settings: `base: FILE`, relative to its own folder, or a preset's name.

        Raises:
          ValueError: if there is no such file or preset, and as `updated` and `read_yaml` do.
        """
        return self if path is None else self._updated_from(configs.find(path), str(path), ())

    def _updated_from(self, path: Path, source: str, above: tuple[Path, ...]) -> Self:
        """As `updated_from_yaml`; `above` are the files whose base this is."""
        settings = read_yaml(path)
        base = settings.pop("base", None)
        if base is None:
            return self.updated(settings, source)
        if not isinstance(base, str) or path.resolve() in above:
            expected = "a file or a preset" + " that is not based on this one" * isinstance(base, str)
            raise ValueError(f"{source}: base: expected {expected}, got {shortened(base)}")
        beside = path.parent / base
        found = beside if beside.is_file() else configs.find(base)
        return self._updated_from(found, base, (*above, path.resolve())).updated(settings, source)
