"""Clinic: a doctor questions a patient and names the disease. `world.py` has the environment."""
