"""The tables, and how a database of an older version becomes one of this version.

`MIGRATIONS[i]` takes a database from version i to i + 1; a new database goes through all of them,
so there is one way to make each table. A migration that has been released is never edited: a
change of the schema is a new one at the end. The version is SQLite's `user_version`; its
`application_id` tells a tilewright database from those of other programs.
"""

from __future__ import annotations

import sqlite3

APPLICATION_ID = 0x74_6C_77_72  # "tlwr"

_VERSION_1 = (
    """
    CREATE TABLE runs (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        uid TEXT NOT NULL UNIQUE,
        created REAL NOT NULL,
        program TEXT NOT NULL,
        program_digest TEXT NOT NULL,
        target TEXT NOT NULL,
        compiler TEXT NOT NULL,
        options TEXT NOT NULL,
        options_digest TEXT NOT NULL,
        seed INTEGER NOT NULL,
        status TEXT NOT NULL,
        finished REAL,
        owner TEXT NOT NULL DEFAULT ''
    )
    """,
    "CREATE INDEX runs_to_resume ON runs (program_digest, target, compiler, options_digest)",
    """
    CREATE TABLE tasks (
        id INTEGER PRIMARY KEY,
        workload_key TEXT NOT NULL,
        target TEXT NOT NULL,
        compiler TEXT NOT NULL,
        flags TEXT NOT NULL,
        workload TEXT NOT NULL,
        name TEXT NOT NULL,
        default_s REAL,
        UNIQUE (workload_key, target, compiler, flags)
    )
    """,
    """
    CREATE TABLE trials (
        id INTEGER PRIMARY KEY,
        run_id INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        task_id INTEGER NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
        ordinal INTEGER NOT NULL,
        configuration TEXT NOT NULL,
        status TEXT NOT NULL,
        time_s REAL,
        samples TEXT NOT NULL,
        message TEXT NOT NULL,
        binary_digest TEXT NOT NULL,
        origin TEXT NOT NULL,
        phase_s TEXT NOT NULL,
        created REAL NOT NULL,
        UNIQUE (run_id, task_id, configuration)
    )
    """,
    "CREATE INDEX trials_in_order ON trials (run_id, ordinal)",
    "CREATE INDEX trials_of_task ON trials (task_id)",
    """
    CREATE TABLE results (
        task_id INTEGER PRIMARY KEY REFERENCES tasks (id) ON DELETE CASCADE,
        run_id INTEGER REFERENCES runs (id) ON DELETE SET NULL,
        configuration TEXT,
        default_s REAL NOT NULL,
        tuned_s REAL NOT NULL,
        speedup_low REAL NOT NULL,
        speedup_high REAL NOT NULL,
        verification TEXT NOT NULL,
        trials INTEGER NOT NULL,
        created REAL NOT NULL
    )
    """,
    "CREATE INDEX results_of_run ON results (run_id)",
    """
    CREATE TABLE measurements (
        run_id INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        kind TEXT NOT NULL,
        name TEXT NOT NULL,
        data TEXT NOT NULL,
        created REAL NOT NULL,
        PRIMARY KEY (run_id, kind, name)
    )
    """,
    """
    CREATE TABLE state (
        run_id INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        key TEXT NOT NULL,
        value TEXT NOT NULL,
        PRIMARY KEY (run_id, key)
    )
    """,
)

# What a task's search space is made from, so that its trials can teach the search of another.
_VERSION_2 = ("ALTER TABLE tasks ADD COLUMN space TEXT",)

MIGRATIONS: list[tuple[str, ...]] = [_VERSION_1, _VERSION_2]


def version_of(connection: sqlite3.Connection) -> int:
    """The version of a database's schema; 0 for an empty file.

    Args:
        connection: to the file.
    """
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def is_foreign(connection: sqlite3.Connection) -> bool:
    """Whether the file is an SQLite database that another program made.

    Args:
        connection: to the file.
    """
    application = int(connection.execute("PRAGMA application_id").fetchone()[0])
    if application == APPLICATION_ID:
        return False
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    return application != 0 or bool(tables)


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the schema to this version. Call it inside a write transaction.

    The version is read again here: another process may have migrated while this one waited.

    Args:
        connection: in a write transaction.
    """
    for statements in MIGRATIONS[version_of(connection) :]:
        for statement in statements:
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
