"""What a patient says in free words: complaints, answers, and remarks about other people that mean nothing.

A symptom stands before two complaints. The first one is for training, and the second one is held out if the option
`wordings` asks for it. Answers and remarks are divided in the same way.
"""

from __future__ import annotations

import random

from palaestra.data import derive

COMPLAINTS = """
cough | I bark all night and my ribs ache from it | air bursts out of my throat every few minutes
wheeze | my breath whistles like a flute | there is a squeak whenever I breathe out
breathlessness | two stairs and I have to gasp | I cannot get enough air
palpitations | my heart stumbles and races | it thumps in here like a drum out of step
tightness | it is as if a belt were pulled around my ribs | something presses on my breastbone
hoarseness | I can only croak today | my voice is rough as gravel
hiccups | I have jumped with a hic since lunch | my diaphragm jerks every ten seconds
sputum | I bring up slime every morning | yellow stuff comes up when I clear my throat
snoring | my wife says I saw wood at night | I rattle so loudly in bed that I wake up
sighing | I let out long breaths all day without a reason | I keep drawing a deep one and letting it go
headache | my temples are pounding | there is a hammer behind my forehead
dizziness | the room spins around me | I feel like on a ship
earache | there is a stabbing deep in my ear | I cannot lie on my left ear for the pain
tinnitus | there is a ringing that nobody else hears | I hear a beep all the time
toothache | one of my molars is throbbing | I cannot bite on the right side, it hurts so
nosebleed | my handkerchief is full of blood from my nostrils | it drips red from above my lip
sneezing | achoo, ten times in a row | my nose explodes all day
squinting | I pinch my eyes half shut to see anything | I can only read with narrowed lids
floaters | little flies swim through what I see | dark specks drift before my eyes
stiffness | I cannot turn my neck | my head will not move to the side
nausea | I feel like throwing up | my stomach turns at the smell of food
vomiting | nothing stays down, it all came up again | I hung over the toilet all night and emptied myself
bloating | I am blown up like a balloon | my trousers do not close after lunch
heartburn | acid rises up behind my breastbone | it is on fire inside after coffee
cramps | my belly clenches in waves | it knots itself together down there
diarrhea | I run to the toilet every hour | what comes out is like water
constipation | I have not been able to go for five days | nothing comes out, however hard I press
thirst | I drink six liters and still want more | my mouth begs for water
hunger | I could eat a horse an hour after dinner | my stomach growls all day long
burping | air comes up from my stomach after every bite | I belch through every meeting
rash | there are red spots all over my arms | my back is covered with blotches
itching | I scratch myself raw | it tickles so that I cannot keep my nails away
blisters | bubbles with water have come up on my hands | there are little pillows of fluid on my heels
bruising | I am blue and green although I bumped into nothing | every touch leaves a purple mark
pallor | people say that I am white as a sheet | there is no color in my face
sweating | my shirt is soaked at rest | drops run down my back all day
flushing | my cheeks suddenly turn hot and red | a red wave rises up my neck
dryness | my hands crack like old leather | everything flakes and feels like paper
swelling | my ankles are twice as thick | my ring does not come off any more
peeling | it comes off in sheets as after a sunburn | I shed like a snake
fever | the thermometer showed thirty-nine | my forehead glows
chills | my teeth chatter under three blankets | cold shudders run through me
fatigue | I could sleep all day and am still worn out | I have no energy left at all
insomnia | I lie awake until four | I have not closed an eye for nights
weakness | I cannot even open a jar | my legs give way
tremor | my hands shake when I hold a cup | my fingers will not keep still
fainting | everything went black and I woke up on the floor | I passed out in the bus
weightloss | I am ten kilos lighter without a diet | my belt needs new holes, though I eat
sleepiness | I nod off at the wheel | my eyes fall shut at noon
shivering | I quake all over | my whole body trembles as in snow
backache | I cannot bend down to tie my shoes | my spine hurts when I get up
limping | I drag one leg | I walk unevenly since Sunday
numbness | I feel nothing in my toes | my hand has gone dead
tingling | ants crawl up my arms | it prickles down to my fingertips
clumsiness | I drop everything I hold | I bump into every door
twitching | my calf jumps by itself | a muscle in my arm flickers
soreness | I ache as after a marathon | every muscle hurts when touched
clicking | my knee snaps at every step | there is a crack whenever I bend my elbow
bowlegs | my legs curve outward like a cowboy's | there is a gap between my knees when I stand
kneeache | climbing stairs hurts below the thigh | kneeling down is torture
"""
YES = (
    ("Now that you say it, I do.", "Indeed, since last week.", "I am afraid so.", "That bothers me a lot."),
    ("Oh, badly.", "It has been like that for days.", "You have guessed it.", "All the time."),
)
NO = (
    ("Not that I noticed.", "Luckily I do not.", "I am spared that.", "Nothing of the kind."),
    (
        "Never in my life.",
        "That part is fine.",
        "You can cross that out.",
        "I wish you would ask about something else.",
    ),
)
REMARKS = (
    ("My neighbor tells me about himself: {}.", "My daughter had something else last year. She said: {}."),
    ("In a film I heard somebody complain: {}.", "My boss is ill, not me. He says: {}."),
)


def _read(table: str) -> dict[str, tuple[str, str]]:
    rows = [[cell.strip() for cell in line.split("|")] for line in table.strip().splitlines()]
    return {word: (first, second) for word, first, second in rows}


TOLD: dict[str, tuple[str, str]] = _read(COMPLAINTS)


class Talk:
    """The words of one patient, drawn by the seed.

    Args:
        half: 0: the words for training. 1: the held-out ones. None: all of them.
    """

    def __init__(self, seed: int, half: int | None) -> None:
        self._seed, self._halves = seed, (0, 1) if half is None else (half,)

    def complaint(self, symptom: str, other: str) -> str:
        """What the patient says first: its own symptom, and that of somebody else, which means nothing."""
        draw = random.Random(derive(self._seed, "complaint"))
        own = TOLD[symptom][draw.choice(self._halves)]
        remark = draw.choice([one for half in self._halves for one in REMARKS[half]])
        said = [f"Doctor, {own}.", remark.format(TOLD[other][draw.choice(self._halves)])]
        draw.shuffle(said)
        return " ".join(said)

    def answer(self, symptom: int, *, yes: bool) -> str:
        """The answer to a question. It never contains yes or no, and is the same whenever the question is repeated."""
        draw = random.Random(derive(self._seed, "answer", symptom))
        return draw.choice([one for half in self._halves for one in (YES if yes else NO)[half]])
