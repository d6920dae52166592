"""Other words for the same desk, so that a model cannot use what it knows about the usual ones.

What the agent reads is translated into the other words, and what it writes is translated back.
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
    """A text of the desk in the other words, as the agent reads it."""
    return WORD.sub(lambda found: WORDS.say(found[0]), text)


def inward(text: str) -> str:
    """A text of the agent, translated back. Usual words that have a replacement become unknown."""
    return WORD.sub(lambda found: WORDS.meant.get(found[0].lower(), found[0]), text)
