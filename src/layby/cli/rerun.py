"""`layby rerun`: a new life for a run that has ended."""

import click

from layby.cli import showing
from layby.cli.connection import Place, ask, now_at
from layby.cli.expected_replies import expect, found, run_rows, unknown
from layby.cli.options import DURATION, as_json, reaching
from layby.client.interface import Client
from layby.clock import SystemClock
from layby.core.model import NEVER
from layby.core.replies import RunData
from layby.errors import NotFound
from layby.runner.flow_directory import FlowDirectory
from layby.workflow import plan
from layby.workflow.next_life import Checkpoints, NextLife, next_life, rows_of_life
from layby.workflow.short_ids import quoted


@click.command(
    epilog="""\b
Examples:
  layby rerun order-7                  everything unsuccessful
  layby rerun order-7 --from charge    also this task and everything after it
  layby rerun order-7 --forget-checkpoints --deadline 2h"""
)
@click.argument("asked", metavar="RUN")
@click.option(
    "--from",
    "from_",
    multiple=True,
    metavar="TASK",
    help="Run this task too, and all after it; repeatable.",
)
@click.option(
    "--forget-checkpoints", is_flag=True, help="Tasks that run again repeat their checkpoints."
)
@click.option("--deadline", type=DURATION, help="How long it may take.  [default: no limit]")
@reaching
@as_json
def rerun(
    place: Place,
    asked: str,
    from_: tuple[str, ...],
    deadline: int | None,
    *,
    forget_checkpoints: bool,
    as_json: bool,
) -> None:
    """Run again everything that was unsuccessful in RUN, which must have ended.

    What was successful keeps its result. The run gets a new life; `layby tree` shows all of them.
    """
    checkpoints: Checkpoints = "forget" if forget_checkpoints else "keep"
    timeout, now = NEVER if deadline is None else deadline, now_at(place)

    async def work(client: Client) -> tuple[str, NextLife]:
        promise_id = (await found(client, asked)).id
        if (node := plan.parse_node_id(promise_id)) is not None:
            task_id, _, below = node.task_id.partition(".")
            what = "a promise of a task" if below else "a task"
            begin = f"layby rerun {quoted(node.run_id)} --from {quoted(task_id)}"
            raise NotFound(f"'{asked}' is {what}, and only runs are run again: {begin}")
        run_id = plan.parse_root_id(promise_id)
        if run_id is None:
            raise await unknown(client, asked, "run")
        latest = rows_of_life(run_id, await run_rows(client, plan.root_id(run_id)))
        planned = next_life(latest, from_, checkpoints, timeout, now)
        expect(await client.send(planned.command), RunData, f"run '{run_id}'")
        directory = FlowDirectory(
            client.send, place.shown, latest.group or "default", SystemClock().elapsed
        )
        await directory.warn_if_nobody_works(latest.param.flow)
        return run_id, planned

    run_id, planned = ask(place, work)
    if as_json:
        showing.print_json(
            {
                "run": run_id,
                "life": planned.command.life,
                "again": planned.again,
                "kept": planned.kept,
            }
        )
    else:
        showing.print_line(_told(run_id, planned))
        if hint := _undone(run_id, planned):
            showing.tell_aside(hint)


def _told(run_id: str, planned: NextLife) -> str:
    again = ", ".join(planned.again) or "no task"
    verb = "run" if len(planned.again) > 1 else "runs"
    kept = f"; {', '.join(planned.kept)} kept" if planned.kept else ""
    return f"{run_id}: life {planned.command.life} has begun: {again} {verb} again{kept}"


def _undone(run_id: str, planned: NextLife) -> str:
    """What is kept may have been given back by a clean-up: only its author knows."""
    kept = [each for each in planned.kept if each not in planned.cleaned]
    if not planned.cleaned or not kept:
        return ""
    before = planned.command.life - 1
    return (
        f"{', '.join(planned.cleaned)} cleaned up after life {before}: if that undid what "
        f"{', '.join(kept)} did, cancel this life and name that task: "
        f"layby rerun {quoted(run_id)} --from {quoted(kept[0])}"
    )
