-- Usage per hour and day, made from the minutes, so that the minutes can be dropped.

-- +goose Up
CREATE TABLE usage_hours (
    token    text   COLLATE "C" NOT NULL,
    resource text   COLLATE "C" NOT NULL,
    hour     bigint NOT NULL, -- epoch hour: unix seconds / 3600
    admitted bigint NOT NULL, -- units, as rejected and refunded
    rejected bigint NOT NULL,
    refunded bigint NOT NULL,
    last_use bigint NOT NULL, -- unix seconds of the last admission; 0: none
    PRIMARY KEY (token, resource, hour)
);
CREATE TABLE usage_days (
    token    text   COLLATE "C" NOT NULL,
    resource text   COLLATE "C" NOT NULL,
    day      bigint NOT NULL, -- epoch day, UTC: unix seconds / 86400
    admitted bigint NOT NULL,
    rejected bigint NOT NULL,
    refunded bigint NOT NULL,
    last_use bigint NOT NULL,
    PRIMARY KEY (token, resource, day)
);

-- All tokens together, per hour.
CREATE TABLE total_hours (
    resource text   COLLATE "C" NOT NULL,
    hour     bigint NOT NULL,
    admitted bigint NOT NULL,
    rejected bigint NOT NULL,
    refunded bigint NOT NULL,
    last_use bigint NOT NULL,
    PRIMARY KEY (hour, resource)
);

-- Rows are written about in the order of time: these find a span of all tokens in
-- a few kilobytes of index.
CREATE INDEX usage_minutes_time ON usage_minutes USING brin (minute) WITH (pages_per_range = 16);
CREATE INDEX usage_hours_time ON usage_hours USING brin (hour) WITH (pages_per_range = 16);
CREATE INDEX usage_days_time ON usage_days USING brin (day) WITH (pages_per_range = 16);

-- The hours and days whose rollup does not (yet) hold what the finer rows say.
CREATE TABLE rollup_dirty (
    step   bigint NOT NULL, -- minutes: 60 or 1440
    bucket bigint NOT NULL, -- epoch hour or day
    PRIMARY KEY (step, bucket)
);
INSERT INTO rollup_dirty SELECT DISTINCT 60, minute / 60 FROM usage_minutes;

-- Minutes before this one have been dropped; what comes for them comes too late.
CREATE TABLE history_state (
    one          boolean PRIMARY KEY DEFAULT true CHECK (one),
    minutes_from bigint NOT NULL
);
INSERT INTO history_state (minutes_from) VALUES (0);

-- +goose Down
DROP TABLE history_state;
DROP TABLE rollup_dirty;
DROP INDEX usage_minutes_time;
DROP TABLE total_hours;
DROP TABLE usage_days;
DROP TABLE usage_hours;
