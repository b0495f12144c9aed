"""How much code there is: statements, counted in the syntax tree.

Lines would reward dense code and punish comments. Each statement counts one, a `def` or an `if` as
much as a call, and what they hold counts by itself. Docstrings and other bare constants (`...`) do
not count, nor does `pass`.
"""

import ast
from pathlib import Path


def statements_in(folder: Path) -> int:
    return sum(statements_of(path.read_text(encoding="utf-8")) for path in folder.rglob("*.py"))


def statements_of(source: str) -> int:
    nodes = ast.walk(ast.parse(source))
    return sum(isinstance(node, ast.stmt) and not _does_nothing(node) for node in nodes)


def _does_nothing(node: ast.stmt) -> bool:
    match node:
        case ast.Pass() | ast.Expr(value=ast.Constant()):
            return True
        case _:
            return False
