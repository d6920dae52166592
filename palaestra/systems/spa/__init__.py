"""SPA-RL. Long episodes with one outcome at the end, where some steps decide: the outcome moves to them. Keep the
bonus for executable actions small where an episode may go on.
"""
