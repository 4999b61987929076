// Package history keeps usage and audit events for good, in Postgres or SQLite.
//
//	usage_minutes  one row per token, resource and minute: the records, merged
//	tokens         one row per token: what its rows add up to
//	usage_hours    the same per hour and per day (usage_days), made from the minutes
//	audit_events   what happened to tokens, append-only
//
// Records carry absolute values that only grow, and a row keeps the maximum of
// all that came for it. What a row grew by is added to its token's totals in the
// same transaction, so the totals are exact whatever is replayed or reordered:
//
//	record  {T, search, 12:07, admitted 3}   row 3   tokens.ops +3
//	record  {T, search, 12:07, admitted 9}   row 9   tokens.ops +6
//	record  {T, search, 12:07, admitted 3}   row 9   tokens.ops +0   (an old one, again)
package history

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/tallygate/tallygate/internal/usage"
)

// Store is an open history. It is safe for concurrent use, also by several
// processes on one database; Close it.
type Store struct {
	db      *sql.DB // for reading; both databases understand the same queries
	engine  engine
	tooLate atomic.Int64
}

// engine is what differs between the databases.
type engine interface {
	// ingest stores records, of which no key is there twice, in one transaction, and
	// marks the hours that they are in as dirty. It leaves out those that the state
	// does not admit, and returns how many these were.
	ingest(ctx context.Context, records []usage.Record) (tooLate int, err error)
	// write calls f in a transaction that is committed if f returns nil.
	write(ctx context.Context, f func(*sql.Tx) error) error
	// lockHour and lockDay keep ingest and other callers out of an epoch hour or
	// day until the transaction ends.
	lockHour(ctx context.Context, tx *sql.Tx, hour int64) error
	lockDay(ctx context.Context, tx *sql.Tx, day int64) error
	// lockAudit keeps others from appending events until the transaction ends.
	lockAudit(ctx context.Context, tx *sql.Tx) error
	// lockTokens keeps all tokens' names as they are, together with others and with
	// ingest, or to oneself, to change them.
	lockTokens(ctx context.Context, tx *sql.Tx, alone bool) error
	// oldestDay returns the first epoch day that has room for minutes.
	oldestDay(ctx context.Context, tx *sql.Tx) (day int64, ok bool, err error)
	// dropDay removes the minutes of an epoch day.
	dropDay(ctx context.Context, tx *sql.Tx, day int64) error
	// makeDays makes room for the minutes of the epoch days [from, to).
	makeDays(ctx context.Context, from, to int64) error
	// snapshot is the isolation in which all queries of a transaction see the same.
	snapshot() sql.IsolationLevel
	migrator() (*migrator, error)
	close() error
}

// ErrURL is wrapped by Open's error when the URL names no database.
var ErrURL = errors.New("invalid history URL")

// Open opens the history at a URL, postgres://user:password@host:5432/database
// or sqlite:path/to/file, and brings its schema up to date, under a lock when
// several processes start at once.
func Open(ctx context.Context, url string) (*Store, error) {
	s, err := Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	if err := s.Migrate(ctx); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// Connect is Open without a look at the schema: Migrate brings it up to date.
func Connect(ctx context.Context, url string) (*Store, error) {
	scheme, rest, _ := strings.Cut(url, ":")
	switch {
	case scheme == "postgres" || scheme == "postgresql":
		return openPostgres(ctx, url)
	case scheme == "sqlite" && rest != "":
		return openSQLite(ctx, rest)
	}
	return nil, fmt.Errorf("%w: it must begin with postgres:// or be sqlite:path/to/file", ErrURL)
}

// Ping reports whether the database answers.
func (s *Store) Ping(ctx context.Context) error { return s.db.PingContext(ctx) }

// Close closes all connections.
func (s *Store) Close() error { return errors.Join(s.db.Close(), s.engine.close()) }
