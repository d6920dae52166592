"""Puzzles on grids of signs: Frozen Lake, Sokoban, Minesweeper. `world` has the environment."""
