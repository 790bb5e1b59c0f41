"""Words beyond those of the domains, for databases that only training sees.

An agent that learns from a dozen domains learns their names by heart and puts them where a new
database has others. Here are many more things and properties, none of which any domain knows.
"""

from __future__ import annotations

import random

from stages.interaction.environments.sql.lexicon import (
    BRANDS,
    NUMBER,
    PEOPLE,
    Column,
    Domain,
    Table,
)

INVENTED = "invented"

# word, plural: names of the table
_THINGS = """
boat boats: boats vessels boat_list
flower flowers: flowers blooms flower_list
lamp lamps: lamps lamp_list lanterns
shirt shirts: shirts shirt_list tops
shoe shoes: shoes footwear
film films: films movies film_list
game games: games game_list
photo photos: photos pictures snapshots
letter letters: letters letter_list mail
parcel parcels: parcels packages
bridge bridges: bridges bridge_list crossings
river rivers: rivers streams
mountain mountains: mountains summits mountain_list
island islands: islands isles
planet planets: planets planet_list
robot robots: robots machines robot_list
camera cameras: cameras camera_list
computer computers: computers laptops
cake cakes: cakes pastries
wine wines: wines wine_list bottles
tea teas: teas tea_list infusions
soup soups: soups broths
coin coins: coins coin_list
stamp stamps: stamps stamp_album
painting paintings: paintings artworks
statue statues: statues sculptures
castle castles: castles castle_list forts
garden gardens: gardens garden_list
road roads: roads streets road_list
train trains: trains rail_list
bike bikes: bikes bicycles
rocket rockets: rockets rocket_list
tool tools: tools tool_list gadgets
chair chairs: chairs stools chair_list
sofa sofas: sofas couches
ring rings: rings jewels
hat hats: hats caps hat_list
dress dresses: dresses gowns
toy toys: toys playthings
sensor sensors: sensors sensor_list detectors
server servers: servers hosts server_list
ticket tickets: tickets ticket_list
invoice invoices: invoices bills
contract contracts: contracts agreements
survey surveys: surveys polls
article articles: articles posts
message messages: messages message_log
meeting meetings: meetings gatherings
trip trips: trips journeys trip_list
museum museums: museums galleries
factory factories: factories mills factory_list
warehouse warehouses: warehouses depots
chef chefs: chefs cooks
nurse nurses: nurses nurse_list carers
lawyer lawyers: lawyers attorneys
student students: students pupils student_list
patron patrons: patrons patron_list
donor donors: donors donor_list givers
tenant tenants: tenants renters
actor actors: actors performers
wizard wizards: wizards mages wizard_list
knight knights: knights knight_list
dragon dragons: dragons beasts
bird birds: birds bird_list
insect insects: insects bugs
stone stones: stones rocks
storm storms: storms tempests
lake lakes: lakes ponds lake_list
forest forests: forests woods
cave caves: caves caverns
"""
# names of the column, the first one also the word of the question: values
_TEXTS = """
material made_of substance: wooden metallic plastic leather
shape outline shape_name: round square oval flat
taste flavor taste_name: sweet sour salty bitter
smell scent odor: fresh musty smoky floral
texture touch texture_name: smooth rough silky coarse
pattern design motif: striped dotted checked plaid
finish coating finish_name: matt glossy satin polished
condition wear condition_code: mint used worn broken
origin provenance made_in: upland abroad nearby overseas
habitat living_place habitat_name: swamp meadow reef jungle
diet food main_food: meat seeds fruit nectar
temper temperament nature: shy bold lazy fierce
rarity how_rare rarity_class: frequent scarce unique rare
era period era_name: ancient medieval colonial recent
theme main_theme motto: love war space peril
verdict opinion final_verdict: great decent poor awful
audience aimed_at readership: kids teens adults seniors
schedule timetable frequency: weekly monthly yearly hourly
weekday day_of_week weekday_name: monday tuesday friday sunday
month month_name in_month: march april june october
direction heading bearing: upward downward inward outward
heating heat_source heating_kind: coal pellets solar pump
roof roof_cover roofing: tile slate thatch tin
network connection network_name: wifi cable fiber satellite
alarm alert alarm_mode: silent loud blinking ringing
hazard danger hazard_name: toxic sharp slippery explosive
profession trade occupation: plumber tailor painter barber
hobby pastime hobby_name: fishing knitting running sailing
hair hair_color hair_tone: blond ginger hazel curly
vote ballot vote_cast: yes never maybe blank
gem gemstone gem_name: ruby opal topaz pearl
metal alloy metal_name: iron copper zinc steel
spice seasoning main_spice: pepper cumin saffron basil
topping sauce topping_name: cheese tomato honey jam
cargo freight cargo_name: timber oil sugar cotton
route path route_name: coastal scenic shortest winding
element magic element_name: fire water earth wind
weapon arms main_weapon: sword bow spear axe
kingdom realm kingdom_name: Arden Lorwyn Kesh Valdor
zone sector zone_name: alpha beta gamma omega
method technique method_name: baked fried steamed grilled
lens optics lens_name: wide macro zoom fisheye
"""
# names of the column, the first one also the word of the question: lowest and highest value
_NUMBERS = """
width width_cm breadth: 5 95
depth depth_m how_deep: 2 60
speed top_speed velocity: 20 300
volume volume_liters content_liters: 1 80
temperature temp degrees: 10 90
score score_value marks: 1 99
likes like_count thumbs_up: 5 500
followers follower_count fans: 10 900
downloads download_count times_downloaded: 20 800
windows window_count num_windows: 2 40
legs leg_count num_legs: 1 20
rent monthly_rent rent_due: 200 950
tax tax_paid levy: 5 95
discount price_cut rebate: 1 50
profit profit_made earnings: 50 900
budget funds budget_total: 100 990
weeks week_count num_weeks: 1 52
calories kcal calorie_count: 50 900
servings portions serving_count: 1 24
stock in_stock items_left: 3 200
errors error_count faults: 1 70
memory memory_gb ram: 2 64
battery battery_hours charge_hours: 1 48
altitude elevation altitude_m: 50 950
population inhabitants residents: 100 990
rainfall rain_mm wet_mm: 5 300
steps step_count num_steps: 10 400
wins win_count victories: 1 60
diameter diameter_mm across_mm: 3 90
eggs egg_count eggs_laid: 1 40
moons moon_count num_moons: 1 70
strength force strength_points: 1 80
length length_m total_length: 2 95
pixels pixel_count megapixels: 1 60
"""


def _lines(block: str) -> list[tuple[list[str], list[str]]]:
    halves = (line.split(":") for line in block.strip().splitlines())
    return [(left.split(), right.split()) for left, right in halves]


THINGS = tuple(Table(word, plural, tuple(names), ()) for (word, plural), names in _lines(_THINGS))
TEXTS = tuple(Column(names[0], tuple(names), tuple(values)) for names, values in _lines(_TEXTS))
NUMBERS = tuple(
    Column(names[0], tuple(names), low=int(low), high=int(high), type=NUMBER)
    for names, (low, high) in _lines(_NUMBERS)
)


def invented_name(rng: random.Random) -> str:
    """The name of a domain of things and properties drawn from this vocabulary."""
    return f"{INVENTED}-{rng.getrandbits(40)}"


def invented(name: str) -> Domain:
    """The domain that a name of ``invented_name`` stands for, always the same."""
    rng = random.Random(name)
    child, parent, extra = rng.sample(THINGS, 3)
    texts, numbers = rng.sample(TEXTS, 5), rng.sample(NUMBERS, 2)
    labels = tuple(rng.choice((PEOPLE, BRANDS)).split())

    def table(thing: Table, *columns: Column, labels: tuple[str, ...] = ()) -> Table:
        return Table(thing.word, thing.plural, thing.names, columns, labels)

    return Domain(
        INVENTED,
        table(child, *texts[:2], *numbers),
        table(parent, *texts[2:4], labels=labels),
        table(extra, texts[4]),
    )
