"""Evaluation: panels, statistics, comparisons, plots and the report. This package file imports none of them."""
