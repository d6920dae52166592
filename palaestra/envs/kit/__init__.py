"""Building blocks of environments: tasks and panels, states, step results, choices, words, checks of options."""
