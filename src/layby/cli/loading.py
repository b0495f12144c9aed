"""User code by name: `package.module`, `path/to/file.py`, and `…:FLOW` for one thing in it."""

import importlib
import importlib.util
import sys
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from layby.errors import UsageError
from layby.workflow.task import TaskDefinition
from layby.workflow.workflow import Workflow


def load_module(name: str) -> ModuleType:
    """Import it as `python -m` would: the current folder counts."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    if name.endswith(".py"):
        return _load_file(Path(name))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise  # the module is there; what it imports is not
        raise UsageError(
            f"there is no module '{name}' (looked in {Path.cwd()} and the Python path): "
            "give package.module or path/to/file.py"
        ) from None


def find_flow(name: str) -> Workflow:
    """`MODULE:FLOW`; without `:FLOW` the module's only workflow."""
    module_name, _, wanted = name.partition(":")
    module = load_module(module_name)
    flows = flows_in(module)
    if not wanted and len(flows) == 1:
        return flows[0]
    found = getattr(module, wanted, None) if wanted else None
    by_name = {flow.name: flow for flow in flows}
    found = found if isinstance(found, Workflow) else by_name.get(wanted)
    if found is None:
        raise UsageError(_no_flow(module_name, wanted, list(by_name)))
    return found


def flows_in(module: ModuleType) -> list[Workflow]:
    """Every workflow at the top of the module, once."""
    found = [each for each in vars(module).values() if isinstance(each, Workflow)]
    return list(dict.fromkeys(found))


def calls_in(module: ModuleType) -> list[TaskDefinition[..., Any]]:
    """Tasks at the top of the module that serve calls of other languages."""
    found: list[TaskDefinition[..., Any]] = [
        each for each in vars(module).values() if isinstance(each, TaskDefinition)
    ]
    return list(dict.fromkeys(each for each in found if each.rpc is not None))


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"there is no file {path}: give package.module or path/to/file.py")
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # so that processes and pickles find it by name
    spec.loader.exec_module(module)
    return module


def _no_flow(module: str, wanted: str, there: list[str]) -> str:
    if not there:
        return f"{module} has no workflow: write flow = Workflow('name', tasks=[...]) in it"
    if not wanted:
        return f"{module} has several workflows: write {module}:{there[0]} (or {', '.join(there)})"
    close = get_close_matches(wanted, there, 1)
    hint = f": did you mean {module}:{close[0]}?" if close else f"; it has {', '.join(there)}"
    return f"{module} has no workflow '{wanted}'{hint}"
