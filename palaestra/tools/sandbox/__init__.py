"""Sandboxes for code that a model wrote: one protocol, and several back ends that say what each of them stops."""

from palaestra.tools.sandbox.bubblewrap import BubblewrapSandbox
from palaestra.tools.sandbox.choosing import Found, choose, detect
from palaestra.tools.sandbox.docker import DockerSandbox
from palaestra.tools.sandbox.protocol import Execution, Guarantees, Sandbox, Threat
from palaestra.tools.sandbox.python_pool import PythonPool
from palaestra.tools.sandbox.session import Piece, Session
from palaestra.tools.sandbox.subprocesses import SubprocessSandbox
from palaestra.tools.sandbox.wasm import WasmSandbox

__all__ = [
    "BubblewrapSandbox",
    "DockerSandbox",
    "Execution",
    "Found",
    "Guarantees",
    "Piece",
    "PythonPool",
    "Sandbox",
    "Session",
    "SubprocessSandbox",
    "Threat",
    "WasmSandbox",
    "choose",
    "detect",
]
