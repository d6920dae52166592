"""Descriptions of what the shop sells, for requests that never use the shop's own words.

A word of the shop stands above four descriptions of it. The first line is for training, and the second line is held out
if the option `wordings` asks for it. Types are noun phrases. Attributes are what follows "that". Values of options are
what follows "I want".
"""

from __future__ import annotations

from palaestra.envs.worlds.shop.words import DEPARTMENTS

HALF = 2  # descriptions for training

TYPES = """
shirt
    something with buttons to wear under a suit | a top with a collar
    what goes with a tie | an upper garment with sleeves and cuffs
jacket
    something to put on over everything else when it is cold outside | a garment with a zip for walks in autumn
    a coat that ends at the hips | outerwear for a windy day
scarf
    something to wrap around my neck | a long cloth against a sore throat
    neckwear for a snowman | a knitted strip that keeps the neck covered
dress
    a one-piece garment for a bridesmaid | something that a ballerina would wear to a ball
    a gown for a summer wedding | what Cinderella wore to the prince's party
kettle
    something to boil water for tea | a vessel with a spout that whistles when it is hot
    what every tea drinker puts on first | an appliance for heating water
pan
    something to fry eggs in | a thing with a handle for pancakes
    what a cook needs to sear a steak | cookware for bacon
mug
    something to drink cocoa from | a big cup with a handle
    what I fill with coffee in the morning | a drinking vessel for a camper
bowl
    something to eat cereal from | a dish for soup
    what salad is served in | tableware for porridge
lamp
    something to read by at night | a thing that lights up the room
    what Aladdin rubbed, but electric | a source of rays for my bedside
speaker
    something that plays music loudly | a box that sound comes out of
    what a DJ plugs the mixer into | a device to hear podcasts with
camera
    something to take pictures with | a device that records my holidays
    what a photographer looks through | equipment for snapping portraits
clock
    something that shows the hour | a thing that wakes me at seven
    what hangs in a station to tell travelers if they are late | a timepiece for the hall
chair
    something with a back to sit on | a seat for one at the dinner table
    what one rests on while eating | furniture for sitting upright
desk
    something to write letters at | a table for my computer
    where a pupil does homework | a work surface with room for the knees
shelf
    something to put books on | a board on the wall for my novels
    where a librarian stores things | storage for vases and albums
stool
    something to sit on that has no back | a seat for a bar
    what a pianist sits on | a backless perch for the studio
"""
ATTRIBUTES = """
cotton
    is made from a plant with fluffy bolls | is of the cloth that jeans are woven from
    comes from fields in Egypt, not from an animal or a factory | is of the fiber in swabs and T-shirts
woolen
    is made from the fleece of sheep | is of yarn from lambs
    comes from shorn flocks | is of what knitters get from merinos
striped
    has lines of two shades like a zebra | has bands across it
    is patterned like a barber's pole | looks like a prisoner's clothes in old films
soft
    is gentle on the skin | feels like a kitten
    does not scratch at all | is as pleasant to touch as a rabbit
slim
    follows the lines of the body | is cut for a lean figure
    is anything but baggy | fits tightly
warm
    is right for January in Canada | keeps the cold out
    will not let me freeze | is meant for frosty days
washable
    can go into the machine after a spill | may be cleaned at home with water
    survives the laundry | does not need a dry cleaner
lined
    has a second layer of cloth on the inside | has silk sewn in behind the outer fabric
    is finished inside with another fabric | hides its seams under an inner layer
steel
    is made of a metal that does not rust | is of the same alloy as surgical tools
    is built from iron and carbon | is of what skyscrapers are framed with
glazed
    has a glassy coat from the kiln | shines because it was fired with enamel
    was coated and fired by the potter | has the gloss of fired ceramics
light
    weighs next to nothing | is easy to lift with one finger
    would not burden a hiker | is the opposite of heavy
stackable
    can be piled up to save room | fits one into the other in the cupboard
    can be built into a tower in the cupboard | sits neatly on top of its copies
insulated
    has a double wall so that the outside stays cool | holds its temperature for hours
    works like a thermos | does not let heat escape
nonstick
    lets food slide right off | has a surface to which nothing clings
    needs no fat to release an omelet | never has burnt bits to scrape off
handmade
    was crafted by a person and not by a machine | comes from an artisan's workshop
    is no factory product | was shaped by a craftsman
deep
    holds a lot because its sides are high | is not shallow
    has a bottom far below the rim | has tall walls
wireless
    works without a cable | needs no cord
    connects through the air | does not tie me to a socket
portable
    is easy to carry along | can travel with me
    goes anywhere in a bag | is meant to be taken on trips
bright
    gives a strong glow | can be seen from far away
    nearly dazzles | shines powerfully
quiet
    makes hardly any noise | does not disturb a sleeping baby
    cannot be heard from the next room | is as silent as a library
waterproof
    survives a fall into the pool | can be used in the rain
    does not mind getting wet | keeps working under the shower
foldable
    can be bent together after use | collapses to half its area
    closes up like a book | doubles over to fit a drawer
smart
    obeys an app on my phone | learns my habits by itself
    talks to my other devices | can be told what to do by voice
compact
    takes up very little room | is tiny for its kind
    fits in a crowded corner | is no bigger than it must be
wooden
    is made from oak or beech | comes from a tree
    was built by a carpenter from planks | is of timber
padded
    is cushioned | has foam under the cover
    is upholstered for comfort | gives way nicely under one's weight
folding
    can be collapsed and put away | can be made thin when guests have left
    has hinges to fit behind the sofa | can be tucked behind a door after use
sturdy
    does not wobble under a heavy load | is built to last
    could carry an elephant | will not break soon
adjustable
    can be set higher or lower | changes its height
    suits tall and short people alike | can be set to any position
low
    is close to the floor | does not reach my knee
    stands far below the usual height | is the opposite of tall
carved
    is decorated with cut patterns | has ornaments chiseled into it
    shows flowers cut with a knife | bears a sculptor's relief
narrow
    is not wide | fits into a gap of a foot
    takes up little width | squeezes between two walls
"""
OPTIONS = """
small
    the tiniest size there is | the size for a petite person
    the lowest of the three sizes | the one for someone who finds most things too big
medium
    the size in the middle | the size between the extremes
    neither the least nor the greatest size | the average fit
large
    the biggest size there is | the size for a giant
    the roomiest fit | the one for a basketball player
red
    the color of blood | the color of ripe tomatoes
    the shade of a fire engine | the color of a stop sign
blue
    the color of a clear sky | the color of the sea on a map
    the shade of sapphires | the color of faded jeans
green
    the color of grass | the color of emeralds
    the shade of spinach | the color that means go
black
    the color of coal | the color of midnight
    the shade of ravens | the color that mourners wear
white
    the color of snow | the color of milk
    the shade of chalk | the color that brides wear
yellow
    the color of lemons | the color of sunflowers
    the shade of ripe bananas | the color of an egg's middle
silver
    the color of a coin | the color of the second medal
    the shade of a new mirror | the metallic color of moonlight
brown
    the color of chocolate | the color of a bear in the forest
    the shade of roasted coffee | the color of chestnuts
gray
    the color of ashes | the color of an elephant
    the shade of rain clouds | the color of concrete
single
    just one piece | one of it and no more
    it by itself, for a person who lives alone | no set at all, only an item
pair
    two of it | one for each of the twins
    a set for a couple | exactly twice one
dozen
    twelve of it | as many as there are months in a year
    enough for a jury | a set of six and six
round
    a plug that is a circle | a plug without corners
    a plug shaped like a coin | a plug with the outline of a ball
flat
    a plug as thin as a sheet | a plug that lies level against the wall
    a plug that fits behind a cupboard | a plug without any bulk
usb
    a plug for the port of my computer | a plug that charges from a laptop
    a plug for the universal serial bus | a plug like that of a memory stick
matte
    a surface that does not shine | a dull surface
    a surface without reflections | a surface like blackboards have
glossy
    a surface that shines | a polished surface
    a surface like a mirror | a surface that gleams
natural
    an untreated surface | a surface as it grew
    a surface without any paint or varnish | a surface left raw
"""


def _read(table: str) -> dict[str, tuple[str, ...]]:
    lines = table.strip().splitlines()
    return {
        word: tuple(text.strip() for line in (first, second) for text in line.split("|"))
        for word, first, second in zip(lines[::3], lines[1::3], lines[2::3], strict=True)
    }


DESCRIPTIONS: dict[str, tuple[str, ...]] = _read(TYPES) | _read(ATTRIBUTES) | _read(OPTIONS)
SHOP_WORDS = frozenset(
    word
    for shelf in DEPARTMENTS.values()
    for word in (*shelf.types, *shelf.attributes, *(value for values in shelf.options.values() for value in values))
)
