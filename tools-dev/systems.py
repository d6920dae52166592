"""Systems: every row of the catalogue into its folder, with overlays, golden numbers, tests, studies and results.

    python tools-dev/systems.py ROOT      after move.py
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parent))
import plan

ROOT = Path(sys.argv[1]).resolve()
SYSTEMS = ROOT / "palaestra/systems"
OWNER = {row: folder for folder, rows in plan.SYSTEMS.items() for row in rows}


class Dumper(yaml.SafeDumper):
    """Long texts folded, short lists in one line."""


def _text(dumper: Any, value: str) -> Any:
    if len(value) > 90 and "\\" not in value and ": " not in value[:1]:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=">")
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="'" if "\\" in value else None)


def _list(dumper: Any, value: list[Any]) -> Any:
    plain = all(isinstance(item, str | int | float) and len(str(item)) < 60 for item in value)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=plain)


Dumper.add_representer(str, _text)
Dumper.add_representer(list, _list)


class Plain(yaml.SafeDumper):
    """Lists of numbers in one line, no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


Plain.add_representer(list, _list)


def dump(value: Any) -> str:
    text: str = yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=116)
    return text


def move(old: Path, new: Path) -> None:
    new.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "mv", "-k", str(old), str(new)], cwd=ROOT, check=True)
    if old.exists():
        old.rename(new)


def recipes() -> None:
    for old, new in plan.RECIPES.items():
        if (ROOT / "recipes" / old).exists():
            move(ROOT / "recipes" / old, SYSTEMS / new)


def rows() -> dict[str, dict[str, Any]]:
    content = yaml.safe_load((ROOT / "catalogue.yaml").read_text(encoding="utf-8"))
    return {row["name"]: row for row in content["methods"]}


def descriptions(found: dict[str, dict[str, Any]]) -> None:
    for folder, names in plan.SYSTEMS.items():
        head = _described(found[names[0]])
        others = {name: _described(found[name]) for name in names[1:]}
        for name, row in others.items():
            if row.get("arxiv") == head.get("arxiv"):
                row.pop("arxiv", None)
        if others:
            head["variants"] = others
        path = SYSTEMS / folder / "system.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dump(head), encoding="utf-8")
        init = path.with_name("__init__.py")
        if not init.exists() or not init.read_text().strip():
            text = f"{head['title']}. {head.get('when', '')}".strip()
            init.write_text(f'"""{_wrapped(text)}"""\n', encoding="utf-8")
    (ROOT / "catalogue.yaml").unlink()


def _wrapped(text: str) -> str:
    import textwrap

    lines = textwrap.wrap(text, 112)
    return "\n".join(lines) + ("\n" if len(lines) > 1 else "")


def _described(row: dict[str, Any]) -> dict[str, Any]:
    kept = {"title": row["title"]}
    for key in ("arxiv", "formula", "when"):  # `run` becomes the system's recipe
        if row.get(key):
            kept[key] = row[key].strip() if isinstance(row[key], str) else row[key]
    kept["parts"] = row["slots"]
    if row.get("comparison"):
        kept["evidence"] = row["comparison"]
    kept["status"] = row["status"]
    return kept


def studies(found: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Study → folder of its system, or "" where it is about several."""
    places: dict[str, str] = {}
    for path in sorted((ROOT / "benchmarks/studies").glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        content = yaml.safe_load(text)
        named = content["method"] if isinstance(content["method"], list) else [content["method"]]
        owners = {OWNER[name] for name in named if name in OWNER}
        own = OWNER.get(path.stem, "") or (owners.pop() if len(owners) == 1 else "")
        places[path.stem] = own
        seen = (content.get("seen") or "").strip()
        text = _without(text, "seen")
        assert yaml.safe_load(text) == {k: v for k, v in content.items() if k != "seen"}, path
        path.write_text(text, encoding="utf-8")
        results = ROOT / "benchmarks/results" / path.stem
        if seen:
            results.mkdir(parents=True, exist_ok=True)
            (results / "seen.md").write_text(seen + "\n", encoding="utf-8")
            subprocess.run(["git", "add", str(results / "seen.md")], cwd=ROOT, check=True)
        if own:
            if results.exists():
                move(results, SYSTEMS / own / "results" / path.stem)
            move(path, SYSTEMS / own / "studies" / path.name)
    return places


def _without(text: str, key: str) -> str:
    """YAML text without one top-level key."""
    return re.sub(rf"(?m)^{key}:.*\n(?:(?:[ \t].*|)\n)*?(?=^\S|\Z)", "", text)


def golden(targets: dict[tuple[str, str], str]) -> None:
    """Cases of a system's parts into its golden.yaml, one document for each table."""
    documents: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for path in sorted((ROOT / "tests/golden").glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        head, _, tail = text.partition("\ncases:\n") if "\ncases:\n" in text else ("", "", text.partition("cases:\n")[2])
        if "\ncases:\n" not in text:
            head = text.partition("cases:\n")[0].rstrip("\n")
        blocks = re.split(r"(?m)^(?=  - )", tail)
        blocks = [block for block in blocks if block.strip()]
        cases = yaml.safe_load(text).get("cases", [])
        for place, block in enumerate(blocks):
            if re.search(r"(?m)[:-] [&*]\w", block):  # an anchor, which may come to stand in another file
                written = yaml.dump([cases[place]], Dumper=Plain, sort_keys=False, allow_unicode=True, width=116)
                blocks[place] = "".join(f"  {line}\n" for line in written.splitlines())
        assert [yaml.safe_load(block)[0] for block in blocks] == cases, path
        by_owner: dict[str, list[str]] = defaultdict(list)
        for block, case in zip(blocks, cases, strict=True):
            owner = targets.get((case.get("slot", ""), case.get("part", "")), "") or plan.GOLDEN.get(path.stem, "")
            by_owner[owner].append(block.rstrip("\n") + "\n")
        for owner, own in by_owner.items():
            body = f"{head.strip(chr(10))}\n\ncases:\n" if head.strip() else "cases:\n"
            document = body + "".join(own)
            if owner:
                documents[owner].append((path.stem, document))
            else:
                path.write_text(document, encoding="utf-8")
        if "" not in by_owner:
            path.unlink()
    for owner, own in documents.items():
        pieces = [f"name: {stem}\n{document}" if stem != owner else document for stem, document in own]
        # comments first, then the name
        pieces = [re.sub(r"\A(name: \w+\n)((?:#.*\n)+)", r"\2\1", piece) for piece in pieces]
        (SYSTEMS / owner / "golden.yaml").write_text("---\n".join(pieces), encoding="utf-8")


def tests() -> None:
    for old, new in plan.TESTS.items():
        if (ROOT / old).exists():
            move(ROOT / old, ROOT / new)
    for path in sorted((ROOT / "tests/envs").glob("test_*.py")):
        imported = re.findall(r"palaestra\.envs\.(kit|worlds|adapters|probes)\b", path.read_text(encoding="utf-8"))
        stem = path.stem.removeprefix("test_")
        folder = next(
            (
                kind
                for kind in ("worlds", "adapters", "probes", "kit")
                if any((ROOT / f"palaestra/envs/{kind}/{name}").exists() for name in (stem, f"{stem}.py"))
            ),
            max(set(imported), key=imported.count) if imported else "",
        )
        if folder:
            move(path, ROOT / f"tests/envs/{folder}/{path.name}")
    for old, new in plan.TEST_ROOMS.items():
        for path in sorted((ROOT / old).glob("*.py")) if (ROOT / old).exists() else []:
            move(path, ROOT / new / path.name)


def main() -> None:
    found = rows()
    recipes()
    index: dict[str, dict[str, str]] = json.loads((ROOT / "palaestra/parts.json").read_text())
    moved: dict[str, str] = json.loads((ROOT / "tools-dev/moved.json").read_text())
    targets = {}
    for slot, names in index.items():
        for name, target in names.items():
            module = moved.get(target.partition(":")[0], target)
            if module.startswith("palaestra.systems."):
                targets[slot, name] = module.split(".")[2]
    places = studies(found)
    golden(targets)
    descriptions(found)
    tests()
    (ROOT / "palaestra/parts.json").unlink()
    move(ROOT / "palaestra/envs/panels.json", ROOT / "palaestra/envs/kit/panels.json")
    for path in (ROOT / "docs/images/studies").glob("*.png"):
        path.unlink()
    for row in [*found]:
        (ROOT / f"docs/methods/{row}.md").unlink(missing_ok=True)
    for name in ("methods", "studies", "commands"):
        (ROOT / f"docs/{name}.md").unlink(missing_ok=True)
    for path in (ROOT / "docs/parts").glob("*.md"):
        path.unlink()
    (ROOT / "tools-dev/studies.json").write_text(json.dumps(places, indent=1) + "\n")


main()
