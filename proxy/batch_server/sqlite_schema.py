"""The schema of the file that keeps callers' files and batches. Migrations are added, never changed."""

from __future__ import annotations

_FIRST = """
CREATE TABLE files (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    purpose TEXT NOT NULL,
    created REAL NOT NULL,
    expires REAL NOT NULL,
    is_complete INTEGER NOT NULL,
    gone_at REAL NOT NULL,
    document BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX files_owner ON files (owner, created, id) WHERE is_complete;
CREATE INDEX files_gone ON files (gone_at);
CREATE TABLE chunks (file_id TEXT, number INTEGER, data BLOB NOT NULL, PRIMARY KEY (file_id, number));
CREATE TABLE doomed (file_id TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE batches (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    created REAL NOT NULL,
    status TEXT NOT NULL,
    waiting INTEGER NOT NULL,
    wanted REAL,
    lease_until REAL NOT NULL,
    token INTEGER NOT NULL,
    purge_at REAL NOT NULL,
    document BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX batches_owner ON batches (owner, created, id);
CREATE INDEX batches_wanted ON batches (wanted) WHERE wanted IS NOT NULL;
CREATE INDEX batches_status ON batches (status, waiting);
CREATE INDEX batches_purge ON batches (purge_at);
CREATE TABLE lines (batch_id TEXT, number INTEGER, PRIMARY KEY (batch_id, number)) WITHOUT ROWID
"""
# doomed   files that nobody sees any more and whose chunks are still to be deleted, some at a time
# wanted   when a worker has to take a batch up, for its lines or for its notice
# token    of the last lease: it outlives the lease

_ENDS = """
ALTER TABLE batches ADD COLUMN ends REAL;
UPDATE batches SET ends = wanted WHERE status NOT IN ('validating', 'in_progress', 'finalizing');
CREATE INDEX batches_ends ON batches (ends) WHERE ends IS NOT NULL
"""
# ends     from when on nothing but the end of a batch is left for a worker; unknown of an older file's until
#          the batch is written again

MIGRATIONS: tuple[str, ...] = (_FIRST, _ENDS)
