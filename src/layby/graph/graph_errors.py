"""Owns what a graph raises; refusals while it runs are values, not exceptions."""


class GraphError(ValueError):
    """A graph, or a call to it, that cannot be: the message names what, and what to do."""


class GraphFormError(GraphError):
    """A graph file that cannot be read; `problems` has one line for each thing that is wrong."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
