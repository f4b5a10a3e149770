"""Users' modules in the commands: cores, encoders, losses and environments, imported by name.

Importing a module runs its code. A module is therefore imported only if it is named on the command line, by --import
or as 'module:Name' by --core, --cores, --encoder, --loss, --env, --track or rmc-sweep's --set, or in Python by the
arguments `env` and `track` of functions such as `rmc.train`, `rmc.evaluate` and `rmc.make_env`; never because a
checkpoint or a YAML file contains it. Subprocesses import the same modules.

A file may then name a core, encoder or environment of that module if it is a class of torch's or gymnasium's kind, or
registered. A function could be any of the module's, with arguments from the file: it is only called if the user has
written its name in full.
"""

import importlib
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from rmc_agents.formatting import did_you_mean

Result = TypeVar("Result")

OWN = __name__.partition(".")[0]  # this package
KINDS = {"torch.nn.modules.module.Module", "gymnasium.core.Env", "gymnasium.vector.vector_env.VectorEnv"}
"""Bases of the classes that a file may name."""
EXTRAS = ("popgym",)
"""Modules of environments that are optional dependencies; the extras have the same names."""
PACKAGES = (OWN, "gymnasium", "minigrid", *EXTRAS)
"""Packages that register their environments when they are imported, which every process does when it makes one."""
_typed: dict[str, None] = {}  # module names in import order
_named: dict[str, None] = {}  # 'module:Name' in full
_envs: dict[str, None] = {}  # environments 'module:Name' registered with gymnasium
_by_modules: set[tuple[str, str]] = set()  # kinds and names that modules named by the user registered when imported
registered: dict[str, dict[str, Callable[..., Any]]] = {"core": {}, "encoder": {}, "loss": {}}
"""Builders by kind and name that were registered in Python."""


class PluginError(ValueError):
    """A user's module failed, at import or later; a note holds the traceback through its code."""

    is_theirs = True  # see `command_line.run`


def suggestion(name: str, known: Iterable[str], otherwise: str) -> str:
    """What the user may have meant: module:Name for module.Name, or a similar known name; else `otherwise`."""
    module, _, attribute = name.rpartition(".")
    if module.replace(".", "_").isidentifier() and ":" not in name:
        return f"did you mean '{module}:{attribute}'?"
    return did_you_mean(name, known, otherwise)


def load(modules: Sequence[str], *names: str | None, env: str | None = None) -> None:
    """Import the modules named on a command line; the current folder is searched, as by `python -m`.

    Args:
      modules: the values of --import: MODULE, or 'module:Name' for a function of it that files may name.
      names: of cores, encoders, a loss and a tracker; only the form 'module:Name' matters.
      env: the value of --env; likewise.

    Raises:
      PluginError: if there is no such module or its code fails; a note then shows the traceback.
      ValueError: if `env` names something that is not an environment, or --import something that is not there.
    """
    for known in (_typed, _named, _envs):
        known.clear()  # a process may run several commands in sequence
    add(modules, *names, env=env)


def add(modules: Sequence[str], *names: str | None, env: str | None = None) -> None:
    """As `load`, in addition to the modules that have been imported before."""
    flags = dict.fromkeys((module_of(name) or name for name in modules), "--import")
    flags |= {module: name for name in (*names, env) if name and (module := module_of(name)) and module not in flags}
    if flags and (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    for module, source in flags.items():
        if module == OWN or module.startswith(f"{OWN}."):
            continue
        before = _registered_names()
        _import(module, source)
        _typed[module] = None
        _by_modules.update(_registered_names() - before)
    _named.update(dict.fromkeys(_without_stack(name) for name in (*modules, *names, env) if name and module_of(name)))
    for name in filter(module_of, modules):
        if not _is_registered(name):
            find(name)
    if env:
        _register_env(env)


def _registered_names() -> set[tuple[str, str]]:
    return {(kind, name) for kind, builders in registered.items() for name in builders}


def is_given_in_python(kind: str, name: str) -> bool:
    """Whether a core, an encoder or a loss was registered in Python, so that commands do not know it."""
    return (kind, name) in _registered_names() - _by_modules


def _without_stack(name: str) -> str:
    """An environment's name without the suffix -stackK."""
    from rmc_agents.envs.names import split_stack

    return split_stack(name)[0]


def _import(module: str, source: str) -> None:
    name = module if source == "--import" else source
    if not module or module.startswith(".") or "/" in module:
        raise ValueError(f"{name or '--import'}: expected a module's name, without folders, got {module!r}")
    if module == "__main__":
        raise ValueError(f"{name}: expected the name of a module in a file; in Python, pass the class itself")
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:
        hint = ""
        if ":" in module:
            hint = f"; expected the module's name alone: {module.partition(':')[0]}"
        elif module.endswith(".py"):
            hint = "; expected the module's name without .py"
        elif module in EXTRAS and not is_installed(module):
            hint = f"; pip install 'rmc-agents[{module}]'"
        elif isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]:
            hint = f"; expected one that is installed or in the current folder, {os.getcwd()}"
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
        reported = _as_theirs(error, f"{name}: importing {module} failed", frames[1:])  # without the frame of this file
        reported.args = (f"{reported}{hint}",)
        raise reported from error


def is_installed(module: str) -> bool:
    """Whether a module can be imported that is more than a folder of this name, as wandb and others make them."""
    spec = find_spec(module)
    return spec is not None and spec.origin is not None


def blame(error: BaseException) -> None:
    """Attribute an error to a user's module if it was raised there, for example in a core's `cell`, or in a module of
    the current folder that it imports.

    Raises:
      PluginError: if so, unless the error has been attributed already.
    """
    if getattr(error, "is_theirs", False) or not _typed:
        return
    walked = list(traceback.walk_tb(error.__traceback__))
    frames = traceback.StackSummary.extract(walked)
    modules = [str(frame.f_globals.get("__name__")) for frame, _ in walked]
    typed = {module.partition(".")[0] for module in _typed}
    here, others = os.getcwd() + os.sep, {OWN, *sys.stdlib_module_names}

    def is_theirs(module: str, file: str) -> bool:
        root = module.partition(".")[0]
        return root in typed or (root not in others and file.startswith(here) and "site-packages" not in file)

    if their := [i for i, frame in enumerate(frames) if is_theirs(modules[i], frame.filename)]:
        raise _as_theirs(error, f"{modules[their[-1]]} failed", frames[their[0] : their[-1] + 1]) from error


def _as_theirs(error: BaseException, what: str, frames: list[traceback.FrameSummary]) -> PluginError:
    from rmc_agents.envs.blame import as_theirs  # loads gymnasium

    return as_theirs(PluginError, what, error, frames)


def module_of(name: str) -> str:
    """The user's module in 'module:Name'; '' for other names, such as text:PATH.

    It is everything before the last colon, because gymnasium would import that.
    """
    module = name.rpartition(":")[0]
    is_text = module.partition(":")[0].partition("-")[0] == "text"
    return "" if is_text or module.partition(".")[0] == OWN else module


def find(name: str) -> Callable[..., Any] | None:
    """The class or function 'module:Name' if the user named the module, else None.

    The name may come from a file: nothing is imported, and only definitions inside the module's package are found, of
    functions only those that the user named in full.

    Raises:
      ValueError: if the module does not define that name, or only a file names the function.
    """
    module, colon, attribute = name.partition(":")
    if not colon or module not in _typed:
        return None
    found, package = getattr(sys.modules[module], attribute, None), module.partition(".")[0]
    home = _home(found)
    if home.partition(".")[0] != package:
        got = f"one of {home}: use {home}:{attribute}" if home else f"an object of {type(found).__name__}"
        got = f"no such name{_similar(module, attribute)}" if found is None else got
        raise ValueError(f"{name}: expected a class or a function that {package} defines, got {got}")
    if name not in _named and not _is_part(found):
        raise ValueError(
            f"only a file names {name}, and calling it runs its code; if you trust it, add --import {shlex.quote(name)}"
        )
    return found


def _is_part(found: object) -> bool:
    """Whether a class, or what a partial calls, is a module of torch or an environment of gymnasium."""
    made_by = found.func if isinstance(found, partial) else found
    bases = made_by.__mro__ if isinstance(made_by, type) else ()
    return any(f"{base.__module__}.{base.__qualname__}" in KINDS for base in bases)


def _home(found: object) -> str:
    """The module that defines a class or a function, or what a partial calls; '' for other objects."""
    made_by = found.func if isinstance(found, partial) else found
    return str(getattr(made_by, "__module__", None) or "") if callable(found) else ""


def _similar(module: str, attribute: str) -> str:
    """A suggestion after a semicolon, of a class or a function that the module's package defines; '' if none is
    similar."""
    package = module.partition(".")[0]
    known = [name for name, found in vars(sys.modules[module]).items() if _home(found).partition(".")[0] == package]
    hint = did_you_mean(attribute, known, "")
    return hint and f"; {hint}"


def _register_env(name: str) -> None:
    """Register the class or function 'module:Name' of a user's module with gymnasium, unless it is an id there.

    Raises:
      ValueError: for an unknown name that is similar to one that the module defines, and as `find` does.
    """
    from rmc_agents.envs.own import register_own

    base = _without_stack(name)
    module, _, attribute = base.partition(":")
    if module not in _typed:
        return
    if not hasattr(sys.modules[module], attribute):
        import gymnasium as gym

        if attribute not in gym.registry and (hint := _similar(module, attribute)):
            raise ValueError(
                f"there is no environment {base!r}: {module} has no class, function or id {attribute!r}{hint}"
            )
        return  # an id that the module registers; or an unknown one, which is refused later
    make = find(base)
    assert make is not None
    register_own(attribute, make)
    _envs[name] = None


def remedy(name: str) -> str:
    """The end of an error message: how to make the unknown name of a core, an encoder or a loss known."""
    if module := module_of(name):
        return f"importing {module} runs its code; if you trust it, add --import {shlex.quote(name)}"
    return "your own is MODULE:NAME, or registered by the module in --import MODULE"


def check_named(name: str, source: object) -> None:
    """Check an environment name that may come from a file, and register it as `load` does.

    Raises:
      ValueError: if it has no environment after its module, or the module has not been imported, or only by others and
        without registering that name with gymnasium.
    """
    module = module_of(name)
    if module and name.endswith(":"):
        raise ValueError(f"{source} leaves the environment of {module} to you: add --env {shlex.quote(name)}NAME")
    if module and module not in _typed and not _is_registered(name):
        raise ValueError(
            f"{source} names the environment {name!r}: importing {module} runs its code; if you trust it, add --import "
            f"{shlex.quote(module)}; in Python, pass env={name!r}"
        )
    _register_env(name)


def _is_registered(name: str) -> bool:
    """Whether the module of 'module:Id' has been imported, and the id is registered with gymnasium."""
    import gymnasium as gym

    return module_of(name) in sys.modules and _without_stack(name).rpartition(":")[2] in gym.registry


def flags() -> list[str]:
    """Flags with which another command imports the same modules."""
    return [word for name in _imports() for word in ("--import", name)]


def _imports() -> list[str]:
    """Values of --import that do what this process was told: modules, and their functions that were named."""
    functions = []
    for name in _named:
        module, _, attribute = name.rpartition(":")
        own = getattr(sys.modules[module], attribute, None)  # None: an id of gymnasium's
        functions += [name] if callable(own) and not _is_part(own) else []
    return [name for module in _typed for name in [f for f in functions if module_of(f) == module] or [module]]


def flags_text() -> str:
    """`flags` as text to append to a suggested command, with a leading space; '' without flags."""
    return "".join(f" {shlex.quote(word)}" for word in flags())


def flags_of(*names: str) -> str:
    """The flags, each with a leading space, with which a command finds cores, encoders, losses and environments of
    these names."""
    own = dict.fromkeys(_without_stack(name) for name in names if module_of(name))
    return "".join(f" --import {shlex.quote(name)}" for name in own)


def carried(function: Callable[..., Result], env: Any) -> Callable[..., Result]:
    """Wrap a function for another process, which first imports the same modules and registers the same custom parts.

    Args:
      function: what the process calls.
      env: the environment that it makes, by its name or otherwise.
    """
    spec = _given_spec(env)
    if spec is None and not _typed and not any(registered.values()):
        return function
    return partial(_prepare_and_call, _imports(), list(_envs), registered, spec, os.getcwd(), function)


def _given_spec(env: Any) -> Any:
    """The gymnasium registration of an environment; None if importing one of `PACKAGES` creates it."""
    import gymnasium as gym

    name = getattr(env, "name", env)
    spec = gym.registry.get(_without_stack(name)) if isinstance(name, str) else None
    makes = spec and (spec.entry_point or spec.vector_entry_point)
    return None if isinstance(makes, str) and makes.partition(".")[0] in PACKAGES else spec


def _prepare_and_call(
    modules: list[str],
    envs: list[str],
    builders: dict[str, dict[str, Callable[..., Any]]],
    spec: Any,
    folder: str,
    function: Callable[..., Result],
    *arguments: Any,
) -> Result:
    if Path(folder).is_dir() and folder not in sys.path:
        sys.path.insert(0, folder)
    load(modules)
    for name in envs:
        _register_env(name)
    for kind, named in builders.items():
        registered[kind] |= named
    if spec is not None:
        import gymnasium as gym

        gym.registry.setdefault(spec.id, spec)
    return function(*arguments)
