"""Environments: built-in worlds, adapters to other libraries, and small probes for studies.

Each is a part of the slot `environment`.
"""
