"""Owns the YAML form of a graph: strict, and every complaint names its line.

    graph: camera
    components:
      sensor: {run: "camera:sensor", outputs: [frame], trigger: manual}
      detect: {run: "camera:detect", inputs: [frame], trigger: {kind: batch, batch_size: 3}}
    edges:
      - {from: sensor.frame, to: detect.frame, kind: async, capacity: 8}

`run` names the function, as `module:function`. Whatever Python says of a component or an edge is
said here too, with the line of the component or edge.
"""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from layby.graph.builder import Graph, new_edge
from layby.graph.checks import order_and_problems
from layby.graph.endpoints import hint, shown
from layby.graph.graph_errors import GraphError, GraphFormError
from layby.graph.policy import POLICY_FIELDS
from layby.graph.trigger import TRIGGER_FIELDS, GraphTrigger, as_trigger

Node = Any
"""A node of PyYAML, whose types say little."""

FIELDS: Final = ("graph", "components", "edges")
COMPONENT_FIELDS: Final = ("run", "inputs", "outputs", "trigger", "error_port")
EDGE_FIELDS: Final = ("from", "to", "id", *POLICY_FIELDS)
MOST_EXPANDED: Final = 10_000
"""Values that aliases may stand for, beyond those that are written."""


def load_graph(path: str | Path, *, resolve: bool = True) -> Graph:
    """The graph of a YAML file. Without `resolve`, functions are not imported: only to look at."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise GraphError(f"{path} cannot be read: {error}") from None
    return graph_from_text(text, str(path), resolve=resolve)


def graph_from_text(text: str, name: str = "<text>", *, resolve: bool = True) -> Graph:
    yaml = _yaml(name)
    reader = _Reader(name, resolve=resolve)
    try:
        graph = reader.graph(_root(yaml, text, name))
    except yaml.MarkedYAMLError as error:
        line = 1 if error.problem_mark is None else error.problem_mark.line + 1
        told = ", ".join(each for each in (error.problem, error.context) if each)
        raise GraphFormError([f"{name}:{line}: invalid or unsupported YAML: {told}"]) from None
    except yaml.YAMLError as error:
        raise GraphFormError([f"{name}: this is not YAML: {error}"]) from None
    if reader.problems:
        raise GraphFormError(reader.problems)
    assert graph is not None
    return graph


def _root(yaml: Any, text: str, name: str) -> Node:
    loader = yaml.SafeLoader(text)
    try:
        return loader.get_single_node()
    except RecursionError:
        told = f"{name}:{loader.line + 1}: this is nested too deep to be a graph"
        raise GraphFormError([told]) from None
    finally:
        loader.dispose()


def _yaml(name: str) -> Any:
    try:
        import yaml  # noqa: PLC0415 - an extra; the rest of a graph works without it
    except ImportError:
        raise GraphError(
            f"{name}: reading a graph from YAML needs PyYAML: pip install 'layby[graph]'"
        ) from None
    return yaml


class _Reader:
    """Goes on after a problem, so that one look shows all of them."""

    def __init__(self, name: str, *, resolve: bool) -> None:
        self.problems: list[str] = []
        self._name = name
        self._resolve = resolve
        self._broken: set[str] = set()
        """Components with a problem; that edges do not find their ports may follow from it."""

    def graph(self, root: Node) -> Graph | None:
        if root is None:
            self.problems.append(f"{self._name}:1: this is empty: begin with graph: NAME")
            return None
        if not self._can_be_read(root):
            return None
        fields = self._fields(root, "the graph", FIELDS, required=("graph", "components"))
        if "graph" not in fields:
            return None
        try:
            graph = Graph(_value(fields["graph"]))
        except GraphError as error:
            self._complain(fields["graph"], str(error))
            return None
        if "components" in fields:
            for key, node in self._pairs(fields["components"], "components"):
                self._component(graph, key, node)
        if "edges" in fields:
            for node in self._items(fields["edges"]):
                self._edge(graph, node)
        if not self.problems:
            for problem in order_and_problems(graph.components, graph.edges)[1]:
                self._complain(fields["graph"], f"graph '{graph.name}': {problem}")
        return graph

    def _can_be_read(self, root: Node) -> bool:
        """Every value by itself, and no more of them than somebody has written."""
        nodes, too_many = _all_nodes(root)
        if too_many is not None:
            self._complain(too_many, f"its aliases stand for more than {MOST_EXPANDED} values")
        for node in nodes:
            if node.id == "scalar" and (problem := _not_read(node)):
                self._complain(node, problem)
        return not self.problems

    def _component(self, graph: Graph, key: Node, node: Node) -> None:
        name = _key(key)
        before = len(self.problems)
        required = ("run",) if self._resolve else ()
        fields = self._fields(node, f"component '{name}'", COMPONENT_FIELDS, required)
        given = {field: _value(each) for field, each in fields.items()}
        try:
            trigger = self._trigger(name, fields["trigger"]) if "trigger" in fields else None
            function = self._function(fields["run"]) if "run" in fields else None
            graph.add_component(
                name,
                function,
                inputs=_or_none_given(given.get("inputs")),
                outputs=_or_none_given(given.get("outputs")),
                trigger=trigger or "any_input",
                error_port=given.get("error_port"),
            )
        except GraphError as error:
            # A field that was not understood is a better complaint than what follows from it.
            if len(self.problems) == before:
                self._complain(key, str(error))
        if len(self.problems) > before:
            self._broken.add(name)

    def _trigger(self, component: str, node: Node) -> GraphTrigger | None:
        what = f"the trigger of component '{component}'"
        try:
            if node.id != "mapping":
                return as_trigger(_value(node))
            fields = self._fields(node, what, TRIGGER_FIELDS, required=("kind",))
            return GraphTrigger(**{field: _value(each) for field, each in fields.items()})
        except GraphError as error:
            self._complain(node, f"component '{component}': {error}")
            return None

    def _function(self, node: Node) -> Any:
        target = _value(node)
        module_name, colon, function_name = (
            target.partition(":") if isinstance(target, str) else ("", "", "")
        )
        if not (colon and module_name and function_name):
            self._complain(node, f"run: {shown(target)} is not a function: write module:function")
            return None
        return self._imported(node, module_name, function_name) if self._resolve else None

    def _imported(self, node: Node, module_name: str, function_name: str) -> Any:
        try:
            module = importlib.import_module(module_name)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it raises, it is not there
            self._complain(
                node, f"run: {module_name} cannot be imported: {type(error).__name__}: {error}"
            )
            return None
        found = getattr(module, function_name, None)
        if callable(found):
            return found
        there = [name for name, each in vars(module).items() if name[0] != "_" and callable(each)]
        near = hint(function_name, there)
        self._complain(node, f"run: {module_name} has no function '{function_name}'{near}")
        return None

    def _edge(self, graph: Graph, node: Node) -> None:
        before = len(self.problems)
        fields = self._fields(node, "an edge", EDGE_FIELDS, required=("from", "to"))
        if len(self.problems) > before:
            return
        given = {field: _value(each) for field, each in fields.items()}
        source, target = given.pop("from"), given.pop("to")
        ends = {end.partition(".")[0] for end in (source, target) if isinstance(end, str)}
        try:
            if self._broken.isdisjoint(ends):
                graph.connect(source, target, **given)
            else:
                new_edge(source, target, None, given.pop("id", None), given)
        except GraphError as error:
            self._complain(node, str(error))

    # -- reading nodes

    def _fields(
        self, node: Node, what: str, known: tuple[str, ...], required: tuple[str, ...] = ()
    ) -> dict[str, Node]:
        found: dict[str, Node] = {}
        before = len(self.problems)
        for key, value in self._pairs(node, what):
            field = _key(key)
            if field in known:
                found[field] = value
            else:
                self._complain(
                    key, f"{what} has an unknown field {shown(field)}{hint(field, known)}"
                )
        if len(self.problems) == before:
            for field in required:
                if field not in found:
                    self._complain(node, f"{what} needs the field '{field}'")
        return found

    def _pairs(self, node: Node, what: str) -> Iterator[tuple[Node, Node]]:
        if node.id != "mapping":
            self._complain(node, f"{what} must be fields and their values, not {_kind(node)}")
            return
        seen: set[str] = set()
        for key, value in node.value:
            name = _key(key)
            if name in seen:
                self._complain(key, f"{what} has {shown(name)} twice: keep one")
                continue
            seen.add(name)
            yield key, value

    def _items(self, node: Node) -> list[Node]:
        if node.id == "sequence":
            return node.value
        self._complain(node, f"edges must be a list, not {_kind(node)}")
        return []

    def _complain(self, node: Node, problem: str) -> None:
        mark = node.start_mark
        line = 1 if mark is None else mark.line + 1
        self.problems.append(f"{self._name}:{line}: {problem}")


def _value(node: Node) -> Any:
    """What YAML makes of it, with its own plain types only."""
    return _yaml("").SafeLoader("").construct_object(node, deep=True)


def _key(node: Node) -> str:
    """As it is written: `on` is a name here, though YAML takes it for a truth value."""
    return node.value if node.id == "scalar" else _kind(node)


def _or_none_given(names: Any) -> Any:
    return () if names is None else names


def _not_read(node: Node) -> str:
    """Why YAML cannot make a value of it, though it looks like one."""
    try:
        _value(node)
    except (ValueError, OverflowError) as error:
        kind = node.tag.rpartition(":")[2]
        return f"{shown(node.value)} is not a {kind}, as it looks like one: {shown(str(error))}"
    return ""


def _all_nodes(root: Node) -> tuple[list[Node], Node | None]:
    """Each node once; and the one at which what aliases stand for becomes too much, if any does."""
    nodes: dict[int, Node] = {}
    sizes: dict[int, int] = {}
    to_see = [(root, False)]
    while to_see:
        node, is_counted = to_see.pop()
        if is_counted:
            sizes[id(node)] = 1 + sum(sizes.get(id(each), 1) for each in _children(node))
            if sizes[id(node)] - len(nodes) > MOST_EXPANDED:
                return list(nodes.values()), node
        elif id(node) not in nodes:
            nodes[id(node)] = node
            to_see.append((node, True))
            to_see += [(each, False) for each in _children(node)]
    return list(nodes.values()), None


def _children(node: Node) -> list[Node]:
    if node.id == "scalar":
        return []
    return [each for pair in node.value for each in (pair if node.id == "mapping" else (pair,))]


def _kind(node: Node) -> str:
    return shown(node.value) if node.id == "scalar" else f"a {node.id}"
