"""ERA's online stage, turn-level GAE. Episodes of many turns with long responses, where the environment can tell
progress.
"""
