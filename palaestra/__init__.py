"""Palaestra: train, run and evaluate agents by multi-turn reinforcement learning."""

import os

__version__ = "0.1.0"

# oneDNN, a part of torch, makes a kernel for each shape of a product, which takes ten times as long as a small product.
# It keeps 1024 of them. The batches of generation and training have more shapes than that.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "8192")
