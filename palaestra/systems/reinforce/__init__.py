"""REINFORCE (Williams 1992) is the oldest policy gradient: the log-probability of each act is weighted with the reward
that came after it, minus a baseline. It has no clip, no groups, no critic and no division by a deviation, and so it
shows what these add in other systems. Here the baseline is the mean over the batch, and advantages are cut at 5 against
rare large returns; that bound is ours. The folder has no code of its own: the estimator `reinforce` is in
`palaestra/parts/estimators.py`, `center` and `clip_advantage` are in `palaestra/parts/filters.py`, and the loss
`reinforce` is in `palaestra/parts/losses.py`. The recipe trains a speaker and a listener in a signaling game.
"""
