-- What administrators say about tokens, as the audit events tell it; and erasure.

-- +goose Up
CREATE TABLE token_attributes (
    token  TEXT NOT NULL PRIMARY KEY,
    policy TEXT NOT NULL DEFAULT '',
    owner  TEXT NOT NULL DEFAULT '',
    status TEXT NOT NULL DEFAULT '',   -- '' is active
    labels TEXT NOT NULL DEFAULT '[]', -- JSON: sorted strings
    marks  TEXT NOT NULL DEFAULT '{}'  -- JSON: attribute → [unix ms, ID] of the event that set it
) STRICT, WITHOUT ROWID;
CREATE INDEX token_attributes_policy ON token_attributes (policy);
CREATE INDEX token_attributes_owner ON token_attributes (owner);

CREATE TABLE token_labels (
    token TEXT NOT NULL,
    label TEXT NOT NULL,
    PRIMARY KEY (label, token)
) STRICT, WITHOUT ROWID;

-- Tokens erased a short while ago: what still comes for them goes to their replacement.
CREATE TABLE erasures (
    digest      BLOB    NOT NULL PRIMARY KEY, -- SHA-256 of the token
    replacement TEXT    NOT NULL,
    until_ms    INTEGER NOT NULL              -- unix milliseconds: forgotten after that
) STRICT, WITHOUT ROWID;

DROP TRIGGER audit_events_no_update;
-- +goose StatementBegin
CREATE TRIGGER audit_events_erase_only BEFORE UPDATE ON audit_events
WHEN NEW.seq <> OLD.seq OR NEW.id <> OLD.id OR NEW.at_ms <> OLD.at_ms OR NEW.kind <> OLD.kind OR NEW.actor <> OLD.actor
    OR NEW.content <> OLD.content OR NEW.chain <> OLD.chain
    OR NEW.salt <> x'' OR NEW.reason <> '' OR NEW.before IS NOT NULL OR NEW.after IS NOT NULL
BEGIN
    SELECT RAISE(ABORT, 'audit_events is append-only');
END;
-- +goose StatementEnd

-- +goose Down
DROP TRIGGER audit_events_erase_only;
-- +goose StatementBegin
CREATE TRIGGER audit_events_no_update BEFORE UPDATE ON audit_events BEGIN
    SELECT RAISE(ABORT, 'audit_events is append-only');
END;
-- +goose StatementEnd
DROP TABLE erasures;
DROP TABLE token_labels;
DROP TABLE token_attributes;
