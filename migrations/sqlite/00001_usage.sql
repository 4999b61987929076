-- Usage per token, resource and minute, and the totals per token.

-- +goose Up

-- Token and resource are in canonical form and sort by their bytes.
CREATE TABLE usage_minutes (
    token    TEXT    NOT NULL,
    resource TEXT    NOT NULL, -- '' is the default resource
    minute   INTEGER NOT NULL, -- epoch minute: unix seconds / 60
    admitted INTEGER NOT NULL, -- units, as rejected and refunded
    rejected INTEGER NOT NULL,
    refunded INTEGER NOT NULL,
    last_use INTEGER NOT NULL, -- unix seconds of the last admission in this minute; 0: none
    PRIMARY KEY (token, resource, minute)
) STRICT, WITHOUT ROWID;

-- What the rows of usage_minutes add up to, kept in the transaction that changes them.
CREATE TABLE tokens (
    token     TEXT    NOT NULL PRIMARY KEY,
    ops       INTEGER NOT NULL DEFAULT 0, -- admitted units
    rejected  INTEGER NOT NULL DEFAULT 0, -- units
    refunded  INTEGER NOT NULL DEFAULT 0, -- units
    first_use INTEGER NOT NULL DEFAULT 0, -- unix seconds: begin of the first minute with an admission; 0: none
    last_use  INTEGER NOT NULL DEFAULT 0  -- unix seconds of the last admission; 0: none
) STRICT, WITHOUT ROWID;

-- +goose Down
DROP TABLE tokens;
DROP TABLE usage_minutes;
