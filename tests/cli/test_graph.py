"""`layby graph`, as somebody at a desk types it."""

import stat
import sys
from pathlib import Path

import pytest

from tests.helpers.command_line import typed

FORM = """\
graph: camera
components:
  sensor: {run: "camera_parts:sensor", outputs: [frame], trigger: manual}
  detect: {run: "camera_parts:detect", inputs: [frame], outputs: [result], error_port: failed}
  join: {run: "camera_parts:join", inputs: [result], trigger: task_ready}
edges:
  - {from: sensor.frame, to: detect.frame}
  - {from: detect.result, to: join.result, kind: async, max_inflight: 4, capacity: 8}
"""
PARTS = """
def sensor(context):
    context.publish("frame", 21 if context.payload is None else context.payload)

def detect(context):
    frame = context.input("frame")
    context.submit_task("result", lambda: 882 // frame)

def join(context):
    print("joined", context.input("result"))
"""
MODULE = """
print("loading")
from layby.graph import Graph

graph = Graph("two")

@graph.component(outputs=["out"], trigger="manual")
async def first(context):
    context.publish("out", 1)

@graph.component(inputs=["into"])
def second(context):
    raise LookupError("no such order")

graph.connect("first.out", "second.into")
lonely = Graph("lonely")

@lonely.component(inputs=["into"])
def only(context):
    print("got", context.payload)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with a graph in YAML and one in Python; what is imported does not stay."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in ("camera_parts", "graphs"):
        monkeypatch.setitem(sys.modules, name, sys)
        del sys.modules[name]
    (tmp_path / "camera.yaml").write_text(FORM)
    (tmp_path / "camera_parts.py").write_text(PARTS)
    (tmp_path / "graphs.py").write_text(MODULE)
    return tmp_path


def test_validate_says_that_it_can_run():
    """And what is probably not meant."""
    assert typed("graph", "validate", "camera.yaml").lines == [
        "camera: 3 components, 2 edges, can run",
        "warning: output 'detect.failed' has no edge",
    ]
    assert typed("graph", "validate", "camera.yaml", "--json").json == {
        "ok": True,
        "problems": [],
        "warnings": ["output 'detect.failed' has no edge"],
    }


def test_validate_lists_every_problem(folder):
    """With file and line; exit code 1 says that the answer is no."""
    bad = FORM.replace("max_inflight", "max_inflght").replace(
        "camera_parts:join", "camera_parts:jion"
    )
    (folder / "camera.yaml").write_text(bad)
    said = typed("graph", "validate", "camera.yaml")
    assert (said.code, said.err) == (1, "")
    assert said.out.splitlines() == [
        "camera.yaml:5: run: camera_parts has no function 'jion'; did you mean 'join'?",
        "camera.yaml:8: an edge has an unknown field 'max_inflght'; did you mean 'max_inflight'?",
    ]


def test_plan_shows_order_and_bounds(folder):
    """Without importing the functions."""
    (folder / "camera_parts.py").write_text("raise SystemExit")
    said = typed("graph", "plan", "camera.yaml")
    assert said.code == 0
    lines = [line.split() for line in said.out.splitlines()]
    assert lines[1:4] == [
        ["1", "sensor", "manual", "-", "frame"],
        ["2", "join", "task_ready", "result", "-"],
        ["3", "detect", "any_input", "frame", "result,", "failed"],
    ]
    assert lines[-1] == [
        "detect.result", "join.result", "async", "next", "epoch", "queue", "8", "4", "overwrite",
    ]  # fmt: skip
    assert said.err == "warning: output 'detect.failed' has no edge\n"
    plan = typed("graph", "plan", "camera.yaml", "--json").json
    assert [each["name"] for each in plan["components"]] == ["sensor", "join", "detect"]
    assert plan["edges"][1]["max_inflight"] == 4


@pytest.mark.parametrize("threads", [(), ("--threads", "2")], ids=["between", "threads"])
def test_run_until_nothing_is_left(threads):
    """What components print, then the counters that moved."""
    said = typed("graph", "run", "camera.yaml", "--timeout", "60s", *threads)
    assert said.code == 0
    assert said.out.splitlines()[0] == "joined 42"
    assert ["runtime.task.completed_count", "1"] in [x.split() for x in said.out.splitlines()]


def test_run_speaks_json():
    """One document on stdout; what components print goes to stderr."""
    said = typed("graph", "run", "camera.yaml", "--fire", "sensor=42", "--trace", "9", "--json")
    assert said.err == "joined 21\n"
    document = said._replace(err="").json
    assert document["graph"] == "camera"
    assert document["error"] is None
    assert document["metrics"]["runtime.async.completed_count"] == 1
    assert document["channels"]["detect.result->join.result"]["runtime.async.completed_count"] == 1
    assert document["trace"][0]["kind"] == "invoked"


def test_run_so_many_epochs():
    """The completion has not become visible after two."""
    said = typed("graph", "run", "camera.yaml", "--epochs", "2")
    assert "joined" not in said.out
    assert typed("graph", "run", "camera.yaml", "--epochs", "3").lines[0] == "joined 42"


def test_a_component_that_raises(folder):
    """Its own traceback, the counters, and one line with its name: exit code 1."""
    said = typed("graph", "run", "graphs.py:graph")
    assert said.code == 1
    assert "Traceback" in said.err
    assert said.err.splitlines()[-1] == (
        "layby: LookupError: no such order (in component 'second' of graph 'two', epoch 1)"
    )
    assert "runtime.component.error_count" in said.out


def test_work_that_does_not_end_in_time(folder):
    """Exit code 1, and what may be the matter."""
    (folder / "camera_parts.py").write_text(
        "import threading\nnever = threading.Event()\n"
        + PARTS.replace("lambda: 882 // frame", "lambda: never.wait(1)")
    )
    said = typed("graph", "run", "camera.yaml", "--threads", "1", "--timeout", "100ms")
    assert said.code == 1
    assert said.err == (
        "layby: graph 'camera' is not idle after 0.1 s; what is left: 1 work item not back\n"
    )


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("plan", "nowhere.yaml"), ("no file nowhere.yaml", "MODULE:GRAPH")),
        (("run", "camera.yaml", "--fire", "sensr"), ("'sensr'", "did you mean 'sensor'?")),
        (("run", "graphs.py:lonely"), ("no component with trigger manual", "--fire only")),
        (("plan", "graphs.py"), ("several graphs (two, lonely)", "write graphs.py:two")),
        (("plan", "graphs.py:twoo"), ("no graph 'twoo'", "did you mean graphs.py:two?")),
        (("plan", "camera_parts.py"), ("has no graph", "graph = Graph('name')")),
        (("render", "camera.yaml", "--format", "svg"), ("mmdc", "npm install")),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else None,
)
def test_what_cannot_be_run_is_one_line(words, parts, monkeypatch):
    """Exit code 2: what, which, and what to do."""
    monkeypatch.setenv("PATH", "")
    said = typed("graph", *words)
    said._replace(err=said.err.removeprefix("loading\n")).complains(2, *parts)


def test_a_graph_of_a_module_can_be_fired_by_hand():
    """With a payload that is JSON, or else a text."""
    said = typed("graph", "run", "graphs.py:lonely", "--fire", "only=[1]", "--fire", "only=hello")
    assert said.out.splitlines()[:2] == ["got [1]", "got hello"]


def test_render_prints_mermaid(folder):
    """To stdout, or into a file."""
    said = typed("graph", "render", "camera.yaml")
    assert said.lines[0] == "flowchart LR"
    assert typed("graph", "render", "camera.yaml", "-o", "c.mmd").lines == ["c.mmd is written"]
    assert (folder / "c.mmd").read_text() == said.out
    assert typed("graph", "render", "camera.yaml", "--json").json == {
        "format": "mermaid",
        "text": said.out,
    }


def test_render_svg_with_a_renderer(folder, monkeypatch):
    """Whatever is called mmdc draws it; what it complains of is told."""
    renderer = folder / "mmdc"
    renderer.write_text('#!/bin/sh\nprintf "<svg>$(/usr/bin/head -1 "$2")</svg>" > "$4"\n')
    renderer.chmod(renderer.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    said = typed("graph", "render", "camera.yaml", "--format", "svg")
    assert said.out == "<svg>flowchart LR</svg>"
    renderer.write_text("#!/bin/sh\necho no browser >&2\nexit 1\n")
    typed("graph", "render", "camera.yaml", "--format", "svg").complains(2, "no browser")


LOOP = """\
graph: loop
components:
  a: {run: "camera_parts:again", inputs: [into], outputs: [out]}
edges:
  - {from: a.out, to: a.into, kind: async}
"""


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        (("--max-epochs", "20"), "graph 'loop' is not idle after 20 epochs"),
        (("--timeout", "100ms", "--max-epochs", "1000000"), "graph 'loop' is not idle after 0.1 s"),
    ],
)
def test_a_loop_without_end(folder, limits, says):
    """Exit code 1, with the counters."""
    (folder / "loop.yaml").write_text(LOOP)
    (folder / "camera_parts.py").write_text("def again(context): context.publish('out', 1)")
    said = typed("graph", "run", "loop.yaml", "--fire", "a", *limits)
    assert said.code == 1
    assert said.err.startswith(f"layby: {says}")
    assert "runtime.epoch_count" in said.out


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("context.publish('nosuch', 1)", "GraphError: component 'sensor' has no output 'nosuch'"),
        ("raise TimeoutError('my own')", "TimeoutError: my own"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_whatever_a_component_raises_is_shown_as_its_own(folder, function, says):
    """Its traceback, the counters and exit code 1."""
    (folder / "camera_parts.py").write_text(f"{PARTS}\ndef sensor(context): {function}")
    said = typed("graph", "run", "camera.yaml", "--timeout", "60s")
    assert said.code == 1
    assert "Traceback" in said.err
    assert said.err.splitlines()[-1].startswith(f"layby: {says}")
    assert "runtime.epoch_count" in said.out


def test_an_async_component_that_does_not_end_in_time(folder):
    """It is cancelled."""
    (folder / "camera_parts.py").write_text(
        f"import asyncio\n{PARTS}\nasync def sensor(context): await asyncio.sleep(60)"
    )
    for epochs in ((), ("--epochs", "2")):
        said = typed("graph", "run", "camera.yaml", "--timeout", "100ms", *epochs)
        assert said.code == 1
        assert said.err.endswith("what is left: something to do for sensor\n")


def test_so_many_epochs_mean_the_same_with_threads():
    """Between two of them all work is done."""
    said = typed("graph", "run", "camera.yaml", "--epochs", "3", "--threads", "2")
    assert said.lines[0] == "joined 42"


def test_everything_that_is_fired_runs():
    """However much that is."""
    said = typed("graph", "run", "graphs.py:lonely", *["--fire", "only=1"] * 1_100)
    assert said.out.count("got 1\n") == 1_100


def test_a_module_that_ends_the_process(folder):
    """Is code that cannot be loaded."""
    (folder / "graphs.py").write_text("raise SystemExit(3)")
    said = typed("graph", "plan", "graphs.py")
    assert said.code == 2
    assert "graphs.py cannot be loaded" in said.err
    assert "SystemExit: 3" in said.err


def test_a_picture_that_cannot_be_written():
    """One line."""
    typed("graph", "render", "camera.yaml", "-o", "nosuch/x").complains(
        2, "nosuch/x cannot be written", "No such file"
    )
