"""What environments are built with: tasks and panels, states, step results, choices, words, refused options."""
