"""User code by name: `package.module`, `path/to/file.py`, and `…:FLOW` for one thing in it."""

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from click.shell_completion import CompletionItem

from layby.errors import UsageError, nearest_name
from layby.graph import Graph
from layby.workflow.task import TaskDefinition
from layby.workflow.workflow import Workflow

CommandGroup = TypeVar("CommandGroup", Workflow, Graph)
FORMS = "package.module or path/to/file.py"


class BrokenCode(UsageError):
    """The code was found but raises; its traceback says where."""


def load_module(name: str) -> ModuleType:
    """Import it as `python -m` would: the current folder counts."""
    _look_here()
    if ":" in name:
        raise UsageError(
            f"{name!r} is not a module: give {name.partition(':')[0]} without what follows"
        )
    return _load_file(Path(name)) if name.endswith(".py") else _import(name)


def _look_here() -> None:
    """Modules are found in the current folder too."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


def find_flow(name: str) -> Workflow:
    """`MODULE:FLOW`; without `:FLOW` the module's only workflow."""
    return _find(name, Workflow, "workflow", "flow = Workflow('name', tasks=[...])")


def find_flow_or_name(target: str) -> Workflow | str:
    """The workflow; or the target itself, if it is a name that no module with workflows has."""
    is_name = not (":" in target or "/" in target or target.endswith(".py"))
    if is_name and (not _is_module(target) or not flows_in(load_module(target))):
        return target
    return find_flow(target)


def _is_module(name: str) -> bool:
    _look_here()
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def find_graph(name: str) -> Graph:
    """`MODULE:GRAPH`; without `:GRAPH` the module's only graph."""
    return _find(name, Graph, "graph", "graph = Graph('name')")


def _find(name: str, kind: type[CommandGroup], what: str, example: str) -> CommandGroup:
    module_name, _, wanted = name.partition(":")
    module = load_module(module_name)
    there = _all_in(module, kind)
    if not wanted and len(there) == 1:
        return there[0]
    found = getattr(module, wanted, None) if wanted else None
    by_name = {each.name: each for each in there}
    found = found if isinstance(found, kind) else by_name.get(wanted)
    if found is None:
        raise UsageError(_not_found(module_name, wanted, list(by_name), what, example))
    return found


def _all_in(module: ModuleType, kind: type[CommandGroup]) -> list[CommandGroup]:
    return list(dict.fromkeys(each for each in vars(module).values() if isinstance(each, kind)))


def flows_in(module: ModuleType) -> list[Workflow]:
    """Every workflow at the top level of the module, once."""
    return _all_in(module, Workflow)


def calls_in(module: ModuleType) -> list[TaskDefinition[..., Any]]:
    """Tasks at the top level of the module that serve calls from other languages."""
    found: list[TaskDefinition[..., Any]] = [
        each for each in vars(module).values() if isinstance(each, TaskDefinition)
    ]
    return list(dict.fromkeys(each for each in found if each.rpc is not None))


def complete_files(_ctx: object, _param: object, incomplete: str) -> list[CompletionItem]:
    """A shell completes MODULE as it completes paths."""
    return [CompletionItem(incomplete, type="file")]


def _import(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(f"{name!r} is not a module: give {FORMS}")
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if not _is_missing(name, error):
            raise _broken(name, error) from error
        raise UsageError(
            f"there is no module '{name}' (looked in {Path.cwd()} and the Python path): "
            f"give {FORMS}"
        ) from None


def _is_missing(name: str, error: BaseException) -> bool:
    """Whether the module itself is missing, not one that it imports."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    return missing is not None and f"{name}.".startswith(f"{missing}.")


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"there is no file {path}: give {FORMS}")
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # so that processes and pickles find it by name
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise _broken(str(path), error) from error
    return module


def _broken(name: str, error: BaseException) -> BrokenCode:
    """With the traceback of the user's code, without ours."""
    return BrokenCode(f"{name} cannot be loaded\n{_traceback(error)}")


def _traceback(error: BaseException) -> str:
    frames = error.__traceback__
    while frames is not None and _is_ours(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames)).rstrip()


def _is_ours(file: str) -> bool:
    return file in (__file__, importlib.__file__) or file.startswith("<frozen importlib")


def _not_found(module: str, wanted: str, there: list[str], what: str, example: str) -> str:
    if not there:
        return f"{module} has no {what}: write {example} in it"
    if not wanted:
        return f"{module} has several {what}s ({', '.join(there)}): write {module}:{there[0]}"
    near = nearest_name(wanted, there)
    hint = f": did you mean {module}:{near}?" if near else f"; it has {', '.join(there)}"
    return f"{module} has no {what} '{wanted}'{hint}"
