"""RL for machine learning engineering agents (duration-aware gradients). Results that come back at a rate 1 /
duration, as from slots per act or batches closed early. Not for workers that draw a new act as soon as they are
free: there the plain gradient is right.
"""
