"""Starts runs as processes: the arms of a comparison."""
