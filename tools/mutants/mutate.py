"""Small faults in a module's source, one at a time: what a tired programmer might have written.

What is changed
---------------
========== =========================================================================================
compare    ``<`` becomes ``<=`` and ``>=``, ``<=`` becomes ``<`` and ``>``, and so on; ``==``, ``is`` and
           ``in`` become their opposites
arithmetic ``+`` becomes ``-``, ``*`` becomes ``//``, ``%`` becomes ``//``, ``<<`` becomes ``>>``, ``&``
           becomes ``|``, and the other way round; a minus sign is dropped
number     an integer gets one more, and one less
boolean    ``True`` and ``False`` are exchanged
logic      ``and`` and ``or`` are exchanged, each operand is left out, ``not`` is dropped
condition  a condition that isn't one of the above is negated
return     ``return x`` returns None
delete     a call made for its effect, a ``raise``, a ``del``, an assignment to an attribute or an item, or
           to a name that has a value already, is left out
loop       ``break`` and ``continue`` are exchanged
text       a string or bytes constant without blanks (a key of JSON, a rule's id, a format of ``struct``)
           gets a letter more
suppress   ``with suppress(Error)`` suppresses nothing
========== =========================================================================================

What isn't
----------
Docstrings, annotations, ``Literal``, decorators, imports, ``__all__``, assertions (they tell type checkers what
is known), f-strings and strings with blanks (texts for people), and what is handed to an error or to a function that
raises or makes one (`REPORTERS`), but for the rule's id: a wrong word in a message is a fault that no test should
nail down.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

REPORTERS = {
    "_broken",
    "_conflict",
    "_damaged",
    "_fail",
    "_gone",
    "_settling",
    "_unknown",
    "manifest_place",
    "segment_place",
}
"""Functions whose arguments are texts of errors; further, whatever is called Error."""

_COMPARE: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
}
_NOT_MUTATED = (ast.Import, ast.ImportFrom, ast.Assert, ast.JoinedStr, ast.Global, ast.Nonlocal)

Change = Callable[[], ast.AST]
"""Makes the node that takes the place of another."""


@dataclass(frozen=True)
class Mutant:
    """One change of one module."""

    path: str
    """The module, relative to the checkout."""
    function: str
    """The qualified name of the outermost function around it; empty outside functions."""
    first_line: int
    """Where that function's code starts, decorators included."""
    lines: tuple[int, int]
    """The first and last line of the statement, or of a compound statement's head."""
    operator: str
    before: str
    after: str
    names: tuple[str, ...]
    """Outside functions: the names that the statement gives a value to."""
    site: int
    variant: int
    key: str
    """Names the mutant from run to run, until its function's source changes."""

    def describe(self) -> str:
        """The mutant in a line."""
        return f"{self.path}:{self.lines[0]} {self.operator}: {self.before} -> {self.after}"


@dataclass(frozen=True)
class _Scope:
    function: str = ""
    qualname: str = ""
    first_line: int = 0
    lines: tuple[int, int] = (0, 0)
    names: tuple[str, ...] = ()


@dataclass
class _Site:
    node: ast.AST
    parent: ast.AST
    field: str
    index: int | None
    scope: _Scope

    def put(self, node: ast.AST) -> None:
        ast.copy_location(node, self.node)
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node
        ast.fix_missing_locations(self.parent)


def mutants_of(path: str, source: str) -> list[Mutant]:
    """All mutants of a module, in the order of its source."""
    tree = ast.parse(source)
    lines = source.splitlines()
    found: list[Mutant] = []
    counts: dict[str, int] = {}
    ends = {node.lineno: node.end_lineno for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for number, site in enumerate(_sites(tree)):
        scope = site.scope
        where = scope.function or ", ".join(scope.names)
        first, last = scope.lines
        body = lines[first - 1 : last]
        if scope.function:
            start = next(n for n in sorted(ends) if n >= scope.first_line)
            body = lines[scope.first_line - 1 : ends[start]]
        content = hashlib.sha256("\n".join(body).encode()).hexdigest()[:8]
        for variant, (operator, change) in enumerate(_changes(site)):
            before, after = _text(site.node), _text(change())
            name = f"{path}:{where}:{content}:{operator}:{before} -> {after}"
            counts[name] = counts.get(name, 0) + 1
            found.append(
                Mutant(
                    path,
                    scope.function,
                    scope.first_line,
                    scope.lines,
                    operator,
                    before,
                    after,
                    scope.names,
                    number,
                    variant,
                    f"{name}:{counts[name]}",
                )
            )
    return found


def mutated(source: str, mutant: Mutant) -> ast.Module:
    """The module with the change."""
    tree = ast.parse(source)
    site = next(site for number, site in enumerate(_sites(tree)) if number == mutant.site)
    site.put(list(_changes(site))[mutant.variant][1]())
    return tree


def read_mutants(root: Path, paths: list[str]) -> list[Mutant]:
    """The mutants of some modules."""
    return [m for path in paths for m in mutants_of(path, (root / path).read_text("utf-8"))]


def _text(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 100 else text[:97] + "..."


# --- where something may be changed ---------------------------------------------------------------------------


def _sites(tree: ast.Module) -> Iterator[_Site]:
    yield from _block(tree, "body", _Scope())


def _block(parent: ast.AST, field: str, scope: _Scope) -> Iterator[_Site]:
    for index, statement in enumerate(getattr(parent, field)):
        if index == 0 and _is_docstring(parent, statement):
            continue
        yield from _statement(parent, field, index, statement, scope)


def _statement(parent: ast.AST, field: str, index: int, node: ast.stmt, scope: _Scope) -> Iterator[_Site]:
    if isinstance(node, _NOT_MUTATED) or _is_text(node):
        return
    names = _assigned(node) or scope.names
    if isinstance(node, ast.ClassDef):
        names = (node.name,)
    if names == ("__all__",):
        return
    here = scope
    here = _Scope(scope.function, scope.qualname, scope.first_line, _head_lines(node), names)
    yield _Site(node, parent, field, index, here)
    if isinstance(node, ast.FunctionDef):
        yield from _function(node, _Scope(scope.function, scope.qualname, scope.first_line, here.lines, (node.name,)))
    elif isinstance(node, ast.ClassDef):
        inner = _Scope(scope.function, f"{scope.qualname}{node.name}.", scope.first_line, here.lines, names)
        yield from _block(node, "body", inner)
    else:
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "decorator_list", "type_comment"):
                continue
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                yield from _block(node, name, here)
            elif isinstance(value, list) and value and isinstance(value[0], ast.excepthandler | ast.match_case):
                for inside in value:
                    yield from _block(inside, "body", here)
            else:
                yield from _field(node, name, value, here)


def _function(node: ast.FunctionDef, scope: _Scope) -> Iterator[_Site]:
    yield from _field(node.args, "defaults", node.args.defaults, scope)
    yield from _field(node.args, "kw_defaults", node.args.kw_defaults, scope)
    inner = scope
    if not scope.function:
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        inner = _Scope(scope.qualname + node.name, "", first, scope.lines, ())
    yield from _block(node, "body", inner)


def _field(parent: ast.AST, field: str, value: object, scope: _Scope) -> Iterator[_Site]:
    if isinstance(value, ast.AST):
        yield from _expression(parent, field, None, value, scope)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            if isinstance(item, ast.AST):
                yield from _expression(parent, field, index, item, scope)


def _expression(parent: ast.AST, field: str, index: int | None, node: ast.AST, scope: _Scope) -> Iterator[_Site]:
    if isinstance(node, _NOT_MUTATED):
        return
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Literal":
        return
    yield _Site(node, parent, field, index, scope)
    if isinstance(node, ast.Call) and _reports(node):
        if node.args and isinstance(node.args[0], ast.Constant):
            yield _Site(node.args[0], node, "args", 0, scope)
        return
    for name, value in ast.iter_fields(node):
        yield from _field(node, name, value, scope)


def _reports(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name in REPORTERS or name.endswith("Error")


def _is_docstring(parent: ast.AST, node: ast.stmt) -> bool:
    return isinstance(parent, ast.Module | ast.ClassDef | ast.FunctionDef) and _is_text(node)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _assigned(node: ast.stmt) -> tuple[str, ...]:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign | ast.AugAssign):
        targets = [node.target]
    return tuple(n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name))


def _head_lines(node: ast.stmt) -> tuple[int, int]:
    body = getattr(node, "body", None)
    last = body[0].lineno - 1 if isinstance(body, list) and body else node.end_lineno
    return node.lineno, max(node.lineno, last or node.lineno)


# --- what may be changed there --------------------------------------------------------------------------------


def _changes(site: _Site) -> Iterator[tuple[str, Change]]:
    node = site.node
    if isinstance(node, ast.Compare):
        yield from _compare_changes(node)
    elif isinstance(node, ast.BinOp):
        if (operator := _ARITHMETIC.get(type(node.op))) is not None:
            yield "arithmetic", lambda: ast.BinOp(node.left, operator(), node.right)
    elif isinstance(node, ast.AugAssign):
        if (operator := _ARITHMETIC.get(type(node.op))) is not None:
            yield "arithmetic", lambda: ast.AugAssign(node.target, operator(), node.value)
        yield "delete", lambda: _never(node)
    elif isinstance(node, ast.UnaryOp):
        if isinstance(node.op, ast.Not):
            yield "logic", lambda: node.operand
        elif isinstance(node.op, ast.USub | ast.Invert):
            yield "arithmetic", lambda: node.operand
    elif isinstance(node, ast.BoolOp):
        yield from _logic_changes(node)
    elif isinstance(node, ast.Constant):
        yield from _constant_changes(node.value)
    elif isinstance(node, ast.Return):
        if node.value is not None and not isinstance(node.value, ast.Constant):
            yield "return", lambda: ast.Return(ast.Constant(None))
    elif isinstance(node, ast.Break):
        yield "loop", ast.Continue
    elif isinstance(node, ast.Continue):
        yield "loop", ast.Break
    elif isinstance(node, ast.stmt) and _deletable(node, site):
        yield "delete", lambda: _never(node)
    elif isinstance(node, ast.withitem) and _is_suppress(node.context_expr):
        yield "suppress", lambda: ast.withitem(ast.parse("suppress()", mode="eval").body)
    if _is_condition(site):
        assert isinstance(node, ast.expr)
        yield "condition", lambda: ast.UnaryOp(ast.Not(), node)


def _compare_changes(node: ast.Compare) -> Iterator[tuple[str, Change]]:
    for number, operator in enumerate(node.ops):
        for other in _COMPARE[type(operator)]:
            ops = [*node.ops[:number], other(), *node.ops[number + 1 :]]
            yield "compare", lambda ops=ops: ast.Compare(node.left, ops, node.comparators)  # type: ignore[misc]


def _logic_changes(node: ast.BoolOp) -> Iterator[tuple[str, Change]]:
    other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    yield "logic", lambda: ast.BoolOp(other, node.values)
    for number in range(len(node.values)):
        rest = node.values[:number] + node.values[number + 1 :]
        yield (
            "logic",
            lambda rest=rest: rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest),  # type: ignore[misc]
        )


def _constant_changes(value: object) -> Iterator[tuple[str, Change]]:
    if isinstance(value, bool):
        yield "boolean", lambda: ast.Constant(not value)
    elif isinstance(value, int):
        yield "number", lambda: ast.Constant(value + 1)
        yield "number", lambda: ast.Constant(value - 1)
    elif isinstance(value, str):
        if not any(c.isspace() for c in value):
            yield "text", lambda: ast.Constant(value + "X")
    elif isinstance(value, bytes):
        yield "text", lambda: ast.Constant(value + b"X")


def _never(node: ast.stmt) -> ast.stmt:
    """The statement where it isn't reached: its names stay what they are to the compiler."""
    return ast.If(ast.Constant(False), [node], [])


def _deletable(node: ast.stmt, site: _Site) -> bool:
    if isinstance(node, ast.Raise | ast.Delete):
        return True
    if isinstance(node, ast.Expr):
        return not isinstance(node.value, ast.Yield | ast.YieldFrom)
    if isinstance(node, ast.Assign) and site.scope.function:
        target = node.targets[0]
        return isinstance(target, ast.Attribute | ast.Subscript) or _has_a_value(node, site)
    return False


def _has_a_value(node: ast.Assign, site: _Site) -> bool:
    """Whether the name is assigned to in the same block before, so that leaving this out isn't an error by itself."""
    names = set(_assigned(node))
    earlier = getattr(site.parent, site.field)[: site.index]
    return any(names & set(_assigned(statement)) for statement in earlier)


def _is_suppress(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "suppress"


def _is_condition(site: _Site) -> bool:
    node, parent = site.node, site.parent
    if isinstance(node, ast.BoolOp | ast.Constant) or not isinstance(node, ast.expr):
        return False
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return False
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq | ast.Is | ast.In):
        return False
    if isinstance(node, ast.Compare):
        return False
    return (isinstance(parent, ast.If | ast.While | ast.IfExp) and site.field == "test") or (
        isinstance(parent, ast.comprehension) and site.field == "ifs"
    )
