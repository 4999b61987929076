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
    -- What the last change of the row found, so that it can say what was added
    -- without reading twice; null after the first.
    admitted_before bigint,
    rejected_before bigint,
    refunded_before bigint,
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
)
-- Every batch changes these rows. Without an index on what changes, and with room in
-- the page, that costs no index entry; a list sorts the table instead.
WITH (fillfactor = 70);

-- +goose Down
DROP TABLE tokens;
DROP TABLE usage_minutes;
