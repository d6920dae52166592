"""The words of the clinic: symptoms, plain and invented, the areas of the body where they are felt, and diseases."""

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
    """The area of the body where a symptom is felt.

    Args:
        symptom: its number among the symptoms in use, from 0.
        symptoms: how many symptoms are in use.
    """
    return AREAS[place(symptom, symptoms) // PER_AREA]


def place(symptom: int, symptoms: int) -> int:
    """The index in `SYMPTOMS` of a symptom in use. The symptoms in use are spread evenly over all areas."""
    return symptom * len(SYMPTOMS) // symptoms
