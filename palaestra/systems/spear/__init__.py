"""SPEAR. Sparse rewards with tools that a policy hardly uses at first: it is paid for trying them, later it
imitates its own successes. The environment must tell which turns called a tool (`tool_call`).
"""
