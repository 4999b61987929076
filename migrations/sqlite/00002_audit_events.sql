-- Audit events: append-only, in one hash chain.

-- +goose Up
CREATE TABLE audit_events (
    seq     INTEGER NOT NULL PRIMARY KEY, -- 1, 2, 3, … without gaps: the order of the chain
    id      TEXT    NOT NULL UNIQUE,      -- chosen by whoever made the event
    token   TEXT    NOT NULL,             -- '' when it is about no token
    at_ms   INTEGER NOT NULL,             -- unix milliseconds
    kind    TEXT    NOT NULL,
    actor   TEXT    NOT NULL,
    reason  TEXT    NOT NULL,
    before  TEXT,                         -- JSON, byte for byte as it came
    after   TEXT,
    salt    BLOB    NOT NULL,             -- random; with it the content's hash cannot be guessed back
    content BLOB    NOT NULL,             -- SHA-256 of the salt, token, actor, reason, before and after
    chain   BLOB    NOT NULL              -- SHA-256 of the previous chain value, seq, id, at_ms, kind and content
) STRICT;
CREATE INDEX audit_events_token ON audit_events (token, at_ms, seq);

-- The end of the chain, so that rows missing at the end are noticed too.
CREATE TABLE audit_head (
    one   INTEGER NOT NULL PRIMARY KEY DEFAULT 1 CHECK (one = 1),
    seq   INTEGER NOT NULL,
    chain BLOB    NOT NULL
) STRICT;
INSERT INTO audit_head (seq, chain) VALUES (0, x'');

-- +goose StatementBegin
CREATE TRIGGER audit_events_no_update BEFORE UPDATE ON audit_events BEGIN
    SELECT RAISE(ABORT, 'audit_events is append-only');
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER audit_events_no_delete BEFORE DELETE ON audit_events BEGIN
    SELECT RAISE(ABORT, 'audit_events is append-only');
END;
-- +goose StatementEnd

-- +goose Down
DROP TABLE audit_head;
DROP TABLE audit_events;
