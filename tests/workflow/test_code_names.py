"""What a workflow's code is called: by the contents of its sources, the same on every machine."""

import functools
import importlib.util
import subprocess
import sys
from pathlib import Path

from layby import Workflow, task
from layby.workflow.code_names import name_of

SOURCE = "from layby import Workflow, task\n\n@task\ndef a(context):\n    return {}\n"
FLOW = "flow = Workflow('f', tasks=[a])\n"


def loaded(file: Path, text: str, newline: str = "\n") -> str:
    """The name of the workflow in a file."""
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, newline=newline)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return name_of(module.flow)


def test_contents_count_and_neither_paths_nor_line_ends(tmp_path: Path) -> None:
    """The same files were deployed elsewhere, or checked out on Windows."""
    here = loaded(tmp_path / "here" / "x.py", SOURCE + FLOW)
    assert loaded(tmp_path / "there" / "y.py", SOURCE + FLOW, newline="\r\n") == here
    assert len(here) == 12


def test_another_source_has_another_name(tmp_path: Path) -> None:
    """Also when it is the same file, changed."""
    first = loaded(tmp_path / "x.py", SOURCE + FLOW)
    assert loaded(tmp_path / "x.py", f"{SOURCE}# changed\n{FLOW}") != first
    assert loaded(tmp_path / "x.py", SOURCE + FLOW) == first


def exec_flow(body: str) -> str:
    """Of functions without a source file."""
    names: dict[str, object] = {}
    exec(f"from layby import Workflow, task\n@task\ndef a(context):\n    {body}\n{FLOW}", names)
    flow = names["flow"]
    assert isinstance(flow, Workflow)
    return name_of(flow)


def test_without_a_source_file_the_compiled_code_counts() -> None:
    """In an interactive session, say: what the function does, and not where it stands."""
    assert exec_flow("return {1: 2}") == exec_flow("return {1: 2}")
    assert exec_flow("return {1: 2}") != exec_flow("return {1: 3}")
    assert exec_flow("return (lambda: 1)()") != exec_flow("return (lambda: 2)()")


def test_it_is_the_same_in_every_process() -> None:
    """Sets of strings have another order in each."""
    script = (
        "from tests.workflow.test_code_names import exec_flow\n"
        "print(exec_flow(\"return 'a' in {'a', 'b', 'c', 'd'}\"))"
    )
    names = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(names) == 1


class Callable:
    def __call__(self, context):
        return {}

    def method(self, context):
        return {}


def test_whatever_can_be_called_has_a_name() -> None:
    """Partials, methods and objects come down to the file that defines them."""

    def plain(context, more=1):
        return {}

    names = {
        name_of(Workflow("f", tasks=[task(id="a")(function)]))
        for function in (
            plain,
            functools.partial(plain, more=2),
            Callable(),
            Callable().method,
            functools.wraps(plain)(Callable()),
        )
    }
    assert len(names) == 1
