-- Usage per token, resource and minute, and the totals per token.

-- +goose Up

-- Token and resource are in canonical form and sort by their bytes.
CREATE TABLE usage_minutes (
    token    text   COLLATE "C" NOT NULL,
    resource text   COLLATE "C" NOT NULL, -- '' is the default resource
    minute   bigint NOT NULL,             -- epoch minute: unix seconds / 60
    admitted bigint NOT NULL,             -- units, as rejected and refunded
    rejected bigint NOT NULL,
    refunded bigint NOT NULL,
    last_use bigint NOT NULL,             -- unix seconds of the last admission in this minute; 0: none
    PRIMARY KEY (token, resource, minute)
) PARTITION BY RANGE (minute); -- one partition per UTC day, usage_minutes_YYYYMMDD, made by the indexer

-- What the rows of usage_minutes add up to, kept in the transaction that changes them.
CREATE TABLE tokens (
    token     text   COLLATE "C" PRIMARY KEY,
    ops       bigint NOT NULL DEFAULT 0, -- admitted units
    rejected  bigint NOT NULL DEFAULT 0, -- units
    refunded  bigint NOT NULL DEFAULT 0, -- units
    first_use bigint NOT NULL DEFAULT 0, -- unix seconds: begin of the first minute with an admission; 0: none
    last_use  bigint NOT NULL DEFAULT 0  -- unix seconds of the last admission; 0: none
);

-- The orders that people ask for most; the others sort the table.
CREATE INDEX tokens_ops ON tokens (ops, token);
CREATE INDEX tokens_rejected ON tokens (rejected, token);
CREATE INDEX tokens_last_use ON tokens (last_use, token);

-- +goose Down
DROP TABLE tokens;
DROP TABLE usage_minutes;
