package history

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/tallygate/tallygate/internal/usage"
)

// noPartition is the SQLSTATE for a row that no partition takes.
const noPartition = "23514"

// Advisory locks: a class and a number in it.
const (
	lockClass = 0x74616c6c // ("tall") with these numbers:
	// lockPartitions is held while partitions are made or dropped.
	lockPartitions = 1
	// lockAudit is held by whoever appends to the chain.
	lockAudit = 2
	// lockTokenNames is held by who erases a token, and shared by all who write usage.
	lockTokenNames = 3

	lockHours = lockClass + 1 // the number is an epoch hour
	lockDays  = lockClass + 2 // the number is an epoch day
)

type postgres struct {
	pool *pgxpool.Pool
	db   *sql.DB // the same connections, by database/sql

	mu   sync.Mutex
	days map[int64]bool // epoch days whose partition is known to exist
}

func openPostgres(ctx context.Context, address string) (*Store, error) {
	config, err := pgxpool.ParseConfig(address)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrURL, err) // pgx masks the password
	}
	config.ConnConfig.RuntimeParams["application_name"] = "tallygate"
	if config.ConnConfig.ConnectTimeout == 0 { // the URL says nothing: do not wait for ever
		config.ConnConfig.ConnectTimeout = 10 * time.Second
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("history: cannot use Postgres at %s; is it running, and is the URL right? %w", masked(address), err)
	}
	db := stdlib.OpenDBFromPool(pool)
	return &Store{db: db, engine: &postgres{pool: pool, db: db, days: map[int64]bool{}}}, nil
}

// masked returns the URL without its password.
func masked(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return "the given URL"
	}
	q := u.Query()
	if q.Has("password") {
		q.Set("password", "xxxxx")
		u.RawQuery = q.Encode()
	}
	return u.Redacted()
}

func (p *postgres) close() error {
	p.pool.Close()
	return nil
}

func (p *postgres) migrator() (*migrator, error) {
	locker, err := lock.NewPostgresSessionLocker()
	if err != nil {
		return nil, err
	}
	return newMigrator(goose.DialectPostgres, p.db, "postgres", 1, goose.WithSessionLocker(locker))
}

// pgIngest merges rows and adds what each has grown by to its token. A row says
// that itself, while it is locked, whoever else writes it; so it needs no look at
// the old rows, which another writer could change in between. Both tables are
// written in the order of their keys: writers wait for each other, never in a circle.
const pgIngest = `
WITH stored AS (
	INSERT INTO usage_minutes AS u (token, resource, minute, admitted, rejected, refunded, last_use)
	SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[])
	ON CONFLICT (token, resource, minute) DO UPDATE SET
		admitted = greatest(u.admitted, excluded.admitted), admitted_before = u.admitted,
		rejected = greatest(u.rejected, excluded.rejected), rejected_before = u.rejected,
		refunded = greatest(u.refunded, excluded.refunded), refunded_before = u.refunded,
		last_use = greatest(u.last_use, excluded.last_use)
	WHERE u.admitted < excluded.admitted OR u.rejected < excluded.rejected
		OR u.refunded < excluded.refunded OR u.last_use < excluded.last_use
	RETURNING *
)
INSERT INTO tokens AS t (token, ops, rejected, refunded, first_use, last_use)
SELECT token,
	sum(admitted - coalesce(admitted_before, 0)),
	sum(rejected - coalesce(rejected_before, 0)),
	sum(refunded - coalesce(refunded_before, 0)),
	coalesce(min(minute * 60) FILTER (WHERE admitted > 0), 0),
	max(last_use)
FROM stored GROUP BY token ORDER BY token
ON CONFLICT (token) DO UPDATE SET
	ops = t.ops + excluded.ops,
	rejected = t.rejected + excluded.rejected,
	refunded = t.refunded + excluded.refunded,
	first_use = coalesce(least(nullif(t.first_use, 0), nullif(excluded.first_use, 0)), 0),
	last_use = greatest(t.last_use, excluded.last_use)`

func (p *postgres) ingest(ctx context.Context, records []usage.Record) (tooLate int, err error) {
	if err := p.ensureDays(ctx, records); err != nil {
		return 0, err
	}
	err = pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		state, err := pgHold(ctx, tx, records)
		if err != nil {
			return err
		}
		inTime := state.admit(records)
		tooLate = len(records) - len(inTime)
		if len(inTime) == 0 {
			return nil
		}
		return pgIngestRecords(ctx, tx, merge(inTime))
	})
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Code == noPartition {
		p.forgetDays()
	}
	return tooLate, err
}

// pgHold takes the hours of the records, together with other writers, against
// those who roll up and drop, and all tokens against those who erase.
func pgHold(ctx context.Context, tx pgx.Tx, records []usage.Record) (state, error) {
	var batch pgx.Batch
	batch.Queue(`SELECT pg_advisory_xact_lock_shared($1, $2)`, lockClass, lockTokenNames)
	batch.Queue(`SELECT count(pg_advisory_xact_lock_shared($1, h)) FROM unnest($2::int[]) h`, lockHours, hoursOf(records))
	batch.Queue(`SELECT minutes_from FROM history_state`)
	batch.Queue(`SELECT digest, replacement FROM erasures`)
	results := tx.SendBatch(ctx, &batch)
	defer results.Close()
	var s state
	for range 2 {
		if _, err := results.Exec(); err != nil {
			return s, err
		}
	}
	if err := results.QueryRow().Scan(&s.minutesFrom); err != nil {
		return s, err
	}
	rows, err := results.Query()
	if err != nil {
		return s, err
	}
	if s.erased, err = pgx.CollectRows(rows, pgx.RowToStructByPos[erasure]); err != nil {
		return s, err
	}
	return s, results.Close()
}

func (p *postgres) write(ctx context.Context, f func(*sql.Tx) error) error {
	return transaction(ctx, p.db, f)
}

func (p *postgres) lockHour(ctx context.Context, tx *sql.Tx, hour int64) error {
	_, err := tx.ExecContext(ctx, `SELECT pg_advisory_xact_lock($1, $2)`, lockHours, hour)
	return err
}

func (p *postgres) lockDay(ctx context.Context, tx *sql.Tx, day int64) error {
	_, err := tx.ExecContext(ctx, `SELECT pg_advisory_xact_lock($1, $2)`, lockDays, day)
	return err
}

func (p *postgres) lockAudit(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, `SELECT pg_advisory_xact_lock($1, $2)`, lockClass, lockAudit)
	return err
}

func (p *postgres) lockTokens(ctx context.Context, tx *sql.Tx, alone bool) error {
	lock := `SELECT pg_advisory_xact_lock_shared($1, $2)`
	if alone {
		lock = `SELECT pg_advisory_xact_lock($1, $2)`
	}
	_, err := tx.ExecContext(ctx, lock, lockClass, lockTokenNames)
	return err
}

func (p *postgres) snapshot() sql.IsolationLevel { return sql.LevelRepeatableRead }

func pgIngestRecords(ctx context.Context, tx pgx.Tx, records []usage.Record) error {
	n := len(records)
	var (
		token, resource    = make([]string, n), make([]string, n)
		minute, last       = make([]int64, n), make([]int64, n)
		admitted, rejected = make([]int64, n), make([]int64, n)
		refunded           = make([]int64, n)
	)
	for i, r := range records {
		token[i], resource[i], minute[i] = string(r.Token), r.Resource, r.Minute
		admitted[i], rejected[i], refunded[i], last[i] = r.Admitted, r.Rejected, r.Refunded, r.Last
	}
	var batch pgx.Batch
	batch.Queue(`INSERT INTO rollup_dirty (step, bucket) SELECT 60, unnest($1::bigint[]) ON CONFLICT DO NOTHING`, hoursOf(records))
	batch.Queue(pgIngest, token, resource, minute, admitted, rejected, refunded, last)
	return tx.SendBatch(ctx, &batch).Close()
}
