"""The words of the generated worlds: domains, their tables, columns and values.

Every concept (the word a question uses) has two or three column names, so that an agent
cannot know the name before it has described the table.
"""

from __future__ import annotations

from dataclasses import dataclass

TEXT, NUMBER = "TEXT", "INTEGER"


@dataclass(frozen=True)
class Column:
    """A concept, the names it may have in a schema, and where its values come from."""

    concept: str
    names: tuple[str, ...]
    values: tuple[str, ...] = ()
    """Of a text column."""
    low: int = 0
    high: int = 0
    """Range of a number column."""
    type: str = TEXT


@dataclass(frozen=True)
class Table:
    """A kind of thing: its word, its plural, table names and columns (keys are added)."""

    word: str
    plural: str
    names: tuple[str, ...]
    columns: tuple[Column, ...]
    labels: tuple[str, ...] = ()
    """Names that single rows may carry (parent tables)."""


@dataclass(frozen=True)
class Domain:
    """Rows of ``child`` point to rows of ``parent``; ``extra`` is a table nobody needs."""

    name: str
    child: Table
    parent: Table
    extra: Table


def _text(concept: str, names: str, values: str) -> Column:
    return Column(concept, tuple(names.split()), tuple(values.split()))


def _number(concept: str, names: str, low: int, high: int, *, real: bool = False) -> Column:
    kind = "REAL" if real else NUMBER
    return Column(concept, tuple(names.split()), low=low, high=high, type=kind)


def _table(words: str, names: str, *columns: Column, labels: str = "") -> Table:
    word, plural = words.split()
    return Table(word, plural, tuple(names.split()), columns, tuple(labels.split()))


PEOPLE = (
    "Ada Ben Carla David Emma Felix Grace Hugo Ines Jonas Karin Leo Mara Nina Oscar Paula "
    "Ruth Simon Tara Victor Wanda Yusuf Zoe Anton"
)
BRANDS = (
    "Atlas Nova Orion Delta Vega Lotus Falcon Comet Aurora Titan Zenith Coral Ember Summit "
    "Harbor Cedar Pioneer Mercury Phoenix Juniper"
)
CITIES = "Rome Paris Oslo Lima Cairo Tokyo Madrid Vienna Dublin Boston"
COUNTRIES = "Italy France Norway Peru Egypt Japan Spain Austria Ireland Canada"
_CITY = _text("city", "city home_city town", CITIES)
_COUNTRY = _text("country", "country nation home_country", COUNTRIES)

# fmt: off
DOMAINS: tuple[Domain, ...] = (
    Domain(
        "shop",
        _table(
            "order orders", "orders order_list sales",
            _text("status", "status order_status state", "shipped open paid returned lost"),
            _text("channel", "channel sales_channel source", "web phone store agent"),
            _number("price", "price unit_price price_per_unit", 10, 99, real=True),
            _number("quantity", "quantity units item_count", 1, 40),
        ),
        _table(
            "customer customers", "customers customer_list buyers",
            _CITY,
            _text("segment", "segment customer_segment group_name", "retail business school home"),
            labels=PEOPLE,
        ),
        _table(
            "supplier suppliers", "suppliers vendors",
            _text("region", "region area", "north south east west"),
        ),
    ),
    Domain(
        "company",
        _table(
            "employee employees", "employees staff workers",
            _text("role", "role job_title position", "clerk engineer analyst driver manager"),
            _text("shift", "shift work_shift shift_name", "day night late early"),
            _number("salary", "salary pay monthly_salary", 20, 95),
            _number("age", "age age_years years_old", 20, 65),
        ),
        _table(
            "department departments", "departments units_list divisions",
            _text("floor", "floor floor_name level", "ground first second third fourth"),
            _text("site", "site location office_site", "Rome Oslo Lima Cairo Vienna"),
            labels=BRANDS,
        ),
        _table(
            "project projects", "projects project_list",
            _text("phase", "phase stage", "draft test final"),
        ),
    ),
    Domain(
        "library",
        _table(
            "book books", "books book_list titles",
            _text("genre", "genre book_genre category", "crime poetry history travel drama"),
            _text("language", "language text_language lang", "English French German Spanish"),
            _number("pages", "pages page_count num_pages", 80, 600),
            _number("copies", "copies copy_count copies_owned", 1, 30),
        ),
        _table(
            "author authors", "authors writers author_list",
            _COUNTRY,
            _text("style", "style writing_style manner", "modern classic plain ornate"),
            labels=PEOPLE,
        ),
        _table(
            "publisher publishers", "publishers presses",
            _text("market", "market target_market", "local global online"),
        ),
    ),
    Domain(
        "airline",
        _table(
            "flight flights", "flights flight_list departures",
            _text("carrier", "carrier airline_code operator", "Swift Condor Polar Zephyr"),
            _text("gate", "gate gate_name boarding_gate", "amber violet silver indigo"),
            _number("distance", "distance distance_km length_km", 100, 950),
            _number("delay", "delay delay_minutes minutes_late", 1, 90),
        ),
        _table(
            "airport airports", "airports airport_list hubs",
            _text("climate", "climate climate_zone weather", "dry humid cold mild tropical"),
            _text("size", "size airport_size size_class", "small medium large huge"),
            labels=BRANDS,
        ),
        _table(
            "pilot pilots", "pilots crew",
            _text("rank", "rank pilot_rank", "captain cadet officer"),
        ),
    ),
    Domain(
        "clinic",
        _table(
            "visit visits", "visits visit_list appointments",
            _text("reason", "reason visit_reason purpose", "fever checkup injury cough allergy"),
            _text("outcome", "outcome visit_outcome result_code",
                  "cured referred admitted waiting"),
            _number("fee", "fee visit_fee fee_paid", 15, 99, real=True),
            _number("minutes", "minutes duration duration_minutes", 5, 60),
        ),
        _table(
            "doctor doctors", "doctors physicians doctor_list",
            _text("specialty", "specialty field medical_field", "heart skin bone eye brain"),
            _text("ward", "ward ward_name wing", "north south east west"),
            labels=PEOPLE,
        ),
        _table(
            "medicine medicines", "medicines drugs",
            _text("form", "form drug_form", "pill syrup cream"),
        ),
    ),
    Domain(
        "school",
        _table(
            "course courses", "courses course_list classes",
            _text("subject", "subject subject_name topic", "math physics music art biology"),
            _text("term", "term term_name semester", "spring summer autumn winter"),
            _number("seats", "seats seat_count capacity", 10, 60),
            _number("credits", "credits credit_points points", 1, 12),
        ),
        _table(
            "teacher teachers", "teachers tutors teacher_list",
            _text("title", "title academic_title degree", "master doctor bachelor professor"),
            _text("building", "building building_name house", "Oak Elm Pine Maple Birch"),
            labels=PEOPLE,
        ),
        _table(
            "club clubs", "clubs groups",
            _text("activity", "activity club_activity", "chess debate theatre"),
        ),
    ),
    Domain(
        "music",
        _table(
            "song songs", "songs tracks song_list",
            _text("mood", "mood song_mood feeling", "happy sad calm wild tender"),
            _text("format", "format file_format media", "vinyl tape digital disc"),
            _number("seconds", "seconds length_seconds track_length", 90, 400),
            _number("plays", "plays play_count times_played", 5, 99),
        ),
        _table(
            "artist artists", "artists singers artist_list",
            _COUNTRY,
            _text("instrument", "instrument main_instrument plays_on", "guitar piano violin drums"),
            labels=PEOPLE,
        ),
        _table(
            "label labels", "labels record_labels",
            _text("owner", "owner label_owner", "private public family"),
        ),
    ),
    Domain(
        "farm",
        _table(
            "animal animals", "animals herd livestock",
            _text("species", "species animal_species kind", "cow sheep goat horse pig"),
            _text("color", "color coat_color colour", "black white brown grey"),
            _number("weight", "weight weight_kg body_weight", 20, 700),
            _number("milk", "milk milk_liters daily_milk", 1, 40),
        ),
        _table(
            "owner owners", "owners farmers owner_list",
            _text("village", "village village_name hamlet", "Ashton Belford Corby Dalton Elford"),
            _text("soil", "soil soil_type ground", "clay sand loam peat"),
            labels=PEOPLE,
        ),
        _table(
            "field fields", "fields plots",
            _text("crop", "crop main_crop", "wheat barley maize"),
        ),
    ),
    Domain(
        "garage",
        _table(
            "repair repairs", "repairs repair_jobs jobs",
            _text("part", "part part_name component", "brake engine clutch mirror tyre"),
            _text("priority", "priority priority_level urgency", "low normal high urgent"),
            _number("cost", "cost repair_cost total_cost", 20, 99, real=True),
            _number("hours", "hours work_hours hours_spent", 1, 30),
        ),
        _table(
            "car cars", "cars vehicles car_list",
            _text("fuel", "fuel fuel_type energy", "petrol diesel electric hybrid gas"),
            _text("brand", "brand car_brand maker", "Fjord Lynx Kestrel Bison"),
            labels=BRANDS,
        ),
        _table(
            "mechanic mechanics", "mechanics fitters",
            _text("skill", "skill skill_level", "junior senior expert"),
        ),
    ),
    Domain(
        "hotel",
        _table(
            "booking bookings", "bookings reservations booking_list",
            _text("room", "room room_type kind_of_room", "single double suite family studio"),
            _text("meal", "meal meal_plan board", "breakfast dinner full none"),
            _number("rate", "rate nightly_rate room_rate", 40, 99, real=True),
            _number("nights", "nights night_count nights_booked", 1, 30),
        ),
        _table(
            "guest guests", "guests visitors guest_list",
            _text("nation", "nation nationality home_nation", COUNTRIES),
            _text("tier", "tier member_tier loyalty_tier", "bronze silver gold basic"),
            labels=PEOPLE,
        ),
        _table(
            "service services", "services extras",
            _text("time", "time service_time", "morning noon evening"),
        ),
    ),
    Domain(
        "bank",
        _table(
            "account accounts", "accounts account_list bank_accounts",
            _text("type", "type account_type product", "savings checking deposit loan credit"),
            _text("currency", "currency currency_name money", "euro dollar yen pound"),
            _number("balance", "balance current_balance amount", 10, 950),
            _number("limit", "limit_value overdraft_limit max_limit", 5, 90),
        ),
        _table(
            "client clients", "clients account_holders client_list",
            _text("branch", "branch branch_name home_branch", "central harbor market station park"),
            _text("risk", "risk risk_class risk_level", "low medium high unknown"),
            labels=PEOPLE,
        ),
        _table(
            "advisor advisors", "advisors consultants",
            _text("team", "team team_name", "red blue green"),
        ),
    ),
    Domain(
        "sport",
        _table(
            "player players", "players squad player_list",
            _text("position", "position field_position playing_position",
                  "keeper defender winger striker"),
            _text("foot", "foot strong_foot preferred_foot", "left right both"),
            _number("goals", "goals goals_scored goal_count", 1, 60),
            _number("height", "height height_cm body_height", 150, 210),
        ),
        _table(
            "team teams", "teams sport_clubs team_list",
            _text("league", "league league_name division", "premier regional national youth"),
            _text("sponsor", "sponsor main_sponsor backer", "Apex Bolt Crest Drift Echo"),
            labels=BRANDS,
        ),
        _table(
            "stadium stadiums", "stadiums arenas",
            _text("surface", "surface pitch_surface", "grass turf sand"),
        ),
    ),
)
# fmt: on
"""All domains. Words are simple on purpose: one word a concept, one word a value."""

BY_NAME = {domain.name: domain for domain in DOMAINS}
