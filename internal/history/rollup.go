package history

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// Rollups are made from the finer rows as a whole, so making one again changes
// nothing, and a late record is in it after the next time. Who knows that an hour
// has changed:
//
//	writer  holds the hour (shared), marks it dirty, writes minutes
//	roller  holds the hour alone, makes it from its minutes, marks its day dirty, unmarks it
//	roller  holds the day alone, makes it from its hours, unmarks it
//
// Readers take a dirty hour from its minutes, and a day with a dirty hour from its
// hours, so what they see is exact at any time.

// settle is how long after its end an hour is left alone: records still come.
const settle = 3 * time.Minute

const rollHour = `
INSERT INTO usage_hours AS u (token, resource, hour, admitted, rejected, refunded, last_use)
SELECT token, resource, CAST($1 AS bigint), CAST(sum(admitted) AS bigint), CAST(sum(rejected) AS bigint), CAST(sum(refunded) AS bigint), max(last_use)
FROM usage_minutes WHERE minute >= $2 AND minute < $3 GROUP BY token, resource
` + rollConflict + `(token, resource, hour)` + rollUpdate

const rollTotalHour = `
INSERT INTO total_hours AS u (resource, hour, admitted, rejected, refunded, last_use)
SELECT resource, CAST($1 AS bigint), CAST(sum(admitted) AS bigint), CAST(sum(rejected) AS bigint), CAST(sum(refunded) AS bigint), max(last_use)
FROM usage_minutes WHERE minute >= $2 AND minute < $3 GROUP BY resource
` + rollConflict + `(hour, resource)` + rollUpdate

const rollDay = `
INSERT INTO usage_days AS u (token, resource, day, admitted, rejected, refunded, last_use)
SELECT token, resource, CAST($1 AS bigint), CAST(sum(admitted) AS bigint), CAST(sum(rejected) AS bigint), CAST(sum(refunded) AS bigint), max(last_use)
FROM usage_hours WHERE hour >= $2 AND hour < $3 GROUP BY token, resource
` + rollConflict + `(token, resource, day)` + rollUpdate

const (
	rollConflict = `ON CONFLICT `
	rollUpdate   = ` DO UPDATE SET
	admitted = excluded.admitted, rejected = excluded.rejected, refunded = excluded.refunded, last_use = excluded.last_use
WHERE u.admitted <> excluded.admitted OR u.rejected <> excluded.rejected
	OR u.refunded <> excluded.refunded OR u.last_use <> excluded.last_use`
)

// Rollup makes the dirty hours and days that had ended at now, oldest first, each
// in a transaction of its own, and returns how many it made. Several may run it.
func (s *Store) Rollup(ctx context.Context, now time.Time) (hours, days int, err error) {
	ended := now.Add(-settle).Unix() / 60
	if hours, err = s.rollEach(ctx, perHour, ended/perHour, s.rollHour); err != nil {
		return hours, 0, fmt.Errorf("history: roll up hours: %w", err)
	}
	if days, err = s.rollEach(ctx, perDay, ended/perDay, s.rollDay); err != nil {
		return hours, days, fmt.Errorf("history: roll up days: %w", err)
	}
	return hours, days, nil
}

// rollEach calls roll with every dirty bucket before end.
func (s *Store) rollEach(ctx context.Context, step, end int64, roll func(ctx context.Context, tx *sql.Tx, bucket int64) error) (made int, err error) {
	rows, err := s.db.QueryContext(ctx, `SELECT bucket FROM rollup_dirty WHERE step = $1 AND bucket < $2 ORDER BY bucket`, step, end)
	if err != nil {
		return 0, err
	}
	buckets, err := collect(rows, func(rows *sql.Rows) (b int64, err error) { return b, rows.Scan(&b) })
	if err != nil {
		return 0, err
	}
	for _, b := range buckets {
		if err := s.engine.write(ctx, func(tx *sql.Tx) error { return roll(ctx, tx, b) }); err != nil {
			return made, err
		}
		made++
	}
	return made, nil
}

func (s *Store) rollHour(ctx context.Context, tx *sql.Tx, hour int64) error {
	if err := s.engine.lockTokens(ctx, tx, false); err != nil {
		return err
	}
	// The day before its hour: whoever rolls the day holds no hour.
	if err := s.engine.lockDay(ctx, tx, hour/24); err != nil {
		return err
	}
	if err := s.engine.lockHour(ctx, tx, hour); err != nil {
		return err
	}
	for _, q := range []string{rollHour, rollTotalHour} {
		if _, err := tx.ExecContext(ctx, q, hour, hour*perHour, (hour+1)*perHour); err != nil {
			return err
		}
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO rollup_dirty (step, bucket) VALUES ($1, $2) ON CONFLICT DO NOTHING`, perDay, hour/24); err != nil {
		return err
	}
	return unmark(ctx, tx, perHour, hour)
}

func (s *Store) rollDay(ctx context.Context, tx *sql.Tx, day int64) error {
	if err := s.engine.lockTokens(ctx, tx, false); err != nil {
		return err
	}
	if err := s.engine.lockDay(ctx, tx, day); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, rollDay, day, day*24, (day+1)*24); err != nil {
		return err
	}
	return unmark(ctx, tx, perDay, day)
}

func unmark(ctx context.Context, tx *sql.Tx, step, bucket int64) error {
	_, err := tx.ExecContext(ctx, `DELETE FROM rollup_dirty WHERE step = $1 AND bucket = $2`, step, bucket)
	return err
}

// DropMinutes drops the minutes of whole days before a time, from which hours and
// days are left; it returns how many days it dropped. A day that is not rolled up
// yet stays, and so do those after it. Records for dropped minutes come too late
// from then on: see TooLate.
func (s *Store) DropMinutes(ctx context.Context, before time.Time) (days int, err error) {
	for dropped := true; dropped && err == nil; {
		err = s.engine.write(ctx, func(tx *sql.Tx) error {
			dropped, err = s.dropOldest(ctx, tx, before.Unix()/60/perDay)
			return err
		})
		if dropped && err == nil {
			days++
		}
	}
	if err != nil {
		return days, fmt.Errorf("history: drop old minutes: %w", err)
	}
	return days, nil
}

// dropOldest drops the oldest day that has minutes if it lies before end.
func (s *Store) dropOldest(ctx context.Context, tx *sql.Tx, end int64) (dropped bool, err error) {
	day, ok, err := s.engine.oldestDay(ctx, tx)
	if err != nil || !ok || day >= end {
		return false, err
	}
	for hour := day * 24; hour < (day+1)*24; hour++ { // wait for writers, and keep them out
		if err := s.engine.lockHour(ctx, tx, hour); err != nil {
			return false, err
		}
	}
	var dirty bool
	err = tx.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM rollup_dirty WHERE bucket * step < $1)`, (day+1)*perDay).Scan(&dirty)
	if err != nil || dirty {
		return false, err
	}
	if _, err := tx.ExecContext(ctx, `UPDATE history_state SET minutes_from = $1 WHERE minutes_from < $1`, (day+1)*perDay); err != nil {
		return false, err
	}
	return true, s.engine.dropDay(ctx, tx, day)
}

// TooLate returns how many records this process was given for minutes that had
// been dropped. Their units are not in the history.
func (s *Store) TooLate() int64 { return s.tooLate.Load() }

// MakeRoom makes the partitions of the day of now and of the given number of days
// after it, so that nobody has to make them at midnight while all write.
func (s *Store) MakeRoom(ctx context.Context, now time.Time, ahead int64) error {
	day := now.Unix() / 86400
	if err := s.engine.makeDays(ctx, day, day+ahead+1); err != nil {
		return fmt.Errorf("history: %w", err)
	}
	return nil
}
