"""Owns what a graph raises; refusals while it runs are values, not exceptions."""


class GraphError(ValueError):
    """An invalid graph, or an invalid call on one: the message says what, and what to do."""


class GraphFormError(GraphError):
    """A graph file that cannot be read; `problems` has one line for each thing that is wrong."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
