"""DAPO (arXiv 2503.14476) makes four changes to GRPO for long responses. The upper clip bound is larger, so that rare
tokens can grow. Groups in which all outcomes are equal are replaced by new ones. A response near the length limit pays
a price that grows with its length. The loss is the mean over all tokens. There is no KL term. The price here is half of
the published one, because rewards are 0 and 1 and not −1 and 1. The folder has no code of its own: sampling is
`palaestra/rollout/strategies.py`, the price `overlong` is in `palaestra/parts/rewards.py`, the clip is in
`palaestra/parts/losses.py`, and the mask of the variant `dapo_filtered.yaml` is in `palaestra/parts/masks.py`.
"""
