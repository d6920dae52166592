"""GSPO (arXiv 2507.18071) addresses several updates on long responses. The reward belongs to the whole response, while
the ratio of a single token is noisy, in particular in mixtures of experts. GSPO uses one ratio per response, the
geometric mean of its token ratios, and clips the response as a whole. The clip range is much narrower than PPO's and
must fit the length of the responses. Here the log-ratio is bounded on both sides, where the authors bound it from above
only, and the unit can also be one turn of an episode. The folder has no code of its own: the loss `gspo` is in
`palaestra/parts/losses.py`, because DART uses it too, and the estimator `grpo` is in `palaestra/parts/estimators.py`.
"""
