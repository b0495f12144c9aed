"""User code by name."""

import sys
from pathlib import Path

import pytest

from layby.cli.user_code import BrokenCode, calls_in, find_flow, flows_in, load_module
from layby.errors import UsageError

FLOWS = """
from layby import Workflow, task

@task
async def work(context): ...

@task(rpc="greet")
async def greet(context): ...

one = Workflow("first", tasks=[work])
two = Workflow("second", tasks=[work])
again, greeting = one, greet
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder; what is imported from it does not stay."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("flows", "shop", "shop.flows", "shopping", "main", "prices", "single", "empty"):
        monkeypatch.setitem(sys.modules, name, sys)  # so that it is as it was afterwards
        del sys.modules[name]
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "flows.py").write_text(FLOWS)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "flows.py").write_text(FLOWS)
    return tmp_path


@pytest.mark.parametrize("name", ["flows.py", "flows", "shop/flows.py", "shop.flows"])
def test_code_is_found_by_module_and_by_path(name: str, folder: Path):
    """From the current folder, everything at the top of it, once."""
    module = load_module(name)
    assert [flow.name for flow in flows_in(module)] == ["first", "second"]
    assert [call.rpc for call in calls_in(module)] == ["greet"]


def test_a_file_imports_its_neighbours(folder: Path):
    """As it does when Python runs it."""
    (folder / "shop" / "prices.py").write_text("price = 3\n")
    (folder / "shop" / "main.py").write_text("from prices import price\n")
    assert load_module("shop/main.py").price == 3


def test_processes_find_it_by_name(folder: Path):
    """What a file defines can be pickled: it is there under its name."""
    module = load_module("flows.py")
    assert sys.modules["flows"] is module


def test_what_is_not_there_is_told_with_where_was_looked(folder: Path):
    """A module, a package, a file, a folder."""
    for name in ("nowhere", "nowhere.flows", "shop.nowhere"):
        with pytest.raises(UsageError, match=f"no module '{name}'.*{folder}"):
            load_module(name)
    for name in ("nowhere.py", "shop/nowhere.py"):
        with pytest.raises(UsageError, match=f"no file {name}"):
            load_module(name)


@pytest.mark.parametrize("missing", ["requests_of_nobody", "shop.nowhere", "shopp"])
def test_what_the_code_itself_misses_is_its_own_error(missing: str, folder: Path):
    """The module is there; what it imports is not, whatever that is called."""
    (folder / "shopping.py").write_text(f"import {missing}\n")
    for name in ("shopping", "shopping.py"):
        with pytest.raises(BrokenCode, match=f"{name} cannot be loaded(.|\n)*named '{missing}"):
            load_module(name)


@pytest.mark.parametrize("name", ["shopping", "shopping.py"])
@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def f(:", "SyntaxError: invalid syntax"),
        ("from layby import Workflow; Workflow('w', tasks=[])", "WorkflowError: "),
    ],
)
def test_code_that_raises_is_shown_from_where_it_is_the_users(name, line, told, folder: Path):
    """The file and the line, and nothing of who has loaded it."""
    (folder / "shopping.py").write_text(f"x = 1\n{line}\n")
    with pytest.raises(BrokenCode) as caught:
        load_module(name)
    head, *said = str(caught.value).splitlines()
    assert head == f"{name} cannot be loaded"
    assert f'{folder / "shopping.py"}", line 2' in next(each for each in said if "File" in each)
    assert told in said[-1]


@pytest.mark.parametrize("name", [".", "", "shop.", "shop/flows", "flows.py:one"])
def test_what_can_be_no_module(name: str, folder: Path):
    """Said instead of what `import` would say."""
    with pytest.raises(UsageError, match="is not a module: give"):
        load_module(name)


def test_one_flow_is_found_by_its_variable_or_its_name(folder: Path):
    """And needs neither where it is the only one."""
    assert find_flow("flows.py:two").name == "second"
    assert find_flow("shop.flows:second").name == "second"
    (folder / "single.py").write_text(FLOWS.replace("two =", "two = None and"))
    assert find_flow("single.py").name == "first"


def test_a_flow_that_is_not_there_is_told_with_what_is(folder: Path):
    """Close names first."""
    (folder / "empty.py").touch()
    for name, told in {
        "flows.py:secnd": "did you mean flows.py:second",
        "flows.py:work": "no workflow 'work'; it has first, second",
        "flows.py": r"several workflows \(first, second\): write flows.py:first",
        "empty.py": "empty.py has no workflow: write",
        "empty.py:flow": "empty.py has no workflow: write",
    }.items():
        with pytest.raises(UsageError, match=told):
            find_flow(name)
