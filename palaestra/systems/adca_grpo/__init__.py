"""AgentEvolver (arXiv 2511.10395) addresses agents that get one result at the end of a long episode, so that good and
bad steps receive the same credit. In its self-attributing part a judge calls each step good or bad. ADCA-GRPO
standardizes these flags over the steps of a group, adds the standardized outcome, and sums from each step to the end.
Here a missing flag is an error and is not filled in, and an outcome given to all steps is divided by their
number. The judge is scripted: no language model judges steps. The self-questioning and self-navigating parts of the
paper are not here.

`advantage.py` is the estimator with both scoring schemes. `step_judge.py` is a judge that reads the true quality of a
step and errs with a chosen probability.
"""
