"""Evaluation: panels, statistics, comparisons, plots and the report. This file loads none of them."""
