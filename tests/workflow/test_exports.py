import layby.workflow

EXPORTS = {
    "Conflict",
    "Context",
    "Progress",
    "RetryPolicy",
    "RunStatus",
    "Span",
    "TaskDefinition",
    "TaskExecution",
    "Try",
    "WaitingOn",
    "Workflow",
    "task",
}


def test_what_users_write_can_be_imported_from_the_package():
    assert set(layby.workflow.__all__) == EXPORTS
    assert all(hasattr(layby.workflow, name) for name in EXPORTS)
