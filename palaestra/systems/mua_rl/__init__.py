"""MUA-RL. Agents that have to ask a user for what they need, with tools that change something: train with users
who answer what was said, since turns that were written before come whatever the agent says.
"""
