"""Deterministic runs are equal to the byte, whatever the hash seed of the process is."""

import subprocess
import sys

from layby.graph import Graph

SCRIPT = """
import json
from layby.executors import DeterministicTaskExecutor, TaskExecutorConfig
from layby.graph import Graph, GraphTrigger

graph = Graph("repeatable")

@graph.component(outputs=["a", "b"], trigger="manual")
def source(context):
    for number in range(context.payload):
        context.publish("a", {"set": sorted({str(number), "x"}), "number": number})
        context.publish("b", number)

@graph.component(inputs=["x"], outputs=["out"], error_port="failed")
def work(context):
    number = context.input("x")
    context.submit_task("out", lambda: 10 // (number - 3))

@graph.component(inputs=["left", "right"], outputs=["back"], trigger="all_inputs")
def join(context):
    context.publish("back", [m.payload for m in context.messages()])

@graph.component(inputs=["any"], trigger=GraphTrigger("batch", batch_size=2))
def sink(context):
    print(context.epoch, [repr(m) for m in context.messages()])

graph.connect("source.a", "join.left", kind="async", capacity=3, overflow="drop_oldest")
graph.connect("source.b", "work.x", capacity=8)
graph.connect("work.out", "join.right", kind="async", capacity=4, max_inflight=2, overflow="reject")
graph.connect("work.failed", "sink.any", kind="async", capacity=4)
graph.connect("join.back", "sink.any", kind="async", capacity=4)

executor = DeterministicTaskExecutor(TaskExecutorConfig(max_inflight=4))
runtime = graph.runtime(task_executor=executor, trace_capacity=500)
for number in (3, 6):
    runtime.fire("source", number)
    runtime.run_until_idle()
print(json.dumps(runtime.trace()))
print(json.dumps(runtime.metrics()), json.dumps(runtime.channel_metrics()), graph.mermaid())
"""


def output(seed: int) -> bytes:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={"PYTHONHASHSEED": str(seed)},
        capture_output=True,
        check=True,
    )
    return done.stdout


def test_equal_runs_are_equal_to_the_byte():
    """Payloads, histories, trace, metrics and picture."""
    outputs = {output(seed) for seed in (1, 2, 3)}
    assert len(outputs) == 1
    [said] = outputs
    assert b"task_failed" in said
    assert b"refused" in said
    assert len(said) > 2_000


def chain(trace):
    """Three messages through two components, the last edge keeping only one."""
    seen = []
    graph = Graph("chain")
    graph.add_component("s", lambda c: [c.publish("o", n) for n in range(3)], outputs=["o"],
                        trigger="manual")  # fmt: skip
    graph.add_component("p", lambda c: c.publish("o", c.payload), inputs=["i"], outputs=["o"])
    graph.add_component("d", lambda c: seen.append((c.payload, c.metadata)), inputs=["i"])
    graph.connect("s.o", "p.i", capacity=8)
    graph.connect("p.o", "d.i")
    runtime = graph.runtime(trace_capacity=trace)
    runtime.fire("s")
    runtime.run_until_idle()
    return seen, runtime.metrics()


def test_tracing_changes_nothing():
    """The same messages, histories and counters."""
    assert chain(0) == chain(50)
