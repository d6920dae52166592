"""Published systems. Each folder is one line of work: its parts, overlays, golden numbers, tests and studies."""
