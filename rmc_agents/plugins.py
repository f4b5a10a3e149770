"""Users' code in the commands: modules with cores, encoders and environments, imported by name.

Importing a module runs its code. So a module is imported only if its name was typed on the command line, by --import
or as 'module:Name' by --core, --encoder or --env; never because a checkpoint or a YAML file contains it.
Processes that a command starts import the same modules.
"""

import importlib
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

Result = TypeVar("Result")

OWN = __name__.partition(".")[0]  # this package, which is imported anyway
_typed: dict[str, None] = {}  # modules by name, in the order of their import
_envs: dict[str, None] = {}  # names of environments, 'module:Name', that are registered with gymnasium


class PluginError(ValueError):
    """Code of a module that the user named failed, in its import or later; a note has the traceback through it."""

    is_theirs = True  # see `command_line.run`


def load(modules: Sequence[str], *names: str | None, env: str | None = None) -> None:
    """Import what a user typed for a command; modules in the current folder are found, as `python -m` finds them.

    Args:
      modules: of --import.
      names: values of --core and --encoder; those of the form 'module:Name' count.
      env: the value of --env; likewise.

    Raises:
      PluginError: if there is no such module or its code fails, which a note then shows.
      ValueError: if `env` names something that makes no environment.
    """
    _typed.clear()  # a process may run several commands, one after the other
    _envs.clear()
    flags = dict.fromkeys(modules, "--import")
    flags |= {module: name for name in (*names, env) if name and (module := module_of(name)) and module not in flags}
    if flags and (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    for module, source in flags.items():
        if module == OWN or module.startswith(f"{OWN}."):
            continue
        _import(module, source)
        _typed[module] = None
    if env:
        _register_env(env)


def _import(module: str, source: str) -> None:
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:
        name = module if source == "--import" else source
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
        raise _as_theirs(
            error, f"{name}: importing {module} failed", frames[1:]
        ) from error  # the first is of this file


def blame(error: BaseException) -> None:
    """Find out whether an error came out of a module that the user named, such as a core's `cell`.

    Raises:
      PluginError: if so, and nothing else has said it.
    """
    if getattr(error, "is_theirs", False):
        return
    frames = traceback.extract_tb(error.__traceback__)
    for module in _typed:
        root = str(getattr(sys.modules.get(module.partition(".")[0]), "__file__", None))
        place = os.path.dirname(root) + os.sep if os.path.basename(root) == "__init__.py" else root
        if their := [i for i, frame in enumerate(frames) if frame.filename.startswith(place)]:
            last = frames[their[-1]]
            told = _as_theirs(error, f"{module} failed", frames[their[0] :])
            told.args = (f"{told} ({last.filename}, line {last.lineno}, in {last.name})",)
            raise told from error


def _as_theirs(error: BaseException, what: str, frames: list[traceback.FrameSummary]) -> PluginError:
    """The error as one line, with the traceback of the frames in a note."""
    shown = traceback.TracebackException.from_exception(error)  # its text is the error's, or says that it has none
    told = PluginError(f"{what}: {type(error).__name__}: {shown}")
    if frames or isinstance(error, SyntaxError):
        shown.stack = traceback.StackSummary.from_list(frames)
        told.add_note("".join(shown.format()).rstrip())
    return told


def module_of(name: str) -> str:
    """The user's module in 'module:Name'; '' for other names, text:PATH among them."""
    module, colon, _ = name.partition(":")
    is_module = colon and all(part.isidentifier() for part in module.split(".")) and module != "text"
    return module if is_module and module.partition(".")[0] != OWN else ""


def find(name: str) -> Callable[..., Any] | None:
    """The class or function 'module:Name' of a module that the user named; None where the user did not.

    The name may come from a file: nothing is imported, and only what the module's own package defines is found.

    Raises:
      ValueError: if the module defines nothing of that name.
    """
    module, _, attribute = name.partition(":")
    if module not in _typed:
        return None
    found, package = getattr(sys.modules[module], attribute, None), module.partition(".")[0]
    if not callable(found) or str(getattr(found, "__module__", "")).partition(".")[0] != package:
        raise ValueError(f"{name}: expected a class or a function that {package} defines, got no such name")
    return found


def _register_env(name: str) -> None:
    """Have gymnasium know the class or function 'module:Name' of a module that the user named."""
    from rmc_agents.envs.names import split_stack
    from rmc_agents.envs.own import register_own

    base, _ = split_stack(name)
    module, _, attribute = base.partition(":")
    if module not in _typed or not hasattr(sys.modules[module], attribute):
        return  # an id that the module registers, or no environment at all
    make = find(base)
    assert make is not None
    register_own(attribute, make)
    _envs[name] = None


def remedy(name: str) -> str:
    """How to make an unknown part known, as the end of an error message."""
    if module := module_of(name):
        return f"importing {module} runs its code; if you trust it, add --import {module}"
    return "if it is your own, import the module that registers it, by --import MODULE"


def check_named(name: str, source: object) -> None:
    """For an environment's name that may come from a file; registers it as `load` does.

    Raises:
      ValueError: if its module would have to be imported.
    """
    module = module_of(name)
    if module and module not in sys.modules:
        raise ValueError(f"{source} names the environment {name!r}: {remedy(name)}")
    _register_env(name)


def flags() -> list[str]:
    """Flags that make another command import the same modules."""
    return [word for module in _typed for word in ("--import", module)]


def told_flags() -> str:
    """The same as text, with a space in front, to append to a suggested command; or nothing."""
    return "".join(f" {shlex.quote(word)}" for word in flags())


def carried(function: Callable[..., Result]) -> Callable[..., Result]:
    """The function for another process, where it first imports the same modules."""
    return partial(_import_and_call, list(_typed), list(_envs), os.getcwd(), function) if _typed else function


def _import_and_call(
    modules: list[str], envs: list[str], folder: str, function: Callable[..., Result], *arguments: Any
) -> Result:
    if Path(folder).is_dir() and folder not in sys.path:
        sys.path.insert(0, folder)
    load(modules)
    for name in envs:
        _register_env(name)
    return function(*arguments)
