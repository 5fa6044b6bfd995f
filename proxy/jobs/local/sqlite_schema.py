"""The schema of the sqlite store and how older files come up to date.

Migrations are added, never changed: `sqlite_file` counts those that a file has seen.
"""

from __future__ import annotations

_FIRST = """
CREATE TABLE jobs (
    id TEXT PRIMARY KEY,
    attach_key TEXT NOT NULL,
    owner TEXT NOT NULL,
    pool TEXT NOT NULL,
    upstream TEXT NOT NULL,
    created REAL NOT NULL,
    body_bytes INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL,
    state TEXT NOT NULL,
    tier TEXT NOT NULL,
    due REAL NOT NULL,
    ready REAL NOT NULL,
    lease_until REAL NOT NULL,
    batch_id TEXT,
    purge_at REAL NOT NULL,
    document BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX jobs_due ON jobs (due) WHERE due < 9999999999.0;
CREATE INDEX jobs_pool ON jobs (pool, ready) WHERE state = 'accepted' AND tier = 'batch';
CREATE INDEX jobs_batch ON jobs (batch_id) WHERE batch_id IS NOT NULL;
CREATE INDEX jobs_state ON jobs (state, created, id);
CREATE INDEX jobs_owner ON jobs (owner, created, id);
CREATE INDEX jobs_created ON jobs (created, id);
CREATE INDEX jobs_purge ON jobs (purge_at);
CREATE TABLE attachments (attach_key TEXT PRIMARY KEY, job_id TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE bodies (job_id TEXT PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE answers (job_id TEXT PRIMARY KEY, answer BLOB NOT NULL);
CREATE TABLE bookings (
    job_id TEXT, key TEXT, document BLOB NOT NULL, PRIMARY KEY (job_id, key)
) WITHOUT ROWID;
CREATE TABLE batches (
    id TEXT PRIMARY KEY,
    state TEXT NOT NULL,
    due REAL NOT NULL,
    lease_until REAL NOT NULL,
    purge_at REAL NOT NULL,
    document BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX batches_due ON batches (due) WHERE due < 9999999999.0;
CREATE INDEX batches_purge ON batches (purge_at);
CREATE TABLE members (
    batch_id TEXT, position INTEGER, job_id TEXT NOT NULL, PRIMARY KEY (batch_id, position)
) WITHOUT ROWID;
CREATE TABLE roles (role TEXT PRIMARY KEY, document BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE completions (
    number INTEGER PRIMARY KEY, upstream TEXT, model TEXT, tier TEXT, seconds REAL, noted REAL
);
CREATE INDEX completions_of ON completions (upstream, model, tier, number);
CREATE TABLE facts (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
"""

_SEVERAL_JOBS_WITH_ONE_ATTACH_KEY = """
ALTER TABLE jobs ADD COLUMN attach_order INTEGER;
CREATE INDEX jobs_alike ON jobs (attach_key, attach_order, created, id) WHERE attach_order IS NOT NULL;
UPDATE jobs SET attach_order = 1 WHERE state IN ('accepted', 'packed', 'submitted', 'succeeded', 'rescued');
DROP TABLE attachments
"""

_NOTICES = """
ALTER TABLE jobs ADD COLUMN webhook TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN notice_due REAL;
CREATE INDEX jobs_notice ON jobs (notice_due) WHERE notice_due IS NOT NULL
"""

MIGRATIONS: tuple[str, ...] = (_FIRST, _SEVERAL_JOBS_WITH_ONE_ATTACH_KEY, _NOTICES)
