"""VL-DAC, vision-language decoupled actor-critic. Long responses with thoughts before the action, where a critic
of single tokens is hard to learn.
"""
