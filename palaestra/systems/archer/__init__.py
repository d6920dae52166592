"""ArCHer. Episodes are expensive and updates cheap: old episodes are used again and again."""
