"""Wording: other words for the same desk, so that nothing can be known from what words usually mean.

Knows one list of words and their counterparts. Texts are translated on their way out and back on their way in.
"""

from __future__ import annotations

import re

from palaestra.envs.kit.words import Vocabulary

WORD = re.compile(r"[A-Za-z_]+")
OTHER = {
    "authenticate": "unlock",
    "get_order": "view_parcel",
    "get_payment": "view_bill",
    "get_item": "view_thing",
    "get_plan": "view_deal",
    "get_delivery": "view_trip",
    "cancel_order": "revoke_parcel",
    "change_address": "move_parcel",
    "wrap_order": "bow_parcel",
    "refund_order": "repay_parcel",
    "change_method": "swap_method",
    "exchange_item": "swap_thing",
    "change_plan": "swap_deal",
    "pause_plan": "rest_deal",
    "change_day": "swap_day",
    "change_carrier": "swap_carrier",
    "order_status": "parcel_state",
    "order_cost": "parcel_cost",
    "refuse": "decline",
    "transfer": "forward",
    "order": "parcel",
    "orders": "parcels",
    "code": "pin",
    "status": "state",
    "tier": "level",
    "gold": "prime",
    "plain": "normal",
    "pending": "waiting",
    "shipped": "sent",
    "cancel": "revoke",
    "tell": "state_that",
    "ask": "query",
    "refused": "declined",
    "transferred": "forwarded",
}
WORDS = Vocabulary(OTHER)


def outward(text: str) -> str:
    """The text as an agent reads it in the other wording."""
    return WORD.sub(lambda found: WORDS.say(found[0]), text)


def inward(text: str) -> str:
    """What an agent means that writes in the other wording; the usual words mean nothing here."""
    return WORD.sub(lambda found: WORDS.meant.get(found[0].lower(), found[0]), text)
