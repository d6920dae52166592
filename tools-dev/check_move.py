"""Check a move by machine: every function and class of the old tree stands in the new one with the same syntax tree.

    python tools-dev/check_move.py OLD NEW [--renames docs/renames.yaml]

Import statements and docstrings of modules may differ. What was changed by hand on purpose is listed in BY_HAND. With
`--renames` it writes which module, recipe and name went where.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import yaml

old_root, new_root = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
sys.path.insert(0, str(Path(__file__).parent))
source = (Path(__file__).parent / "move.py").read_text()
sys.argv = ["move", str(old_root)]
exec(compile(source[: source.rindex("\nmain()")], "move.py", "exec"))

BY_HAND = (  # rooms whose code was changed with the layout: the index, the catalogue, where recipes lie, their commands
    "palaestra.catalogue.", "palaestra.commands.methods", "palaestra.commands.environments", "palaestra.commands.docs",
    "palaestra.recipe.sources", "palaestra.recipe.resolved:load", "palaestra.registry", "palaestra.cli",
)  # fmt: skip


def definitions(path: Path) -> dict[str, ast.stmt]:
    return {
        node.name: node
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }


def without_imports(node: ast.AST) -> str:
    class Strip(ast.NodeTransformer):
        def visit_ImportFrom(self, inner: ast.ImportFrom) -> None:
            return None

        visit_Import = visit_ImportFrom  # type: ignore[assignment]

        def visit_Constant(self, inner: ast.Constant) -> ast.Constant:
            if isinstance(inner.value, str):  # names of modules and recipes in texts
                return ast.Constant("…" if "palaestra" in inner.value or ".yaml" in inner.value else inner.value)
            return inner

    return ast.dump(Strip().visit(node))


count, differing, missing = 0, [], []
for old in OLD.values():
    for name, node in definitions(old.path).items():
        module, called = home_of(old.name, name)
        spot = new_root.joinpath(*module.split("."))
        path = spot / "__init__.py" if spot.is_dir() else spot.with_suffix(".py")
        label = f"{old.name}:{name}"
        by_hand = any(label.startswith(prefix) for prefix in BY_HAND)
        count += 1
        other = definitions(path).get(called) if path.exists() else None
        if other is None and not by_hand:
            missing.append(f"{label} is not in {module}")
        elif other is not None and without_imports(node) != without_imports(other) and not by_hand:
            differing.append(f"{label} differs in {module}")
print(f"{count} functions and classes; {len(missing)} missing, {len(differing)} differ")
print("\n".join([*missing, *differing]))

if "--renames" in sys.orig_argv:
    names: dict[str, str] = {}
    for module, targets in plan.SPLITS.items():
        for name, node in definitions(OLD[module].path).items():
            new, called = home_of(module, name)
            if new != module and not name.startswith("_"):
                names[f"{module}.{name}"] = f"{new}.{called}"
    for face in ():
        for name, binding in OLD[f"palaestra.{face}"].bindings.items():
            if binding[0] == "imp":
                module, name_ = place(f"palaestra.{face}", name, "tests") if callable(place) else ("", "")
    modules = {old.name: home(old.name) for old in OLD.values() if home(old.name) != old.name and old.path.name != "__init__.py"}
    text = "# What moved, old place → new place. A registered name of a part never changes when its module moves.\n"
    content = {"modules": dict(sorted(modules.items())), "names": dict(sorted(names.items())),
               "recipes": dict(sorted((o, n) for o, n in plan.RECIPES.items() if (old_root / "recipes" / o).exists())),
               "tests": dict(sorted(plan.TESTS.items())) | {f"{o}/": f"{n}/" for o, n in plan.TEST_ROOMS.items()}}
    (new_root / "docs/renames.yaml").write_text(text + yaml.safe_dump(content, sort_keys=False, width=200))
sys.exit(bool(missing or differing))
