"""Puzzles on grids of signs: Frozen Lake, Sokoban and Minesweeper. `world` has the environment."""
