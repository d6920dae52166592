"""Muon orthogonalizes the momentum of each weight matrix, so that an update moves the matrix about equally in all
directions and not mainly in a few. The paper (arXiv 2502.16982) scales such steps to the size of Adam's, so that one
learning rate and one weight decay serve both. Embeddings, output heads and vectors stay with AdamW. The paper
pretrains language models; here the optimizer trains a policy with GRPO. Newton–Schulz iterations run in float32, the
authors' in bfloat16. The folder has no code of its own: the optimizer `muon` is in `palaestra/parts/optimizers.py`.
MuonClip, which also bounds attention logits, is in the folder `kimi_rl`.
"""
