"""Rules: (1) a written file is read, listed and replaced; (2) no path leaves the work folder; (3) the folder keeps its
limits; (4) faults tell the agent what to do; (5) closing removes everything; (6) threads may write the same path.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from palaestra.data import ToolCall
from palaestra.errors import PalaestraError
from palaestra.tools import Toolbox, ToolError, WorkFolder, file_tools


@pytest.fixture
def folder() -> Iterator[WorkFolder]:
    with WorkFolder({"a.txt": "one\ntwo\nthree\n", "deep/b.py": "x = 1\n"}, max_files=4, max_kb=1) as made:
        yield made


def use(folder: WorkFolder, name: str, **arguments: object) -> str:
    return Toolbox(file_tools(folder)).call(ToolCall(name=name, arguments=arguments)).text


def test_1_files_are_kept(folder: WorkFolder) -> None:
    assert use(folder, "list_files") == "a.txt (14)\ndeep/b.py (6)"
    assert use(folder, "read_file", path="a.txt") == "one\ntwo\nthree\n"
    assert use(folder, "read_file", path="a.txt", first=2, last=2) == "two\n"
    assert use(folder, "write_file", path="new/c.txt", text="x\ny") == "wrote new/c.txt (2 lines)"
    assert use(folder, "replace_in_file", path="a.txt", old="two", new="2") == "changed a.txt at line 2"
    assert folder.contents() == {"a.txt": b"one\n2\nthree\n", "deep/b.py": b"x = 1\n", "new/c.txt": b"x\ny"}
    folder.remove("a.txt")
    folder.remove("a.txt")
    assert list(folder.sizes()) == ["deep/b.py", "new/c.txt"]


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "deep/../../x", "", "a\0b", ".", "link", "links/canary", "/"])
def test_2_no_path_leaves(path: str, folder: WorkFolder, tmp_path: Path) -> None:
    (tmp_path / "canary").write_text("secret")
    os.symlink(tmp_path / "canary", f"{folder.path}/link")
    os.symlink(tmp_path, f"{folder.path}/links")
    assert "secret" not in use(folder, "read_file", path=path)
    with pytest.raises(ToolError):
        folder.read(path)
    for name, more in (("write_file", {"text": "x"}), ("replace_in_file", {"old": "secret", "new": "x"})):
        use(folder, name, path=path, **more)
    assert (tmp_path / "canary").read_text() == "secret"
    assert sorted(os.listdir(tmp_path)) == ["canary"]
    assert "link" not in folder.sizes() or path == "link"  # a write puts a file in the place of the link


def test_2_special_files_are_no_files(folder: WorkFolder) -> None:
    os.mkfifo(f"{folder.path}/pipe")
    assert use(folder, "read_file", path="pipe") == "error: 'pipe' is no file"
    assert use(folder, "read_file", path="deep") == "error: 'deep' is a folder"
    assert "pipe" not in folder.contents()


def test_3_bounds(folder: WorkFolder) -> None:
    assert "1 kB; 'big' does not fit" in use(folder, "write_file", path="big", text="x" * 2000)
    use(folder, "write_file", path="a.txt", text="x" * 1000)  # what it replaces does not count
    assert folder.sizes()["a.txt"] == 1000
    folder.write("c", "")
    folder.write("d", "")
    assert use(folder, "write_file", path="e", text="") == "error: there are 4 files already; no more can be made"


def test_4_faults(folder: WorkFolder) -> None:
    assert use(folder, "read_file", path="no") == "error: there is no file 'no'"
    assert use(folder, "read_file", path="no/no") == "error: there is no folder 'no'"
    assert use(folder, "read_file", path="a.txt/x") == "error: 'a.txt' is no folder"
    assert use(folder, "write_file", path="deep", text="x") == "error: 'deep' is a folder"
    assert use(folder, "read_file", path="a.txt", first=3, last=2) == "error: there are no lines 3 to 2"
    assert "occurs 2 times in 'a.txt'" in use(folder, "replace_in_file", path="a.txt", old="t", new="")
    assert "`old` does not occur" in use(folder, "replace_in_file", path="a.txt", old="four", new="")
    assert "`old` is empty" in use(folder, "replace_in_file", path="a.txt", old="", new="")
    folder.write("raw", b"\xff")
    assert use(folder, "read_file", path="raw") == "error: 'raw' is no text"
    with pytest.raises(PalaestraError, match=r"a first file cannot be written: '\.\./x' is not inside the work folder"):
        WorkFolder({"../x": ""})
    with pytest.raises(PalaestraError, match="`max_kb` is 0"):
        WorkFolder(max_kb=0)


@pytest.mark.parametrize("half", ["\ud800", "\udc80"])
def test_4_half_of_a_character(folder: WorkFolder, half: str) -> None:
    refused = f"has half of a character, {half!r}, which no file can hold: leave it out"
    for path in (f"a{half}", f"deep{half}/b.py"):
        assert use(folder, "read_file", path=path) == f"error: the path {refused}"
        assert use(folder, "write_file", path=path, text="x") == f"error: the path {refused}"
    assert use(folder, "write_file", path="new", text=half) == f"error: the text {refused}"
    assert use(folder, "replace_in_file", path="a.txt", old="one", new=half) == f"error: `new` {refused}"
    assert use(folder, "list_files") == "a.txt (14)\ndeep/b.py (6)"


def test_5_closing_removes() -> None:
    folder = WorkFolder({"a": "x"})
    folder.close()
    folder.close()
    assert not os.path.exists(folder.path)
    with pytest.raises(PalaestraError, match="the folder is closed"):
        folder.write("a", "x")


def test_6_threads(folder: WorkFolder) -> None:
    """A writer removed the half-written file of another one, so some writes of one path raised FileExistsError."""
    folder.write("count.txt", "0")
    tools = {tool.name: tool for tool in file_tools(folder)}

    def write(n: int) -> str:
        tools["list_files"].call()
        return tools["write_file"].call(path="same/file.txt", text=f"{n}\n" * 20)

    with ThreadPoolExecutor(16) as threads:
        assert set(threads.map(write, range(480))) == {"wrote same/file.txt (20 lines)"}
        assert len(set(folder.read("same/file.txt").split())) == 1
        assert sorted(folder.sizes()) == ["a.txt", "count.txt", "deep/b.py", "same/file.txt"]

        def add(_: int) -> None:  # what one reads, no other may change before it writes
            folder.replace("count.txt", lambda content: str(int(content) + 1).encode())

        list(threads.map(add, range(100)))
    assert folder.read("count.txt") == b"100"
