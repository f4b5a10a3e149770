"""The plan of a sweep: base settings, with ranges or choices for some of them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import yaml

from rmc_agents import configs
from rmc_agents.command_line import parsing
from rmc_agents.config import Config
from rmc_agents.config.plain_yaml import read_yaml, shortened
from rmc_agents.evaluate.plot import NOT_COMPARED, with_effect
from rmc_agents.formatting import did_you_mean

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

KEYS = ("base", "settings", "search")
KINDS = ("log", "uniform", "integer", "choice")
DECIDED = {"eval_episodes": "give --eval-episodes instead", "video": "trials record none; leave it out"}
"""Settings that a study and --set cannot fix, and why."""
NOT_SEARCHED = {
    "env": "scores of other environments do not compare",
    "env_kwargs": "scores of other environments do not compare",
    "eval_episodes": "scores are compared over equally many episodes",
    "eval_max_steps": "scores with other step limits do not compare",
    "video": "trials record none",
    "ray_address": "set it by --set ray_address=HOST:PORT",
    "seed": "set it by --set seed=N, or name several by --seeds with --one-at-a-time",
}
DECIDING = (
    "algo", "core", "encoder", "gate_style", "learning_rate_schedule", "loss", "optimizer", "predict_rewards",
    "sb3_policy", "vtrace",
)  # fmt: skip
"""Settings that decide whether others have an effect."""
Params = dict[str, Any]  # a trial's values of the settings that vary, lists as text (see `_label`)


@dataclass(frozen=True)
class Plan:
    """The trials of a sweep.

    Args:
      base: the settings that the search does not change; in one-at-a-time mode, the starting point of the changes.
      search: for each setting its kind, one of `KINDS`, and its values: low and high, or the choices.
      one_at_a_time: the base, then each choice or end of a range as the only change; else a search.
      seed: of the search.
      seeds: of the runs in one-at-a-time mode, each change with each seed; a search uses the base's.
      left_out: settings in the study's search that have no effect.
    """

    base: Config
    search: dict[str, tuple[str, list[Any]]]
    one_at_a_time: bool
    seed: int
    seeds: tuple[int, ...]
    left_out: tuple[str, ...] = ()

    @classmethod
    def read(
        cls,
        study: Path | Mapping[str, Any],
        fixed: Mapping[str, Any],
        eval_episodes: int,
        one_at_a_time: bool,
        seed: int,
        seeds: Sequence[int],
    ) -> Self:
        """The plan of a study.

        Args:
          study: its YAML file, the name of one included in the project, or the content of such a file.
          fixed: settings that override the study's; they are not searched.
          eval_episodes: of every trial's evaluation.

        Raises:
          ValueError: if the file cannot be read, or has an unknown name or invalid value; the message says where.
        """
        path = Path("study") if isinstance(study, Mapping) else configs.find(study, configs.SWEEPS)
        study = study if isinstance(study, Mapping) else read_yaml(path)
        _check_names(study, KEYS, str(path), "key")
        base = _read_base(study, path).changed(lambda settings: settings.updated(dict(fixed), "--set"), path)
        base = base.updated({"video": False, "eval_episodes": eval_episodes}, "--eval-episodes")
        seeds = [base.updated({"seed": each}, "--seeds").run.seed for each in seeds]
        parsing.check_names(base, path)
        source = f"{path}: search"
        ranges = {
            name: _read_range(name, entry, base, source) for name, entry in _mapping(study, "search", path).items()
        }
        ranges = {name: values for name, values in ranges.items() if name not in fixed}
        variants = _variants(base, {} if one_at_a_time else ranges, source)
        search = {name: ranges[name] for name in with_effect(list(ranges), variants)}
        if not search:
            cores = " or ".join(dict.fromkeys(variant.core.core for variant in variants))
            raise ValueError(
                f"{source}: expected at least one setting that {base.train.algo} with core {cores} uses and that --set "
                "does not fix"
            )
        left_out = tuple(name for name in ranges if name not in search)
        return cls(base, search, one_at_a_time, seed, tuple(seeds or [base.run.seed]), left_out)

    @classmethod
    def from_description(cls, path: Path) -> Self:
        """Restore a plan from its `description`. Raises ValueError if the file is missing or damaged."""
        content = read_yaml(path)
        try:
            search = {name: next(iter(values.items())) for name, values in content["search"].items()}
            base = Config().updated(content["settings"], str(path))
            plan = cls(base, search, content["one_at_a_time"], content["seed"], tuple(content["seeds"]))
            plan.distributions()  # a TypeError for ranges that are none
        except (AttributeError, KeyError, TypeError, StopIteration) as error:
            raise ValueError(f"{path} does not describe a sweep of this version: {error!r}") from None
        return plan

    def description(self) -> dict[str, Any]:
        """Everything that determines the trials, as plain values: sweeps with equal descriptions are the same."""
        return {
            "one_at_a_time": self.one_at_a_time,
            "seed": self.seed,
            "seeds": list(self.seeds),
            "search": {name: {kind: values} for name, (kind, values) in self.search.items()},
            "settings": yaml.safe_load(self.base.to_yaml()),
        }

    def distributions(self) -> dict[str, "BaseDistribution"]:
        """Optuna's distributions; in one-at-a-time mode the sets of possible values, seeds included."""
        from optuna.distributions import CategoricalDistribution

        if not self.one_at_a_time:
            return {name: _distribution(kind, values) for name, (kind, values) in self.search.items()}
        base = self._base_params()
        choices = {name: [base[name], *values] for name, (_, values) in self.search.items()}
        choices["seed"] = list(self.seeds)
        return {name: CategoricalDistribution(list(dict.fromkeys(values))) for name, values in choices.items()}

    def one_by_one(self) -> list[Params]:
        """The trials of one-at-a-time mode, in order: the base, then every change, each with every seed."""
        base = self._base_params()
        changes = [{name: value} for name, (_, values) in self.search.items() for value in values]
        different = [{}, *(change for change in changes if not change.items() <= base.items())]
        return [base | change | {"seed": seed} for change in different for seed in self.seeds]

    def changed(self, params: Params) -> Params:
        """The trial's values that differ from the base, without the seed."""
        base = self._base_params()
        return {name: value for name, value in params.items() if name in base and value != base[name]}

    def config(self, params: Params, source: str) -> Config:
        """All settings of a trial. Raises ValueError, beginning with `source`, if they do not go together."""
        return self.base.updated({name: unlabel(value) for name, value in params.items()}, source)

    def _base_params(self) -> Params:
        settings = self.base.to_mapping()
        return {name: _label(settings[name]) for name in self.search}


def _read_base(study: Mapping[str, Any], path: Path) -> Config:
    """The settings of a study's keys `base` and `settings`."""
    base = Config()
    if study.get("base") is not None:
        beside = path.parent / str(study["base"])
        base = base.updated_from_yaml(beside if beside.is_file() else str(study["base"]))
    settings = _mapping(study, "settings", path)
    for name in settings.keys() & DECIDED.keys():
        raise ValueError(f"{path}: settings: {name}: {DECIDED[name]}")
    return base.updated(settings, f"{path}: settings")


def _variants(base: Config, ranges: Mapping[str, tuple[str, list[Any]]], source: str) -> list[Config]:
    """The base with every combination of values of the settings that decide whether others have an effect."""
    names = [name for name in DECIDING if name in ranges]
    combinations = product(*(ranges[name][1] for name in names))
    return [base.updated(dict(zip(names, values, strict=True)), source).settled() for values in combinations]


def _read_range(name: str, entry: Any, base: Config, source: str) -> tuple[str, list[Any]]:
    """The kind and the checked values of one line of `search`."""
    where = f"{source}: {name}"
    if name in NOT_SEARCHED:
        raise ValueError(f"{where}: cannot be searched: {NOT_SEARCHED[name]}")
    if name in NOT_COMPARED:
        raise ValueError(f"{where}: cannot be searched: it does not affect the score")
    if not isinstance(entry, dict) or len(entry) != 1:
        raise ValueError(
            f"{where}: expected one of {', '.join(KINDS)}, such as {{log: [low, high]}}, got {shortened(entry)}"
        )
    kind, values = next(iter(entry.items()))
    _check_names([kind], KINDS, where, "kind of range")
    if not isinstance(values, list) or not values:
        raise ValueError(f"{where}: {kind}: expected a list of at least one value, got {shortened(values)}")
    changed = [base.updated({name: value}, source) for value in values]
    try:
        for each in changed:
            each.check_parts()
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None
    read = [_label(each.to_mapping()[name]) for each in changed]
    if kind == "choice":
        return kind, list(dict.fromkeys(read))
    if len(read) != 2 or any(isinstance(value, bool) or not isinstance(value, int | float) for value in read):
        raise ValueError(f"{where}: {kind}: expected two numbers, [low, high], got {shortened(values)}")
    low, high = read
    if low >= high:
        raise ValueError(f"{where}: {kind}: expected low below high, got {shortened(values)}")
    if kind == "log" and low <= 0:
        raise ValueError(f"{where}: log: expected low above 0, got {shortened(values)}")
    if kind == "integer":
        if not (float(low).is_integer() and float(high).is_integer()):
            raise ValueError(f"{where}: integer: expected whole numbers, got {shortened(values)}")
        return kind, [int(low), int(high)]
    return kind, [low, high]


def _distribution(kind: str, values: list[Any]) -> "BaseDistribution":
    """Optuna's distribution; integer settings are sampled as integers, whatever the kind."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if kind == "choice":
        return CategoricalDistribution(values)
    low, high = values
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high, log=kind == "log")
    return FloatDistribution(low, high, log=kind == "log")


def _label(value: Any) -> Any:
    """A setting's value as one of Optuna's choices; lists and mappings, which Optuna does not take, become JSON."""
    return json.dumps(value) if isinstance(value, tuple | list | dict) else value


def unlabel(value: Any) -> Any:
    """The value of a choice's label."""
    return json.loads(value) if isinstance(value, str) and value.startswith(("[", "{")) else value


def _mapping(study: Mapping[str, Any], key: str, path: Path) -> dict[str, Any]:
    value = study.get(key)
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"{path}: {key}: expected lines of 'name: value', got {shortened(value)}")
    return value or {}


def _check_names(names: Iterable[Any], known: Sequence[str], source: str, what: str) -> None:
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known, f"expected one of {', '.join(known)}")
            raise ValueError(f"{source}: there is no {what} {name!r}; {hint}")
