"""Muon with steps of Adam's size. Weight matrices that learn in few directions under Adam. Embeddings, heads and
vectors stay with AdamW.
"""
