"""Names of symptoms and diseases, plain and invented, and where in the body symptoms are felt. Knows words only."""

from __future__ import annotations

SYMPTOMS = (
    "cough", "wheeze", "breathlessness", "palpitations", "tightness",
    "hoarseness", "hiccups", "sputum", "snoring", "sighing",
    "headache", "dizziness", "earache", "tinnitus", "toothache",
    "nosebleed", "sneezing", "squinting", "floaters", "stiffness",
    "nausea", "vomiting", "bloating", "heartburn", "cramps",
    "diarrhea", "constipation", "thirst", "hunger", "burping",
    "rash", "itching", "blisters", "bruising", "pallor",
    "sweating", "flushing", "dryness", "swelling", "peeling",
    "fever", "chills", "fatigue", "insomnia", "weakness",
    "tremor", "fainting", "weightloss", "sleepiness", "shivering",
    "backache", "limping", "numbness", "tingling", "clumsiness",
    "twitching", "soreness", "clicking", "bowlegs", "kneeache",
)  # fmt: skip
AREAS = ("chest", "head", "belly", "skin", "whole body", "limbs")  # ten symptoms each, in this order
DISEASES = (
    "arvosis", "beltria", "cordenza", "dulmia", "estrix", "fenolia", "gravula", "hespera", "ilvitis", "jornea",
    "kelmosis", "lintrax", "morvia", "nesticula", "orbenza", "palvitis", "quenria", "rostula", "silmosis", "tarvea",
    "ulmitis", "ventria", "wexula", "xanthea", "yorvitis", "zelmia", "brontula", "corvexia", "drestia", "elvosis",
)  # fmt: skip
_HEADS = ("ba", "de", "fi", "go", "ku", "la", "me", "ni", "po", "ru")
_TAILS = ("dax", "fep", "gip", "lom", "nup", "zor")
INVENTED = tuple(head + tail for tail in _TAILS for head in _HEADS)  # as many as there are symptoms
PER_AREA = 10


def area(symptom: int, symptoms: int) -> str:
    """Where a symptom is felt, if the first so many of all are in use, spread evenly over the areas."""
    return AREAS[place(symptom, symptoms) // PER_AREA]


def place(symptom: int, symptoms: int) -> int:
    """Which of all names a symptom has: those in use are taken from all areas alike."""
    return symptom * len(SYMPTOMS) // symptoms
