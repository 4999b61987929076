package history

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/pressly/goose/v3"
	_ "modernc.org/sqlite" // the driver "sqlite", in pure Go

	"github.com/tallygate/tallygate/internal/usage"
)

// sqlite writes through one connection: SQLite has one writer at a time anyway,
// and so nobody of this process waits for it by polling.
type sqlite struct {
	db *sql.DB
}

// A commit is on disk before Ingest returns (synchronous FULL), since offsets of
// the bus are committed next.
const (
	sqliteWriter = "?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)"
	sqliteReader = "?_pragma=busy_timeout(10000)&_pragma=query_only(1)"
)

func openSQLite(ctx context.Context, path string) (*Store, error) {
	uri := "file:" + strings.NewReplacer("%", "%25", "?", "%3f", "#", "%23").Replace(path)
	writer, err := sql.Open("sqlite", uri+sqliteWriter)
	if err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	writer.SetMaxOpenConns(1)
	if err := writer.PingContext(ctx); err != nil {
		_ = writer.Close()
		return nil, fmt.Errorf("history: open the SQLite file %s: %w", path, err)
	}
	reader, err := sql.Open("sqlite", uri+sqliteReader)
	if err != nil {
		_ = writer.Close()
		return nil, fmt.Errorf("history: %w", err)
	}
	reader.SetMaxOpenConns(4)
	return &Store{db: reader, engine: &sqlite{db: writer}}, nil
}

func (s *sqlite) close() error { return s.db.Close() }

func (s *sqlite) migrator() (*migrator, error) {
	return newMigrator(goose.DialectSQLite3, s.db, "sqlite", 5)
}

const (
	sqliteIncoming = `CREATE TEMP TABLE IF NOT EXISTS incoming (
		token TEXT NOT NULL, resource TEXT NOT NULL, minute INTEGER NOT NULL,
		admitted INTEGER NOT NULL, rejected INTEGER NOT NULL, refunded INTEGER NOT NULL, last_use INTEGER NOT NULL)`

	sqliteMarkHours = `INSERT INTO rollup_dirty (step, bucket) SELECT DISTINCT 60, minute / 60 FROM incoming WHERE true ON CONFLICT DO NOTHING`

	sqliteMakeTokens = `INSERT INTO tokens (token) SELECT DISTINCT token FROM incoming WHERE true ON CONFLICT DO NOTHING`

	sqliteAddGrowth = `
UPDATE tokens AS t SET
	ops = t.ops + g.admitted,
	rejected = t.rejected + g.rejected,
	refunded = t.refunded + g.refunded,
	first_use = CASE WHEN g.first_use IS NULL THEN t.first_use
		WHEN t.first_use = 0 THEN g.first_use ELSE min(t.first_use, g.first_use) END,
	last_use = max(t.last_use, g.last_use)
FROM (
	SELECT n.token,
		sum(max(n.admitted - coalesce(o.admitted, 0), 0)) AS admitted,
		sum(max(n.rejected - coalesce(o.rejected, 0), 0)) AS rejected,
		sum(max(n.refunded - coalesce(o.refunded, 0), 0)) AS refunded,
		min(n.minute * 60) FILTER (WHERE n.admitted > 0) AS first_use,
		max(n.last_use) AS last_use
	FROM incoming n LEFT JOIN usage_minutes o USING (token, resource, minute)
	GROUP BY n.token
) AS g WHERE t.token = g.token`

	sqliteStore = `
INSERT INTO usage_minutes AS u (token, resource, minute, admitted, rejected, refunded, last_use)
SELECT token, resource, minute, admitted, rejected, refunded, last_use FROM incoming WHERE true
ON CONFLICT DO UPDATE SET
	admitted = max(u.admitted, excluded.admitted),
	rejected = max(u.rejected, excluded.rejected),
	refunded = max(u.refunded, excluded.refunded),
	last_use = max(u.last_use, excluded.last_use)
WHERE u.admitted < excluded.admitted OR u.rejected < excluded.rejected
	OR u.refunded < excluded.refunded OR u.last_use < excluded.last_use`
)

func (s *sqlite) ingest(ctx context.Context, records []usage.Record) (tooLate int, err error) {
	err = s.write(ctx, func(tx *sql.Tx) error {
		state, err := readState(ctx, tx)
		if err != nil {
			return err
		}
		inTime := state.admit(records)
		tooLate = len(records) - len(inTime)
		return sqliteIngestRecords(ctx, tx, merge(inTime))
	})
	return tooLate, err
}

func (s *sqlite) write(ctx context.Context, f func(*sql.Tx) error) error {
	return transaction(ctx, s.db, f)
}

// A transaction that writes has the whole file to itself.
func (s *sqlite) lockHour(context.Context, *sql.Tx, int64) error  { return nil }
func (s *sqlite) lockDay(context.Context, *sql.Tx, int64) error   { return nil }
func (s *sqlite) lockAudit(context.Context, *sql.Tx) error        { return nil }
func (s *sqlite) lockTokens(context.Context, *sql.Tx, bool) error { return nil }

func (s *sqlite) oldestDay(ctx context.Context, tx *sql.Tx) (day int64, ok bool, err error) {
	var oldest sql.NullInt64
	err = tx.QueryRowContext(ctx, `SELECT min(minute) FROM usage_minutes`).Scan(&oldest)
	return oldest.Int64 / perDay, oldest.Valid, err
}

func (s *sqlite) dropDay(ctx context.Context, tx *sql.Tx, day int64) error {
	_, err := tx.ExecContext(ctx, `DELETE FROM usage_minutes WHERE minute >= ? AND minute < ?`, day*perDay, (day+1)*perDay)
	return err
}

func (s *sqlite) makeDays(context.Context, int64, int64) error { return nil }

func (s *sqlite) snapshot() sql.IsolationLevel { return sql.LevelDefault }

// sqliteRows is how many rows one INSERT takes.
const sqliteRows = 100

func sqliteIngestRecords(ctx context.Context, tx *sql.Tx, records []usage.Record) error {
	if len(records) == 0 {
		return nil
	}
	if _, err := tx.ExecContext(ctx, sqliteIncoming); err != nil {
		return err
	}
	const row = "(?,?,?,?,?,?,?)"
	insert := func(n int) string { return "INSERT INTO incoming VALUES " + row + strings.Repeat(","+row, n-1) }
	full, err := tx.PrepareContext(ctx, insert(sqliteRows))
	if err != nil {
		return err
	}
	defer full.Close()
	args := make([]any, 0, 7*sqliteRows)
	for len(records) > 0 {
		n := min(len(records), sqliteRows)
		args = args[:0]
		for _, r := range records[:n] {
			args = append(args, string(r.Token), r.Resource, r.Minute, r.Admitted, r.Rejected, r.Refunded, r.Last)
		}
		if n == sqliteRows {
			_, err = full.ExecContext(ctx, args...)
		} else {
			_, err = tx.ExecContext(ctx, insert(n), args...)
		}
		if err != nil {
			return err
		}
		records = records[n:]
	}
	for _, query := range []string{sqliteMarkHours, sqliteMakeTokens, sqliteAddGrowth, sqliteStore, "DELETE FROM incoming"} {
		if _, err := tx.ExecContext(ctx, query); err != nil {
			return err
		}
	}
	return nil
}
