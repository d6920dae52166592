"""What a run reports of its iterations, and what stops it."""
