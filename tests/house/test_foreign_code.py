"""Code of a model's folder never runs: (1) every `from_pretrained` of the package and the benchmarks passes
`trust_remote_code=False`, so that transformers neither runs the code nor asks on the terminal; (2) the rule can fail.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.house.source_text import package_files, python_files, shown, tree


def careless(code: ast.AST) -> Iterator[int]:
    """The lines that load something without saying that its code is not trusted."""
    for node in ast.walk(code):
        if isinstance(node, ast.Call) and name_of(node) == "from_pretrained":
            said = {word.arg: word.value for word in node.keywords}.get("trust_remote_code")
            if not (isinstance(said, ast.Constant) and said.value is False):
                yield node.lineno


def name_of(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def test_1_nothing_is_trusted() -> None:
    files = (*package_files(), *python_files("benchmarks"))
    found = [f"{shown(path)}:{line}" for path in files for line in careless(tree(path))]
    assert not found
    loading = [path for path in files if "from_pretrained(" in path.read_text(encoding="utf-8")]
    assert len(loading) >= 8  # the rule looks at something


def test_2_the_rule_can_fail() -> None:
    lines = ["x.from_pretrained(p)", "x.from_pretrained(p, trust_remote_code=True)", "x.from_pretrained(p, **o)"]
    assert all(list(careless(ast.parse(line))) == [1] for line in lines)
    assert not list(careless(ast.parse("x.from_pretrained(p, trust_remote_code=False, **o)")))
