"""Simulated users, who talk to an agent and want something from it."""
