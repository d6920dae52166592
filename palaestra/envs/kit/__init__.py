"""What environments are built with: tasks and panels, one agent, borrowed random state."""
