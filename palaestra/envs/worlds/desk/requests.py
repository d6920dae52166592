"""What customers say they want in everyday English, without the words of the tools.

A kind of request stands before four sentences. The first two are for training, and the last two are held out with
`request: held_out`.
"""

from __future__ import annotations

import random
from typing import Literal

from palaestra.data import derive

HowAsked = Literal["names", "described", "held_out"]
HALF = 2  # sentences for training

SAID = """
order_status
    Has my parcel left your warehouse yet? | I wonder how far my things have come.
    Is it still with you, or under way? | Nobody tells me what has become of what I bought.
cancel_order
    I do not need what I bought any more, so keep it. | Forget about my purchase.
    I have found it cheaper elsewhere and no longer want it from you. | Please never send my things.
change_address
    I am moving, and my things must not end up in front of the old door. | My parcel should go to another house.
    Send it to where I live now, not to where I lived. | Nobody is at home there: bring it somewhere else.
wrap_order
    It is a birthday present, so make it look like one. | I would love paper and a bow around it.
    Please pack it so that my wife cannot see what is inside. | It goes under the Christmas tree: make it pretty.
order_cost
    How much have you taken from me for it? | I have lost the bill and need the sum.
    What was the figure on the invoice? | My bookkeeper asks how many dollars it was.
refund_order
    I am not happy and want my money back. | Return what I have paid.
    You owe me the full sum for this one. | It came broken, so give me back my dollars.
change_method
    My bank has closed, so I must settle the bill in another way. | Please do not charge that card.
    I would rather have the sum taken from somewhere else. | Let me settle what I owe differently.
exchange_item
    I have picked the wrong thing and need another one in its place. | It is not what I meant: send me something else.
    Swap what is in the box. | Could I have a different product instead?
change_plan
    My membership does not suit me any more: I need another one. | Put me on a different subscription.
    I would like to have other terms as a member. | Can I switch to another membership?
pause_plan
    I am abroad for months and do not need my membership then. | Put my subscription on hold.
    Freeze what I have with you as a member for a while. | No service and no bills for me until I am back, please.
change_day
    I am away when the driver wants to come: choose another date. | It must arrive at another time of the week.
    On that date nobody can open the door. | Could the driver come sooner or later than you said?
change_carrier
    The firm that brings my parcels loses them: take another one. | I do not trust that courier.
    Let somebody else drive it to me. | A different courier should bring it.
"""


def _read(table: str) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    name = ""
    for line in table.strip().splitlines():
        if line.startswith(" "):
            found[name] = (*found[name], *(text.strip() for text in line.split("|")))
        else:
            name, found[line] = line, ()
    return found


SENTENCES: dict[str, tuple[str, ...]] = _read(SAID)


def said(kind: str, how: HowAsked, seed: int) -> str:
    """A sentence for a kind of request, drawn by the seed of the task; even seeds are of the split "train"."""
    texts, half = SENTENCES[kind], seed % 2
    chosen = texts[half * HALF : (half + 1) * HALF] if how == "held_out" else texts
    return random.Random(derive(seed, "request", kind)).choice(chosen)
