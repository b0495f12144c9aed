"""The YAML form: what it says, and that every complaint names its line."""

import sys
from time import process_time

import pytest

from layby.executors import DeterministicTaskExecutor, TaskExecutorConfig
from layby.graph import Graph, GraphError, GraphFormError, graph_from_text, load_graph

GOOD = """\
graph: camera
components:
  sensor: {run: "camera_parts:sensor", outputs: [frame], trigger: manual}
  detect:
    run: camera_parts:detect
    inputs: [frame]
    outputs: [result]
    error_port: failed
  join:
    run: camera_parts:join
    inputs: [result]
    trigger: {kind: batch, batch_size: 2, batch_window: 60}
edges:
  - {from: sensor.frame, to: detect.frame, capacity: 4}
  - from: detect.result
    to: join.result
    id: results
    kind: async
    max_inflight: 4
    capacity: 8
    overflow: drop_oldest
"""
PARTS = """
seen = []

def sensor(context):
    for frame in (1, 2):
        context.publish("frame", frame)

def detect(context):
    frame = context.input("frame")
    context.submit_task("result", lambda: frame * 10)

def join(context):
    seen.append([message.payload for message in context.messages()])

not_a_function = 3
"""


@pytest.fixture(autouse=True)
def parts(tmp_path, monkeypatch):
    """A module with the functions, which does not stay."""
    (tmp_path / "camera_parts.py").write_text(PARTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    sys.modules.pop("camera_parts", None)


def problems(text: str, **options) -> list[str]:
    with pytest.raises(GraphFormError) as raised:
        graph_from_text(text, "g.yaml", **options)
    assert str(raised.value) == "\n".join(raised.value.problems)
    return raised.value.problems


def test_a_graph_from_yaml_runs(parts):
    """It is the same graph that Python would build."""
    (parts / "camera.yaml").write_text(GOOD)
    graph = load_graph(parts / "camera.yaml")
    runtime = graph.runtime(task_executor=DeterministicTaskExecutor(TaskExecutorConfig(2)))
    runtime.fire("sensor")
    executor = runtime.executors()[0]
    for _ in range(4):
        runtime.run_epoch()
        executor.run_ready()
    assert sys.modules["camera_parts"].seen == [[10, 20]]
    assert graph.components["detect"].outputs == ("result", "failed")
    assert graph.edges[1].id == "results"
    assert graph.edges[1].policy.max_inflight == 4
    assert graph.components["join"].trigger.batch_window == 60


def test_without_resolving_nothing_is_imported():
    """To look at a graph its code need not be there."""
    graph = graph_from_text(GOOD.replace("camera_parts", "not_there"), resolve=False)
    assert graph.plan().order == ["sensor", "join", "detect"]
    with pytest.raises(GraphError, match="has no function"):
        graph.runtime()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("graph: camera", "grahp: camera", "g.yaml:1: the graph has an unknown field 'grahp'; did"),
        ("    inputs: [frame]", "    inptus: [frame]",
         "g.yaml:6: component 'detect' has an unknown field 'inptus'; did you mean 'inputs'?"),
        ("    overflow: drop_oldest", "    overflw: drop_oldest",
         "g.yaml:21: an edge has an unknown field 'overflw'; did you mean 'overflow'?"),
        ("batch_size: 2, ", "batch_sze: 2, ",
         "g.yaml:12: the trigger of component 'join' has an unknown field 'batch_sze'; did you"),
        ("batch_size: 2, ", "", "g.yaml:12: component 'join': trigger 'batch' needs batch_size"),
        ("    error_port: failed", "    error_port: failed\n    run: camera_parts:join",
         "g.yaml:9: component 'detect' has 'run' twice: keep one"),
        ("    run: camera_parts:detect\n", "",
         "g.yaml:5: component 'detect' needs the field 'run'"),
        ("camera_parts:detect", "camera_parts.detect",
         "g.yaml:5: run: 'camera_parts.detect' is not a function: write module:function"),
        ("camera_parts:detect", "camera_prts:detect",
         "g.yaml:5: run: camera_prts cannot be imported: ModuleNotFoundError"),
        ("camera_parts:detect", "camera_parts:detct",
         "g.yaml:5: run: camera_parts has no function 'detct'; did you mean 'detect'?"),
        ("camera_parts:detect", "camera_parts:not_a_function",
         "g.yaml:5: run: camera_parts has no function 'not_a_function'"),
        ("kind: async", "kind: asynch",
         "g.yaml:15: edge detect.result -> join.result: unknown kind 'asynch'"),
        ("capacity: 8", "capacity: many",
         "g.yaml:15: edge detect.result -> join.result: capacity must be a whole number"),
        ("to: detect.frame", "to: detcet.frame",
         "g.yaml:14: edge sensor.frame -> detcet.frame: there is no component 'detcet'; did you"),
        ("    inputs: [frame]", "    inputs: frame",
         "g.yaml:4: component 'detect': inputs must be a list of names, got 'frame'"),
        ("trigger: manual", "trigger: [manual]",
         "g.yaml:3: component 'sensor': ['manual'] is not a trigger"),
        ("graph: camera", "graph: 7", "g.yaml:1: graph name 7 must be a string, not int"),
        ("graph: camera", "graph: camera\ngraph: again", "g.yaml:2: the graph has 'graph' twice"),
        ("edges:\n", "edges: none\nx:\n", "g.yaml:14: the graph has an unknown field 'x'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_line(old, new, says):
    """The first complaint is about what is wrong, not about what follows from it."""
    assert old in GOOD
    found = problems(GOOD.replace(old, new, 1))
    assert found[0].startswith(says), found


def test_all_problems_are_told_together():
    """Nobody wants to fix a file line by line."""
    text = GOOD.replace("overflow", "overflw").replace("error_port", "eror_port")
    assert [each.partition(": ")[0] for each in problems(text)] == ["g.yaml:8", "g.yaml:21"]


def test_edges_of_a_component_that_is_wrong_say_nothing_more():
    """One mistake, one line."""
    found = problems(GOOD.replace("inputs: [result]", "inputs: [7]"))
    assert found == ["g.yaml:9: component 'join': input 7 must be a string, not int"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "g.yaml:1: this is empty: begin with graph: NAME"),
        ("- a\n- b\n", "g.yaml:1: the graph must be fields and their values, not a sequence"),
        ("just text", "g.yaml:1: the graph must be fields and their values, not 'just text'"),
        ("graph: g\n", "g.yaml:1: the graph needs the field 'components'"),
        ("graph: g\ncomponents: {}\n", "g.yaml:1: graph 'g': it has no components"),
        ("graph: g\ncomponents:\n  a: 3\n", "g.yaml:3: component 'a' must be fields and their"),
        ("graph: g\nedges: [a\n", "g.yaml:3: invalid or unsupported YAML"),
        ("graph: \x00", "g.yaml: this is not YAML"),
        ("graph: !!python/object:os.system x\ncomponents: {}", "g.yaml:1: "),
    ],
)
def test_what_is_not_a_graph_at_all(text, says):
    """Not YAML, or YAML of something else."""
    assert problems(text)[0].startswith(says)


def test_a_cycle_is_found_in_yaml_too():
    """What holds for a whole graph holds here."""
    text = """\
graph: loop
components:
  a: {inputs: [x], outputs: [y]}
  b: {inputs: [x], outputs: [y]}
edges:
  - {from: a.y, to: b.x}
  - {from: b.y, to: a.x}
"""
    [found] = problems(text, resolve=False)
    assert found.startswith("g.yaml:1: graph 'loop': immediate edges form a cycle")


def test_a_file_that_is_not_there():
    """Says which."""
    with pytest.raises(GraphError, match=r"nowhere\.yaml cannot be read"):
        load_graph("nowhere.yaml")


def test_without_pyyaml_it_says_what_to_install(monkeypatch):
    """It is an extra; graphs in Python work without it."""
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(GraphError, match=r"pip install 'layby\[graph\]'"):
        graph_from_text(GOOD)
    Graph("g").add_component("a", print, trigger="manual")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("graph: camera", "graph: 2024-13-45", "g.yaml:1: '2024-13-45' is not a timestamp"),
        ("capacity: 8", "capacity: 0b_", "g.yaml:20: '0b_' is not a int"),
        ("capacity: 8", "capacity: !!int abc", "g.yaml:20: 'abc' is not a int"),
        ("capacity: 8", f"capacity: {'9' * 5000}", "g.yaml:20: '999"),
        ("graph: camera", f"graph: {'[' * 3000}", "g.yaml:1: this is nested too deep"),
        ("outputs: [result]", "outputs: {o: 1}",
         "g.yaml:4: component 'detect': outputs must be a list of names, got {'o': 1}"),
        ("outputs: [result]", "outputs: false",
         "g.yaml:4: component 'detect': outputs must be a list of names, got False"),
        ("outputs: [result]", "outputs: 0", "g.yaml:4: component 'detect': outputs must be a list"),
        ("outputs: [result]", "outputs: [on]",
         "g.yaml:4: component 'detect': output True must be a string, not bool: in YAML put on,"),
        ("capacity: 8", "health_events: maybe",
         "g.yaml:15: edge detect.result -> join.result: health_events must be true or false, got"),
        ("run: camera_parts:detect", "run: camera_parts:seen",
         "g.yaml:5: run: camera_parts has no function 'seen'; did you mean 'sensor'?"),
    ],
)  # fmt: skip
def test_values_that_cannot_be_are_named_with_their_line(old, new, says):
    """Never a traceback, and never the whole of a very long value."""
    [found, *_] = problems(GOOD.replace(old, new, 1))
    assert found.startswith(says), found
    assert len(found) < 400


def test_a_module_that_ends_the_process_cannot_be_imported(parts):
    """It ends with a line of ours instead."""
    (parts / "camera_parts.py").write_text("raise SystemExit(7)")
    assert problems(GOOD)[0] == "g.yaml:3: run: camera_parts cannot be imported: SystemExit: 7"


def test_aliases_that_stand_for_very_much():
    """A few lines that mean a thousand million values are refused before they are made."""
    lines = ["graph: g", "a: &a [x, x, x, x, x, x, x, x, x, x]"]
    for before, name in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]")
    [found] = problems("\n".join([*lines, "components: *i"]))
    assert "its aliases stand for more than 10000 values" in found


def test_aliases_may_be_used():
    """In measure."""
    text = GOOD.replace("inputs: [frame]", "inputs: &ports [frame]", 1)
    text = text.replace("sensor: {", "sensor: {", 1)
    assert graph_from_text(text.replace("trigger: {kind", "error_port: &p bad\n    trigger: {kind"))


def test_a_component_may_be_called_on():
    """YAML takes the word for a truth value; as a key it is a name."""
    text = "graph: g\ncomponents:\n  on: {trigger: manual}\n"
    assert list(graph_from_text(text, resolve=False).components) == ["on"]


def test_a_port_that_is_missing_because_of_a_mistake_is_not_told_again():
    """What else is wrong with its edges is."""
    text = GOOD.replace("error_port", "eror_port").replace("drop_oldest", "drop_odest")
    text += "  - {from: detect.failed, to: join.result}\n"
    first, second = problems(text)
    assert first == (
        "g.yaml:8: component 'detect' has an unknown field 'eror_port'; did you mean 'error_port'?"
    )
    assert second == (
        "g.yaml:15: edge detect.result -> join.result: unknown overflow 'drop_odest'; did you mean "
        "'drop_oldest'?"
    )


def test_a_thousand_mistakes_are_told_in_proportion():
    """Each is compared with some names, not with all."""
    names = [f"  c{number}: {{inputs: [i], outputs: [o]}}" for number in range(1_000)]
    edges = [f"  - {{from: c{number}.o, to: d{number}.i}}" for number in range(1_000)]
    text = "\n".join(["graph: g", "components:", *names, "edges:", *edges])
    began = process_time()
    assert len(problems(text, resolve=False)) == 1_000
    assert process_time() - began < 4
