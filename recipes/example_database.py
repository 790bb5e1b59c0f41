"""Writes a small SQLite file to ask questions about: a cinema's films and screenings.

    python recipes/example_database.py cinema.db
    aac chat recipes/laptop.yaml --actor runs/laptop/rl --database cinema.db

No domain of the training data is about films, so the names are new to the agent.
"""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

FILMS = [
    (1, "Northern Lights", "drama", "Norway", 124),
    (2, "The Clockmaker", "thriller", "Austria", 98),
    (3, "Salt and Honey", "comedy", "Italy", 105),
    (4, "Paper Boats", "drama", "Japan", 117),
    (5, "Midnight Bakery", "comedy", "France", 92),
]
SCREENINGS = [
    (1, 1, "Red", "evening", 82, 11.0),
    (2, 3, "Blue", "afternoon", 40, 8.5),
    (3, 2, "Red", "evening", 75, 11.0),
    (4, 5, "Green", "afternoon", 33, 8.5),
    (5, 3, "Red", "evening", 96, 12.0),
    (6, 4, "Blue", "evening", 51, 10.5),
    (7, 1, "Green", "morning", 18, 6.0),
    (8, 2, "Blue", "evening", 64, 10.5),
    (9, 5, "Red", "evening", 88, 12.0),
    (10, 3, "Green", "morning", 22, 6.5),
    (11, 4, "Blue", "afternoon", 29, 8.0),
    (12, 1, "Red", "evening", 91, 11.5),
]


def write(path: Path) -> None:
    """Create the file. FileExistsError if there is one: nothing of a person's is overwritten."""
    if path.exists():
        raise FileExistsError(f"{path} is there already; give another name")
    connection = sqlite3.connect(path)
    connection.execute(
        "CREATE TABLE films (film_id INTEGER, title TEXT, genre TEXT, country TEXT, "
        "minutes INTEGER)"
    )
    connection.execute(
        "CREATE TABLE screenings (screening_id INTEGER, film_id INTEGER, hall TEXT, slot TEXT, "
        "visitors INTEGER, ticket_price REAL)"
    )
    connection.executemany("INSERT INTO films VALUES (?, ?, ?, ?, ?)", FILMS)
    connection.executemany("INSERT INTO screenings VALUES (?, ?, ?, ?, ?, ?)", SCREENINGS)
    connection.commit()
    connection.close()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python recipes/example_database.py FILE.db")
    try:
        write(Path(sys.argv[1]))
    except (FileExistsError, sqlite3.Error) as error:
        sys.exit(str(error))
    print(f"{sys.argv[1]}: films and screenings; ask, say, how many screenings have hall Red.")
