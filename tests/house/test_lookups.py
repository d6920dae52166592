"""Members are called, not looked up: (1) no `getattr(x, "name")` or `hasattr(x, "name")` with a literal name, but in
the files below, each for its reason; (2) the list has no file that needs no exception. (3) The rule can fail.

What an object of ours may lack has a default in its protocol (`palaestra.data.protocols`), is an ability
(`palaestra.data.abilities`) or something that a part says of itself (`palaestra.registry.DECLARED`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.house.source_text import package_files, python_files, shown, tree

LOOKUPS = {"getattr", "hasattr"}
ALLOWED = {  # a file, or a folder that ends in "/" → whose objects are asked there
    "benchmarks/machine.py": "the operating system's",
    "palaestra/boundary/cleaning.py": "tensors, and whatever else environments return",
    "palaestra/catalogue/scan.py": "syntax trees",
    "palaestra/catalogue/systems.py": "PyYAML's loaders",
    "palaestra/chat/render.py": "tokenizers of transformers",
    "palaestra/chat/renderers.py": "tokenizers of transformers",
    "palaestra/commands/cli.py": "click's errors",
    "palaestra/data/abilities.py": "the one place that asks environments",
    "palaestra/envs/adapters/": "objects of other libraries",
    "palaestra/models/attention.py": "configurations of transformers",
    "palaestra/models/packing.py": "configurations of transformers",
    "palaestra/models/pictures.py": "models and processors of transformers",
    "palaestra/models/tokenizer.py": "tokenizers of transformers",
    "palaestra/policies/language.py": "configurations of transformers",
    "palaestra/recipe/origins.py": "PyYAML's errors",
    "palaestra/registry/declaration.py": "the one place that asks functions and classes for what they say",
    "palaestra/rollout/slots.py": "Gymnasium's spaces",
    "palaestra/rollout/programs.py": "programs, which may be plain functions without options",
    "palaestra/rollout/workers.py": "the operating system's",
    "palaestra/store/atomic.py": "errors of the operating system",
    "palaestra/store/json_text.py": "arrays and scalars of NumPy and torch",
    "palaestra/systems/kimi_rl/attention.py": "attention layers of transformers",
    "palaestra/testing/": "what a user gives to a checker may be anything",
    "palaestra/tools/mcp.py": "blocks of the package mcp",
    "palaestra/tools/rendering.py": "arrays of NumPy and torch",
    "palaestra/tools/sandbox/processes.py": "the operating system's",
    "palaestra/tools/toolbox.py": "coroutines and other awaitables of tools",
    "palaestra/training/collector.py": "what a checkpoint keeps beside parts",
}
FILES = (*package_files(), *python_files("benchmarks"))


def lookups(code: ast.AST) -> Iterator[str]:
    """Calls with a literal name; names such as `__name__` are Python's own."""
    for node in ast.walk(code):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in LOOKUPS:
            name = node.args[1] if len(node.args) > 1 else None
            if isinstance(name, ast.Constant) and not str(name.value).startswith("__"):
                yield f"{node.lineno} {ast.unparse(node)}"


def allowance(file: str) -> str | None:
    return next((place for place in ALLOWED if file == place or (place.endswith("/") and file.startswith(place))), None)


def test_members_are_not_looked_up() -> None:  # rule 1
    found = [f"{shown(path)}:{line}" for path in FILES if not allowance(shown(path)) for line in lookups(tree(path))]
    assert not found


def test_no_exception_is_idle() -> None:  # rule 2
    used = {allowance(shown(path)) for path in FILES if any(lookups(tree(path)))}
    assert used - {None} == set(ALLOWED)


def test_the_rule_can_fail() -> None:  # rule 3
    code = 'hasattr(policy, "module")\ngetattr(part, "learn", None)\ngetattr(a, name)\ngetattr(f, "__name__")\nlen(a)'
    assert [line.split(" ", 1)[0] for line in lookups(ast.parse(code))] == ["1", "2"]
