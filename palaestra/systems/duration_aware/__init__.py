"""The paper (arXiv 2509.01684) trains agents that write machine learning programs. In asynchronous training, results of
fast programs return more often, and the policy comes to prefer them. Each gradient is therefore weighted with the
duration of its act, and a program that fails gets partial credit for the milestones it reached. The weight is right if
results arrive at a rate of 1/duration, not if workers draw a new act whenever they are free. Here an environment gives
durations; no programs are run. The model that inserts print statements and the prompt to improve an earlier program are
not here.

`duration.py` is the weight, `milestones.py` the partial credit, `markers.py` the printed lines, and `slowarm.py` the
environment.
"""
