"""Dr. MAS (arXiv 2602.08847) addresses teams of language models that are trained with GRPO. Roles act at different
times and have different distributions of rewards, so one mean and one deviation for all can give the gradients of some
roles large spikes. Dr. MAS standardizes the return of a role with the mean and the deviation of that role alone. Here a
row without peers gets 0 and not its raw return, and padding has weight 0, where the authors' code repeats random rows.
The folder has no code of its own: the estimator is `dr_mas` in `palaestra/parts/estimators.py`, because other systems
use it too. Team recipes, on search and on mathematics, are in `recipes/teams`.
"""
