"""Evaluation: panels, statistics, comparisons, plots and the report. Floor 7. This file loads none of them."""
