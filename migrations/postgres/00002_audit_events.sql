-- Audit events: append-only, in one hash chain.

-- +goose Up
CREATE TABLE audit_events (
    seq     bigint PRIMARY KEY,        -- 1, 2, 3, … without gaps: the order of the chain
    id      text   NOT NULL UNIQUE,    -- chosen by whoever made the event
    token   text   COLLATE "C" NOT NULL, -- '' when it is about no token
    at_ms   bigint NOT NULL,           -- unix milliseconds
    kind    text   NOT NULL,
    actor   text   NOT NULL,
    reason  text   NOT NULL,
    before  text,                      -- JSON, byte for byte as it came
    after   text,
    salt    bytea  NOT NULL,           -- random; with it the content's hash cannot be guessed back
    content bytea  NOT NULL,           -- SHA-256 of the salt, token, actor, reason, before and after
    chain   bytea  NOT NULL            -- SHA-256 of the previous chain value, seq, id, at_ms, kind and content
);
CREATE INDEX audit_events_token ON audit_events (token, at_ms, seq);

-- The end of the chain, so that rows missing at the end are noticed too.
CREATE TABLE audit_head (
    one   boolean PRIMARY KEY DEFAULT true CHECK (one),
    seq   bigint NOT NULL,
    chain bytea  NOT NULL
);
INSERT INTO audit_head (seq, chain) VALUES (0, '');

-- +goose StatementBegin
CREATE FUNCTION audit_events_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'audit_events is append-only';
END
$$;
-- +goose StatementEnd
CREATE TRIGGER audit_events_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_events
    FOR EACH STATEMENT EXECUTE FUNCTION audit_events_append_only();

-- +goose Down
DROP TABLE audit_head;
DROP TABLE audit_events;
DROP FUNCTION audit_events_append_only;
