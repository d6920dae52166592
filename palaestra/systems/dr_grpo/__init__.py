"""Dr. GRPO (arXiv 2503.20783) shows two biases of GRPO. Division by the group's standard deviation gives very easy
and very hard tasks more weight. Division by a response's own length makes each token of a long failure cheaper than
that of a short one, so that failed responses grow. Dr. GRPO removes both: the advantage is the return minus the
group's mean, and the loss is divided by a constant. The folder has no code of its own: the estimator is `dr_grpo` in
`palaestra/parts/estimators.py`, and the constant is an option of the aggregation `constant-length`. In `method.yaml`
it is the turn limit of a small environment; set it to the generation budget.
"""
