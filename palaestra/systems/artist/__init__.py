"""ARTIST (arXiv 2505.01441) trains a policy to decide by itself when and how to call tools while it reasons. It uses
GRPO with a reward of three parts: the answer, the format, and the share of tool calls that succeeded. For function
calling the reward compares the final state and the calls with the wanted ones. Text that comes from a tool has no
loss. Here each part of a reward is a column and has its own weight. The recipe trains a network policy whose acts are
single tokens: reasoning, tool calls and results inside one text, and the paper's mathematics with a Python
interpreter, are not in it.

`tool_use.py` and `function_calls.py` are the two rewards. `tickets.py` is an environment in which function calls
change a booking.
"""
