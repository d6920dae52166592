"""HAPO (arXiv 2509.16591) treats the tokens of a response differently, because a few uncertain tokens decide and most
others follow. The entropy of a token sets its sampling temperature, the size of its advantage and its clip range. The
mean and the deviation of a group run over tokens, so that advantages sum to 0 in a loss averaged over tokens. Here the
entropy signal is signed, as in the paper's text. The released code takes its absolute value, so that the rules for
certain tokens never apply (`released_sign`).

`entropy_signal.py` measures the signal, `adaptive_temperature.py` is the strategy for the sampling temperature,
`advantage.py` the estimator, and `loss.py` the loss. Dynamic sampling is in `palaestra/rollout/strategies.py`.
"""
