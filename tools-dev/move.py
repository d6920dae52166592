"""Move modules to their new places: whole files, merged files and parted files, with every import of them.

    python tools-dev/move.py ROOT      changes the checkout at ROOT, and writes what moved to ROOT/tools-dev/moved.json

It reads and writes text; nothing of the project is imported. Functions and classes keep their text to the letter.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import plan

ROOT = Path(sys.argv[1]).resolve()
PACKAGE = ROOT / "palaestra"


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@dataclass
class Old:
    """One module of the old tree."""

    name: str
    path: Path
    text: str
    tree: ast.Module
    bindings: dict[str, tuple[str, ...]] = field(default_factory=dict)  # name → ("def",) or ("imp", module, name)
    lines: list[str] = field(default_factory=list)


def read(path: Path) -> Old:
    text = path.read_text(encoding="utf-8")
    old = Old(module_of(path), path, text, ast.parse(text), lines=text.splitlines(keepends=True))
    for node in old.tree.body:
        _bind(node, old.bindings)
    return old


def _bind(node: ast.stmt, into: dict[str, tuple[str, ...]]) -> None:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        into[node.name] = ("def",)
    elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                into[inner.id] = ("def",)
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            into[alias.asname or alias.name] = ("imp", node.module or "", alias.name)
    elif isinstance(node, ast.Import):
        for alias in node.names:
            into[alias.asname or alias.name.partition(".")[0]] = ("mod", alias.name, alias.asname or "")
    elif isinstance(node, ast.If | ast.Try | ast.With | ast.For):
        for inner in [*node.body, *getattr(node, "orelse", [])]:
            _bind(inner, into)


OLD = {old.name: old for old in map(read, sorted(PACKAGE.rglob("*.py")))}


def home(module: str) -> str:
    """Where a whole module goes; a package takes its inner modules along."""
    if module in plan.MODULES:
        return plan.MODULES[module]
    if module in plan.SPLITS:
        return plan.SPLITS[module][""]
    parent, _, last = module.rpartition(".")
    if parent and parent != "palaestra" and home(parent) != parent and parent in plan.MODULES:
        return f"{home(parent)}.{last}"
    if parent.count(".") >= 2 and home(parent) != parent:
        return f"{home(parent)}.{last}"
    return module


def home_of(module: str, name: str) -> tuple[str, str]:
    """Where a name that this module defines goes, and what it is called there."""
    new = plan.SPLITS[module].get(name, plan.SPLITS[module][""]) if module in plan.SPLITS else home(module)
    return new, plan.NAMES.get((module, name), name)


def definer(module: str, name: str) -> tuple[str, str | None]:
    """The old module that defines a name; (module, None) if the name is a module."""
    for _ in range(8):
        if module not in OLD:
            return module, name
        binding = OLD[module].bindings.get(name)
        if binding is None or binding[0] in ("def", "mod"):
            if binding is None and f"{module}.{name}" in OLD:
                return f"{module}.{name}", None
            return module, name
        if not binding[1].startswith("palaestra"):
            return module, name
        module, name = binding[1], binding[2]
    raise RuntimeError(f"{module}.{name}")


FACES = ("palaestra.data", "palaestra.replay", "palaestra.models", "palaestra.engines", "palaestra.testing",
         "palaestra.recipe", "palaestra.tools", "palaestra.tools.sandbox", "palaestra.catalogue")


def _face_names() -> dict[str, dict[str, tuple[str, str]]]:
    """New face → name → (new module, name there)."""
    found: dict[str, dict[str, tuple[str, str]]] = defaultdict(dict)
    for face in ("palaestra.data", "palaestra.contexts"):
        for name, binding in OLD[face].bindings.items():
            if binding[0] == "imp" and binding[1].startswith("palaestra"):
                module, own = definer(face, name)
                assert own is not None
                new, renamed = home_of(module, own)
                room = ".".join(new.split(".")[:2])
                if room in ("palaestra.data", "palaestra.algebra", "palaestra.chat"):
                    found[room][name] = (new, renamed)
    return found


NEW_FACES = _face_names()


def place(module: str, name: str, inside: str) -> tuple[str, str | None]:
    """From where the new module `inside` imports what `module` calls `name`: (module, name), or (module, None)."""
    source, own = definer(module, name)
    if own is None:
        return home(source), None
    if source not in OLD:
        return module, name
    new, renamed = home_of(source, own)
    room = ".".join(new.split(".")[:2])
    was_face = OLD.get(module) is not None and OLD[module].path.name == "__init__.py" and module != source
    if was_face and room in NEW_FACES and renamed in NEW_FACES[room] and not inside.startswith(room):
        return room, renamed
    if was_face and room not in NEW_FACES and new.startswith(module + ".") and module in FACES:
        return module, name
    return new, renamed


def import_lines(node: ast.ImportFrom | ast.Import, inside: str) -> list[str] | None:
    """The import statement for the new tree; None if nothing changes."""
    if isinstance(node, ast.Import):
        lines, changed = [], False
        for alias in node.names:
            new = home(alias.name) if alias.name.startswith("palaestra.") else alias.name
            changed |= new != alias.name
            lines.append(f"import {new}" + (f" as {alias.asname}" if alias.asname else ""))
        return lines if changed else None
    if node.level or not (node.module or "").startswith("palaestra"):
        return None
    wanted: dict[str, list[str]] = defaultdict(list)
    for alias in node.names:
        local = alias.asname or alias.name
        module, name = place(node.module or "", alias.name, inside)
        if name is None:
            parent, _, name = module.rpartition(".")
            module = parent
        if module == inside:
            if name != local:
                raise RuntimeError(f"{inside}: {local} is {name} of the same module")
            continue
        wanted[module].append(name if name == local else f"{name} as {local}")
    lines = [f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(wanted.items())]
    before = [f"from {node.module} import {', '.join(sorted(a.name + (f' as {a.asname}' if a.asname else '') for a in node.names))}"]
    return None if lines == before else lines


def rewrite(text: str, inside: str) -> str:
    """Text of a module with its imports for the new tree."""
    tree = ast.parse(text)
    lines = text.splitlines(keepends=True)
    nodes = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom | ast.Import)]
    for node in sorted(nodes, key=lambda n: n.lineno, reverse=True):
        new = import_lines(node, inside)
        if new is None:
            continue
        start, end = node.lineno - 1, node.end_lineno or node.lineno
        head = lines[start][: node.col_offset]
        tail = lines[end - 1][node.end_col_offset:] if isinstance(node.end_col_offset, int) else "\n"
        if head.strip():  # after a semicolon
            lines[start:end] = [head + "; ".join(new) + tail]
            continue
        comment = re.search(r"#.*", "".join(lines[start:end]))
        body = [head + line + "\n" for line in new]
        if body and comment:
            body[0] = body[0].rstrip("\n") + "  " + comment[0].strip() + "\n"
        if not body and node.col_offset:
            body = [head + "pass\n"]
        lines[start:end] = body
    return "".join(lines)


# ---- pieces of modules ---------------------------------------------------------------------------------------------
def statements(old: Old) -> list[tuple[ast.stmt, str]]:
    """Statements that are no import and no docstring, each with the comments above it."""
    found = []
    last = 0
    for position, node in enumerate(old.tree.body):
        start = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]) - 1
        end = node.end_lineno or node.lineno
        text = "".join(old.lines[last:end])
        last = end
        docstring = position == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_import = isinstance(node, ast.Import | ast.ImportFrom)
        is_all = isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"
        is_checking = isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        if docstring or is_import or is_all or is_checking:
            continue
        assert start >= 0
        found.append((node, text.strip("\n") + "\n"))
    return found


def names_of(node: ast.stmt) -> set[str]:
    into: dict[str, tuple[str, ...]] = {}
    _bind(node, into)
    return set(into)


def used(nodes: list[ast.stmt]) -> set[str]:
    names = {n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name)}
    for node in nodes:  # annotations in quotes
        for inner in ast.walk(node):
            if isinstance(inner, ast.Constant) and isinstance(inner.value, str) and len(inner.value) < 80:
                names |= set(re.findall(r"[A-Za-z_]\w*", inner.value)) if "[" in inner.value else set()
    return names


def renamed(text: str, old: str) -> str:
    for (module, name), new in plan.NAMES.items():
        if module == old:
            text = re.sub(rf"(?<![\w.]){re.escape(name)}\b(?!\s*=[^=])", new, text)
    return text


def build(target: str, pieces: list[tuple[Old, list[tuple[ast.stmt, str]]]]) -> str:
    """Text of a new module made of pieces of old ones."""
    imports: set[str] = set()
    checking: set[str] = set()
    body: list[str] = []
    defined: dict[str, tuple[str, str]] = {}
    for old, whole in pieces:
        chosen = []
        for node, text in whole:
            same = [plan.NAMES.get((old.name, name), name) for name in names_of(node)]
            met = [name for name in same if name in defined and defined[name][0] != old.name]
            if met and all(defined[name][1] == ast.dump(node) for name in met):
                continue  # the same constant in both
            if met:
                raise RuntimeError(f"{target}: {met} come from {defined[met[0]][0]} and from {old.name}")
            defined |= dict.fromkeys(same, (old.name, ast.dump(node)))
            chosen.append((node, text))
        wanted = used([node for node, _ in chosen])
        own = set().union(*(names_of(node) for node, _ in chosen)) if chosen else set()
        typed = {
            alias.asname or alias.name
            for node in old.tree.body
            if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
            for inner in node.body
            for alias in getattr(inner, "names", [])
        }
        for name in sorted(wanted - own):
            binding = old.bindings.get(name)
            if binding is None:
                continue
            into = checking if name in typed else imports
            if binding[0] == "def":  # it went elsewhere
                new, called = home_of(old.name, name)
                if new != target:
                    into.add(f"from {new} import {called}")
            elif binding[0] == "mod":
                into.add(f"import {binding[1]}" + (f" as {binding[2]}" if binding[2] else ""))
            elif binding[1] != "__future__":
                node = ast.ImportFrom(module=binding[1], names=[ast.alias(binding[2], name if name != binding[2] else None)], level=0)
                lines = import_lines(node, target)
                if lines is None:
                    alias = binding[2] if binding[2] == name else f"{binding[2]} as {name}"
                    lines = [f"from {binding[1]} import {alias}"]
                for line in lines:
                    into.add(line)
        body += [renamed(text, old.name) for _, text in chosen]
    taken: dict[str, str] = {}
    for line in imports | checking:
        for alias in ast.parse(line).body[0].names:  # type: ignore[attr-defined]
            local = alias.asname or alias.name.partition(".")[0]
            if local in defined or taken.setdefault(local, line) != line:
                raise RuntimeError(f"{target}: `{local}` is imported by `{line}` and by {taken.get(local)}, or defined")
    head = plan.HEADS.get(target)
    if head is None:
        whole = next((old for old, _ in pieces if old.name not in plan.SPLITS), pieces[0][0])
        head = ast.get_docstring(whole.tree, clean=True) or ""
    if checking:
        imports.add("from typing import TYPE_CHECKING")
    text = f'"""{head}"""\n\nfrom __future__ import annotations\n\n' if "\n" not in head else f'"""{head}\n"""\n\nfrom __future__ import annotations\n\n'
    text += "\n".join(sorted(imports)) + "\n\n"
    if checking:
        text += "if TYPE_CHECKING:\n" + "".join(f"    {line}\n" for line in sorted(checking)) + "\n\n"
    glued = ""
    for piece in body:
        simple = re.match(r"[A-Za-z_]\w*\s*(?::[^=\n]+)?=", piece) is not None
        near = glued and simple and re.match(r"[A-Za-z_]\w*\s*(?::[^=\n]+)?=", glued.rsplit("\n\n", 1)[-1].lstrip("\n"))
        glued += piece if near or not glued else "\n\n" + piece
    return text + glued


def path_of(module: str, package: bool) -> Path:
    inner = ROOT.joinpath(*module.split("."))
    return inner / "__init__.py" if package else inner.with_suffix(".py")


ROOMS_THAT_GO = {"advantages", "weights", "losses", "rewards", "selection", "curriculum", "optim", "contexts"}


def main() -> None:
    targets: dict[str, list[tuple[Old, list[tuple[ast.stmt, str]] | None]]] = defaultdict(list)
    gone: list[Path] = []
    for old in OLD.values():
        room = old.name.split(".")[1] if "." in old.name else ""
        if old.path.name == "__init__.py" and old.name.count(".") == 1 and room in {*ROOMS_THAT_GO, "data", "envs"}:
            if room in ROOMS_THAT_GO:
                gone.append(old.path)
            continue
        if old.name in plan.SPLITS:
            by_target: dict[str, list[tuple[ast.stmt, str]]] = defaultdict(list)
            for node, text in statements(old):
                homes = {home_of(old.name, name)[0] for name in names_of(node)} or {plan.SPLITS[old.name][""]}
                assert len(homes) == 1, (old.name, names_of(node))
                by_target[homes.pop()].append((node, text))
            for target, chosen in by_target.items():
                targets[target].append((old, chosen))
        else:
            targets[home(old.name)].append((old, None))
    order = list(plan.MODULES)
    packages = {old.name for old in OLD.values() if old.path.name == "__init__.py"}
    inner = {target.rpartition(".")[0] for target in targets}
    written: dict[Path, str] = {}
    moved: dict[str, str] = {}
    moves: list[tuple[Path, Path]] = []
    for target, pieces in sorted(targets.items()):
        package = target in inner or target.rpartition(".")[0] == "palaestra.systems" or any(old.name in packages and home(old.name) == target for old, _ in pieces)
        path = path_of(target, package)
        pieces.sort(key=lambda piece: order.index(piece[0].name) if piece[0].name in order else len(order))
        if len(pieces) == 1 and pieces[0][1] is None:
            old = pieces[0][0]
            written[path] = rewrite(old.text, target)
            if path != old.path:
                moves.append((old.path, path))
        else:
            written[path] = build(target, [(old, chosen or statements(old)) for old, chosen in pieces])
            moves += [(old.path, path) for old, _ in pieces if old.path != path][:1]
        for old, _ in pieces:
            if old.path != path:
                moved[old.name] = home(old.name)
                if old.path not in written:
                    gone.append(old.path)
    for face, names in NEW_FACES.items():
        by_module: dict[str, list[str]] = defaultdict(list)
        for name, (module, own) in names.items():
            by_module[module].append(own if own == name else f"{own} as {name}")
        head = plan.HEADS.get(face) or ast.get_docstring(OLD[face].tree) or ""
        lines = [f'"""{head}"""\n\n'] + [f"from {m} import {', '.join(sorted(n))}\n" for m, n in sorted(by_module.items())]
        exported = "".join(f'    "{name}",\n' for name in sorted(names))
        written[path_of(face, True)] = "".join(lines) + f"\n__all__ = [\n{exported}]\n"
    folders = {Path(*p.parts) for path in written for p in path.parents if PACKAGE in p.parents}
    for folder in sorted(folders):
        init = folder / "__init__.py"
        module = module_of(init)
        if init not in written and (not init.exists() or init in gone):
            head = plan.HEADS.get(module, "")
            written[init] = f'"""{head}"""\n' if head else ""
    for path in gone:
        if path not in written and path.exists():
            path.unlink()
    for path, text in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    others = [p for room in ("tests", "benchmarks", "docs", "tools-dev") for p in sorted((ROOT / room).rglob("*.py"))]
    for path in others:
        if path.parent.name != "tools-dev":
            text = path.read_text(encoding="utf-8")
            path.write_text(rewrite(text, "tests"), encoding="utf-8")
    (ROOT / "tools-dev/moved.json").write_text(json.dumps(dict(sorted(moved.items())), indent=1) + "\n")
    data = [p for p in PACKAGE.rglob("*") if p.is_file() and p.suffix not in (".py", ".pyc")]
    for path in data:  # files beside the code go where their module goes
        module = module_of(path.parent / "__init__.py")
        new = home(module)
        if new != module:
            place_ = ROOT.joinpath(*new.split(".")) / path.name
            place_.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["git", "mv", str(path), str(place_)], cwd=ROOT, check=True)
    for folder in sorted((p for p in PACKAGE.rglob("*") if p.is_dir()), reverse=True):
        if not any(p for p in folder.rglob("*") if p.is_file() and p.suffix != ".pyc"):
            subprocess.run(["rm", "-rf", str(folder)], check=True)


main()
