"""ArCHer (arXiv 2402.19446) addresses multi-turn tasks in which episodes are expensive, while on-policy methods use
each episode once. A critic of whole utterances, with two Q and two V heads, learns off-policy from a replay buffer.
The advantage of an utterance that the policy samples now is the reward of a plain policy gradient over its tokens.
Here one small encoder reads situation and utterance together; the authors encode them separately with RoBERTa.
Utterances for the target of V are sampled once per iteration, for all critic updates. The critic learns from the
environment's own rewards; parts of the slot `reward` do not reach it.

`advantage.py` holds the targets and the updates, `critics.py` the encoders and the heads. The buffer is
`palaestra/replay/buffer.py`, and `transitions.py` beside it cuts episodes into observation, act, reward and next
observation.
"""
