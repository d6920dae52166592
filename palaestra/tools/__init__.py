"""Tools: what agents may call. Knows calls, results and where code runs; knows nothing of episodes or policies.

A function becomes a tool by `tool`; a Toolbox holds those of an episode, reads calls and runs them.
"""

from palaestra.tools.formats import FORMATS, CallFormat, Parsed
from palaestra.tools.tool import Tool, ToolError, tool
from palaestra.tools.toolbox import Toolbox, ToolResult

__all__ = ["FORMATS", "CallFormat", "Parsed", "Tool", "ToolError", "ToolResult", "Toolbox", "tool"]
