package history

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"net/url"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/tallygate/tallygate/internal/usage"
)

// Advisory locks: a class and a number in it.
const (
	lockClass = 0x74616c6c // ("tall") with these numbers:
	// lockPartitions is held while partitions are made or dropped.
	lockPartitions = 1
	// lockAudit is held by whoever appends to the chain.
	lockAudit = 2

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
	config.ConnConfig.ConnectTimeout = min(config.ConnConfig.ConnectTimeout, 10*time.Second)
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

// Each writer first makes and locks its tokens' rows, in one order, and only then
// looks at the old values: nobody else can move them until it commits.
const (
	pgMakeTokens = `INSERT INTO tokens (token) SELECT unnest($1::text[]) ON CONFLICT DO NOTHING`
	pgLockTokens = `SELECT count(*) FROM (
		SELECT FROM tokens WHERE token = ANY ($1::text[]) ORDER BY token FOR NO KEY UPDATE) locked`

	// All parts see the rows as they were before the statement. The bounds on
	// minute spare the partitions that cannot matter.
	pgIngest = `
WITH new AS (
	SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[])
		AS n (token, resource, minute, admitted, rejected, refunded, last_use)
), old AS (
	SELECT u.* FROM new JOIN usage_minutes u USING (token, resource, minute)
	WHERE u.minute BETWEEN $8 AND $9
), stored AS (
	INSERT INTO usage_minutes AS u (token, resource, minute, admitted, rejected, refunded, last_use)
	SELECT * FROM new
	ON CONFLICT (token, resource, minute) DO UPDATE SET
		admitted = greatest(u.admitted, excluded.admitted),
		rejected = greatest(u.rejected, excluded.rejected),
		refunded = greatest(u.refunded, excluded.refunded),
		last_use = greatest(u.last_use, excluded.last_use)
	WHERE u.admitted < excluded.admitted OR u.rejected < excluded.rejected
		OR u.refunded < excluded.refunded OR u.last_use < excluded.last_use
	RETURNING *
), grown AS (
	SELECT s.token,
		sum(s.admitted - coalesce(o.admitted, 0)) AS admitted,
		sum(s.rejected - coalesce(o.rejected, 0)) AS rejected,
		sum(s.refunded - coalesce(o.refunded, 0)) AS refunded,
		min(s.minute * 60) FILTER (WHERE s.admitted > 0) AS first_use,
		max(s.last_use) AS last_use
	FROM stored s LEFT JOIN old o USING (token, resource, minute)
	GROUP BY s.token
)
UPDATE tokens t SET
	ops = t.ops + g.admitted,
	rejected = t.rejected + g.rejected,
	refunded = t.refunded + g.refunded,
	first_use = coalesce(least(nullif(t.first_use, 0), g.first_use), 0),
	last_use = greatest(t.last_use, g.last_use)
FROM grown g WHERE t.token = g.token`
)

func (p *postgres) ingest(ctx context.Context, records []usage.Record, events []usage.Event) (tooLate int, err error) {
	if err := p.ensureDays(ctx, records); err != nil {
		return 0, err
	}
	err = pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		if len(records) > 0 {
			inTime, err := pgHold(ctx, tx, records)
			if err != nil {
				return err
			}
			tooLate = len(records) - len(inTime)
			if len(inTime) > 0 {
				if err := pgIngestRecords(ctx, tx, inTime); err != nil {
					return err
				}
			}
		}
		if len(events) > 0 {
			return pgAppendEvents(ctx, tx, events)
		}
		return nil
	})
	return tooLate, err
}

// pgHold takes the hours of the records, together with other writers, against
// those who roll up and drop; it returns the records whose minutes are not dropped.
func pgHold(ctx context.Context, tx pgx.Tx, records []usage.Record) ([]usage.Record, error) {
	var batch pgx.Batch
	batch.Queue(`SELECT count(pg_advisory_xact_lock_shared($1, h)) FROM unnest($2::int[]) h`, lockHours, hoursOf(records))
	batch.Queue(`SELECT minutes_from FROM history_state`)
	results := tx.SendBatch(ctx, &batch)
	defer results.Close()
	if _, err := results.Exec(); err != nil {
		return nil, err
	}
	var kept int64
	if err := results.QueryRow().Scan(&kept); err != nil {
		return nil, err
	}
	return from(records, kept), results.Close()
}

func (p *postgres) write(ctx context.Context, f func(*sql.Tx) error) error {
	tx, err := p.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}

func (p *postgres) lockHour(ctx context.Context, tx *sql.Tx, hour int64) error {
	_, err := tx.ExecContext(ctx, `SELECT pg_advisory_xact_lock($1, $2)`, lockHours, hour)
	return err
}

func (p *postgres) lockDay(ctx context.Context, tx *sql.Tx, day int64) error {
	_, err := tx.ExecContext(ctx, `SELECT pg_advisory_xact_lock($1, $2)`, lockDays, day)
	return err
}

func (p *postgres) snapshot() sql.IsolationLevel { return sql.LevelRepeatableRead }

func pgIngestRecords(ctx context.Context, tx pgx.Tx, records []usage.Record) error {
	n := len(records)
	var (
		tokens               []string // distinct
		token, resource      = make([]string, n), make([]string, n)
		minute               = make([]int64, n)
		admitted, rejected   = make([]int64, n), make([]int64, n)
		refunded, last       = make([]int64, n), make([]int64, n)
		minMinute, maxMinute = records[0].Minute, records[0].Minute
	)
	for i, r := range records {
		if i == 0 || r.Token != records[i-1].Token {
			tokens = append(tokens, string(r.Token))
		}
		token[i], resource[i], minute[i] = string(r.Token), r.Resource, r.Minute
		admitted[i], rejected[i], refunded[i], last[i] = r.Admitted, r.Rejected, r.Refunded, r.Last
		minMinute, maxMinute = min(minMinute, r.Minute), max(maxMinute, r.Minute)
	}
	var batch pgx.Batch
	batch.Queue(`INSERT INTO rollup_dirty (step, bucket) SELECT 60, unnest($1::bigint[]) ON CONFLICT DO NOTHING`, hoursOf(records))
	batch.Queue(pgMakeTokens, tokens)
	batch.Queue(pgLockTokens, tokens)
	batch.Queue(pgIngest, token, resource, minute, admitted, rejected, refunded, last, minMinute, maxMinute)
	return tx.SendBatch(ctx, &batch).Close()
}

func pgAppendEvents(ctx context.Context, tx pgx.Tx, events []usage.Event) error {
	// Whoever appends does so alone, or the chain would fork.
	if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1, $2)`, lockClass, lockAudit); err != nil {
		return err
	}
	ids := make([]string, len(events))
	for i, e := range events {
		ids[i] = e.ID
	}
	rows, err := tx.Query(ctx, `SELECT id FROM audit_events WHERE id = ANY ($1)`, ids)
	if err != nil {
		return err
	}
	known, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	end := link{}
	if err := tx.QueryRow(ctx, `SELECT seq, chain FROM audit_head`).Scan(&end.seq, &end.chain); err != nil {
		return err
	}
	var batch pgx.Batch
	for _, e := range without(events, known) {
		end = end.next(e)
		batch.Queue(`INSERT INTO audit_events (seq, id, token, at_ms, kind, actor, reason, before, after, salt, content, chain)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)`,
			end.seq, e.ID, string(e.Token), e.At, e.Kind, e.Actor, e.Reason, nullable(e.Before), nullable(e.After),
			end.salt, end.content, end.chain)
	}
	if batch.Len() == 0 {
		return nil
	}
	batch.Queue(`UPDATE audit_head SET seq = $1, chain = $2`, end.seq, end.chain)
	return tx.SendBatch(ctx, &batch).Close()
}

// nullable returns v as a text column takes it.
func nullable(v json.RawMessage) any {
	if v == nil {
		return nil
	}
	return string(v)
}
