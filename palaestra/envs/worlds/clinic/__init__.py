"""Clinic: question a patient, look things up, name the disease. `world` has the environment."""
