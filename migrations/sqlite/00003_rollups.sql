-- Usage per hour and day, made from the minutes, so that the minutes can be dropped.

-- +goose Up
CREATE TABLE usage_hours (
    token    TEXT    NOT NULL,
    resource TEXT    NOT NULL,
    hour     INTEGER NOT NULL, -- epoch hour: unix seconds / 3600
    admitted INTEGER NOT NULL, -- units, as rejected and refunded
    rejected INTEGER NOT NULL,
    refunded INTEGER NOT NULL,
    last_use INTEGER NOT NULL, -- unix seconds of the last admission; 0: none
    PRIMARY KEY (token, resource, hour)
) STRICT, WITHOUT ROWID;
CREATE TABLE usage_days (
    token    TEXT    NOT NULL,
    resource TEXT    NOT NULL,
    day      INTEGER NOT NULL, -- epoch day, UTC: unix seconds / 86400
    admitted INTEGER NOT NULL,
    rejected INTEGER NOT NULL,
    refunded INTEGER NOT NULL,
    last_use INTEGER NOT NULL,
    PRIMARY KEY (token, resource, day)
) STRICT, WITHOUT ROWID;

-- All tokens together, per hour.
CREATE TABLE total_hours (
    resource TEXT    NOT NULL,
    hour     INTEGER NOT NULL,
    admitted INTEGER NOT NULL,
    rejected INTEGER NOT NULL,
    refunded INTEGER NOT NULL,
    last_use INTEGER NOT NULL,
    PRIMARY KEY (hour, resource)
) STRICT, WITHOUT ROWID;

CREATE INDEX usage_minutes_time ON usage_minutes (minute);
CREATE INDEX usage_hours_time ON usage_hours (hour);
CREATE INDEX usage_days_time ON usage_days (day);

-- The hours and days whose rollup does not (yet) hold what the finer rows say.
CREATE TABLE rollup_dirty (
    step   INTEGER NOT NULL, -- minutes: 60 or 1440
    bucket INTEGER NOT NULL, -- epoch hour or day
    PRIMARY KEY (step, bucket)
) STRICT, WITHOUT ROWID;
INSERT INTO rollup_dirty SELECT DISTINCT 60, minute / 60 FROM usage_minutes;

-- Minutes before this one have been dropped; what comes for them comes too late.
CREATE TABLE history_state (
    one          INTEGER NOT NULL PRIMARY KEY DEFAULT 1 CHECK (one = 1),
    minutes_from INTEGER NOT NULL
) STRICT;
INSERT INTO history_state (minutes_from) VALUES (0);

-- +goose Down
DROP TABLE history_state;
DROP TABLE rollup_dirty;
DROP INDEX usage_minutes_time;
DROP TABLE total_hours;
DROP TABLE usage_days;
DROP TABLE usage_hours;
