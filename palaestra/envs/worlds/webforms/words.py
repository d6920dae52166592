"""The words of sites: keys of controls, their labels on renamed sites, and their values."""

from __future__ import annotations

# Key in the instruction → label on a renamed site.
FIELDS = {
    "name": "person",
    "city": "town",
    "mail": "address",
    "phone": "number",
    "street": "road",
    "job": "work",
    "food": "meal",
    "pet": "animal",
    "day": "date",
    "land": "country",
    "user": "account",
    "password": "secret",
}
SWITCHES = {
    "news": "letters",
    "gift": "present",
    "alarm": "alert",
    "sound": "audio",
    "map": "chart",
    "night": "dark",
    "rush": "express",
    "share": "public",
}
GROUPS = {
    "size": "format",
    "color": "shade",
    "pay": "billing",
    "seat": "place",
    "speed": "pace",
    "taste": "flavor",
}
OPTIONS = {
    "size": ("small", "medium", "large"),
    "color": ("red", "green", "blue"),
    "pay": ("cash", "card", "bank"),
    "seat": ("front", "middle", "back"),
    "speed": ("slow", "normal", "fast"),
    "taste": ("sweet", "salty", "sour"),
}
VALUES = {
    "name": ("ada", "bob", "eve", "ivan", "mia", "otto", "sara", "tom"),
    "city": ("bonn", "cairo", "lima", "oslo", "paris", "quito", "rome", "seoul"),
    "mail": ("a@x", "b@x", "c@x", "d@x", "e@y", "f@y", "g@y", "h@y"),
    "phone": ("112", "237", "341", "458", "563", "679", "784", "895"),
    "street": ("ash", "birch", "elm", "fir", "lime", "oak", "pine", "plum"),
    "job": ("baker", "clerk", "doctor", "farmer", "judge", "nurse", "pilot", "smith"),
    "food": ("beans", "bread", "corn", "fish", "pasta", "rice", "soup", "stew"),
    "pet": ("bird", "cat", "dog", "goat", "horse", "mouse", "pig", "snake"),
    "day": ("friday", "monday", "saturday", "sunday", "thursday", "today", "tuesday", "wednesday"),
    "land": ("chad", "chile", "cuba", "egypt", "iran", "japan", "kenya", "peru"),
    "user": ("ada", "bob", "eve", "ivan", "mia", "otto", "sara", "tom"),
    "password": ("k2", "m7", "p4", "q9", "r3", "t8", "v5", "w6"),
}
ADJECTIVES = ("blue", "cheap", "green", "heavy", "large", "old", "red", "round", "small", "soft")
THINGS = ("bag", "bike", "book", "chair", "clock", "cup", "desk", "hat", "knife", "lamp")
FACTS = {"price": "cost", "weight": "mass", "stock": "supply", "code": "label"}
COOKIES = ("accept", "refuse")
TEXTS = ("about us", "contact", "help", "offers", "terms", "welcome", "privacy", "imprint")
