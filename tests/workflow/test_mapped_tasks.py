"""Tasks and functions that are stored by name are found in another process, however it began."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from layby.program import function_named
from layby.workflow.mapped_tasks import name_of_task, task_named

FLOWS = """
from layby import task

@task
async def square(context, item):
    return item * item

@task
async def caller(context, handle):
    return await handle.map(square, [1])
"""


def loaded(path: Path, name: str) -> ModuleType:
    """As `layby worker` does with a path, and Python with a script or a module of a package."""
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("there", ["__main__", "flows", "shop.flows"])
@pytest.mark.parametrize("here", ["__main__", "flows", "shop.flows"])
def test_a_file_may_have_another_name_in_another_process(tmp_path, monkeypatch, there, here):
    """`layby worker shop/flows.py`, `layby worker shop.flows` and `python shop/flows.py`."""
    path = tmp_path / "flows.py"
    path.write_text(FLOWS)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, there, loaded(path, there))
        name = name_of_task(sys.modules[there].square)
    module = loaded(path, here)
    monkeypatch.setitem(sys.modules, here, module)
    assert task_named(name, module.caller) is module.square


def test_a_task_of_another_file_is_not_taken_for_it(tmp_path):
    path = tmp_path / "flows.py"
    path.write_text(FLOWS)
    module = loaded(path, "shop.flows")
    assert task_named("shop.other:square", module.caller) is None
    assert task_named("flows:other", module.caller) is None


@pytest.mark.parametrize("there", ["__main__", "flows", "shop.flows"])
def test_a_function_to_be_resumed_at_is_found_the_same_way(tmp_path, there):
    path = tmp_path / "flows.py"
    path.write_text("def then(context): pass\ndef body(context): pass\n")
    module = loaded(path, "flows")
    assert function_named(f"{there}:then", module.body) is module.then
    assert function_named("shop.other:then", module.body) is None
