package history

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tallygate/tallygate/internal/usage"
)

const partitionPrefix = "usage_minutes_"

// partition is the table of an epoch day: usage_minutes_YYYYMMDD.
func partition(day int64) string {
	return partitionPrefix + time.Unix(day*86400, 0).UTC().Format("20060102")
}

// ensureDays makes the partitions that the records need and that nobody made ahead.
func (p *postgres) ensureDays(ctx context.Context, records []usage.Record) error {
	for _, r := range records {
		day := r.Minute / perDay
		if err := p.makeDays(ctx, day, day+1); err != nil {
			return err
		}
	}
	return nil
}

func (p *postgres) makeDays(ctx context.Context, from, to int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for day := from; day < to; day++ {
		if p.days[day] {
			continue
		}
		if err := p.makeDay(ctx, day); err != nil {
			return fmt.Errorf("make the partition %s: %w", partition(day), err)
		}
		p.days[day] = true
	}
	return nil
}

// forgetDays makes the next ingest look again which partitions there are: somebody
// has removed one.
func (p *postgres) forgetDays() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.days)
}

// makeDay makes the partition of an epoch day unless it exists or has been
// dropped. Attaching a table disturbs neither readers nor writers of the others,
// as CREATE TABLE … PARTITION OF would.
func (p *postgres) makeDay(ctx context.Context, day int64) error {
	return pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1, $2)`, lockClass, lockPartitions); err != nil {
			return err
		}
		var enough bool
		err := tx.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL OR $2 < (SELECT minutes_from FROM history_state)`,
			partition(day), (day+1)*perDay-1).Scan(&enough)
		if err != nil || enough {
			return err
		}
		_, err = tx.Exec(ctx, fmt.Sprintf(`
			CREATE TABLE %[1]s (LIKE usage_minutes INCLUDING ALL) WITH (fillfactor = 85);
			ALTER TABLE usage_minutes ATTACH PARTITION %[1]s FOR VALUES FROM (%[2]d) TO (%[3]d)`,
			partition(day), day*perDay, (day+1)*perDay))
		return err
	})
}

func (p *postgres) oldestDay(ctx context.Context, tx *sql.Tx) (day int64, ok bool, err error) {
	var name sql.NullString
	err = tx.QueryRowContext(ctx, `SELECT min(c.relname) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
		WHERE i.inhparent = 'usage_minutes'::regclass AND c.relname LIKE $1`, partitionPrefix+"%").Scan(&name)
	if err != nil || !name.Valid {
		return 0, false, err
	}
	t, err := time.Parse(partitionPrefix+"20060102", name.String)
	if err != nil {
		return 0, false, fmt.Errorf("partition %q is not one of ours: %w", name.String, err)
	}
	return t.Unix() / 86400, true, nil
}

// dropDay gives up after two seconds when a long query is in the way, rather than
// make everybody else queue behind the lock that it waits for.
func (p *postgres) dropDay(ctx context.Context, tx *sql.Tx, day int64) error {
	_, err := tx.ExecContext(ctx, `SET LOCAL lock_timeout = '2s'`)
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, `SELECT pg_advisory_xact_lock($1, $2)`, lockClass, lockPartitions); err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, "DROP TABLE "+partition(day))
	return err
}
