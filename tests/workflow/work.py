"""Tasks that another process can find by name."""

from layby.workflow.task import task


@task(process=True)
def count(context):
    context["count"] = 1
