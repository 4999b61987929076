-- What administrators say about tokens, as the audit events tell it; and erasure.

-- +goose Up
CREATE TABLE token_attributes (
    token  text COLLATE "C" PRIMARY KEY,
    policy text COLLATE "C" NOT NULL DEFAULT '',
    owner  text COLLATE "C" NOT NULL DEFAULT '',
    status text COLLATE "C" NOT NULL DEFAULT '',   -- '' is active
    labels text NOT NULL DEFAULT '[]', -- JSON: sorted strings
    marks  text NOT NULL DEFAULT '{}'  -- JSON: attribute → [unix ms, ID] of the event that set it
);
CREATE INDEX token_attributes_policy ON token_attributes (policy);
CREATE INDEX token_attributes_owner ON token_attributes (owner);

CREATE TABLE token_labels (
    token text COLLATE "C" NOT NULL,
    label text COLLATE "C" NOT NULL,
    PRIMARY KEY (label, token)
);

-- Tokens erased a short while ago: what still comes for them goes to their replacement.
CREATE TABLE erasures (
    digest      bytea  PRIMARY KEY,       -- SHA-256 of the token
    replacement text   COLLATE "C" NOT NULL,
    until_ms    bigint NOT NULL           -- unix milliseconds: forgotten after that
);

-- +goose StatementBegin
CREATE FUNCTION audit_events_erase_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (NEW.seq, NEW.id, NEW.at_ms, NEW.kind, NEW.actor, NEW.content, NEW.chain)
        IS DISTINCT FROM (OLD.seq, OLD.id, OLD.at_ms, OLD.kind, OLD.actor, OLD.content, OLD.chain)
        OR NEW.salt <> '' OR NEW.reason <> '' OR NEW.before IS NOT NULL OR NEW.after IS NOT NULL THEN
        RAISE EXCEPTION 'audit_events is append-only';
    END IF;
    RETURN NEW;
END
$$;
-- +goose StatementEnd
DROP TRIGGER audit_events_append_only ON audit_events;
CREATE TRIGGER audit_events_append_only BEFORE DELETE OR TRUNCATE ON audit_events
    FOR EACH STATEMENT EXECUTE FUNCTION audit_events_append_only();
CREATE TRIGGER audit_events_erase_only BEFORE UPDATE ON audit_events
    FOR EACH ROW EXECUTE FUNCTION audit_events_erase_only();

-- +goose Down
DROP TRIGGER audit_events_erase_only ON audit_events;
DROP TRIGGER audit_events_append_only ON audit_events;
CREATE TRIGGER audit_events_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_events
    FOR EACH STATEMENT EXECUTE FUNCTION audit_events_append_only();
DROP FUNCTION audit_events_erase_only;
DROP TABLE erasures;
DROP TABLE token_labels;
DROP TABLE token_attributes;
