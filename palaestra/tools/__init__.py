"""Tools that agents may call.

`tool` turns a function into a Tool. A Toolbox holds the tools of one episode, reads calls from texts and runs them.
"""

from palaestra.tools.calls import Parsed
from palaestra.tools.files import WorkFolder, file_tools
from palaestra.tools.formats import CallFormat
from palaestra.tools.python import PythonTool
from palaestra.tools.tool import Tool, ToolError, tool
from palaestra.tools.toolbox import Toolbox, ToolResult
from palaestra.tools.unit_tests import run_tests, unit_tests_tool

__all__ = [
    "CallFormat",
    "Parsed",
    "PythonTool",
    "Tool",
    "ToolError",
    "ToolResult",
    "Toolbox",
    "WorkFolder",
    "file_tools",
    "run_tests",
    "tool",
    "unit_tests_tool",
]
