"""Hi-Agent (arXiv 2510.14388) controls mobile devices with a planner that sets subgoals and an executor that carries
them out. Comparing whole sequences of subgoals is expensive. The foresight advantage compares only subgoals tried
from the same state, by their form, their execution and a judge's view of the state they led to. One decision is one
group, so credit needs no episode to end. The weights of the three terms are ours, since the paper's are unknown to
us. Here the environment judges by rule. Devices, vision-language models and a model as judge are not here.

`program.py` tries the subgoals of a state, `advantage.py` is the estimator, and `errands.py` is the environment, a
small town.
"""
